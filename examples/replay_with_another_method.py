"""Record a run on real processes, then ask what other methods would have done on exactly the same arrivals.

    python examples/replay_with_another_method.py

It takes about half a minute. `replay_with_another_method.ipynb` is this file as a notebook.
"""

# %% [markdown]
# ## Record a run
# Three worker processes train a small network on digits. Batches of the class 9 take longer. `record=` writes the table
# of arrivals and the final parameters.

# %%
import tempfile
import time
from pathlib import Path

import latecomer as lc

SLOW_SECONDS = 0.01


class SlowNines(lc.problems.Digits):
    """Digits whose slow class really takes longer."""

    def loss(self, model, batch):
        """Return the loss; a batch of nines has to wait for something first."""
        if bool((batch[1] == 9).all()):
            time.sleep(SLOW_SECONDS)
        return super().loss(model, batch)


problem = SlowNines(network="mlp", cubic=False)
folder = tempfile.TemporaryDirectory()
run = lc.fit(
    problem, method="catch-up", lr=0.1, beta=0.1, workers=3, steps=400, record=Path(folder.name) / "run.parquet"
)
print(run.trace.describe())

# %% [markdown]
# ## The same method again
# A replay runs in one process. It lands on the same parameters, bit for bit, on the same kind of processor with the
# same build of torch.

# %%
print(lc.training.replay(run.record, problem).verdict)

# %% [markdown]
# ## Other methods on the same arrivals
# A schedule never depends on the values of the parameters, so it can be given to any method. The influence is the mean
# total weight of a slow gradient on the parameters, over that of a fast one.

# %%
for method in ("catch-up", "momentum", "ordered-momentum", "balanced-catch-up"):
    other = lc.training.replay(run.record, problem, method=method)
    fast, slow = lc.theory.influence_by_group(run.trace, method, {"beta": 0.1})
    final = other.run.final
    print(f"{method:<18} F1 {final['f1']:.3f}, slow class {final['f1_slow']:.3f}, influence {slow / fast:.2f}")

# %% [markdown]
# One recorded run is one sample: another run has other arrivals. To compare methods, use several seeds on simulated
# schedules, as in the tutorial *Compare methods*.

# %%
folder.cleanup()
