"""Settings of every test, those in docstrings too."""

import os

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

# The same examples every time, so that a red run is a change of ours; `HYPOTHESIS_PROFILE=explore` looks further.
settings.register_profile("default", derandomize=True, deadline=None, max_examples=40)
settings.register_profile(
    "explore", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
