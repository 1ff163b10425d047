"""``python -m latecomer`` is the ``latecomer`` command."""

import sys

from .cli import main

sys.exit(main())
