"""Settings of every test, those in docstrings too."""

import os
import signal
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

collect_ignore = ["studies/stable_and_fair/registered"]  # importing it, to look for examples, registers a method
torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in what a shell starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time, so that a red run is a change of ours; `HYPOTHESIS_PROFILE=explore` looks further.
settings.register_profile("default", derandomize=True, deadline=None, max_examples=30)
settings.register_profile(
    "explore", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


_TOGETHER = ("test_ray", "test_reproduce", "test_demo", "test_site")
"""Files whose tests share what takes long to set up: one Ray, a reproduction, a demo, the documentation."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep some in one process: ``--dist loadgroup`` of xdist 3.8 sees no groups with pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    if config.getvalue("dist") != "loadgroup":
        return None

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((name for name in _TOGETHER if f"/{name}" in nodeid), nodeid)

    return Groups(config, log)


_CHANGED_BY = {
    "no Chromium": "make browser",
    "root may write everywhere": "as a user other than root",
    "network namespaces": "as root, with iproute2 and util-linux, where namespaces are allowed",
    "virtual wires": "as root, with iproute2 and util-linux, where namespaces are allowed",
    "not a git checkout": "in a clone made by git",
    "+SKIP": "by hand, with the package that the example names",
}
"""Parts of reasons for which tests are skipped, and how to run those tests."""


def pytest_unconfigure(config: pytest.Config) -> None:
    """End with what was skipped, and the command that would change that."""
    terminalreporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if terminalreporter is None or hasattr(config, "workerinput"):
        return
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    for reason, count in reasons.most_common():
        what, it = ("1 test was", "it") if count == 1 else (f"{count} tests were", "them")
        how = next((f". To run {it}: {words}" for part, words in _CHANGED_BY.items() if part in reason), "")
        terminalreporter.write_line(f"{what} skipped: {reason}{how}")
