"""Marks of tests that use the one Ray of a session."""

from __future__ import annotations

import pytest

# Ray itself leaves sockets and files to the garbage collector.
ON_RAY = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
