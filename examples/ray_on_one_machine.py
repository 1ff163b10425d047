"""Train on Ray, on this machine only, while workers are killed.

    python examples/ray_on_one_machine.py [--steps 300] [--workers 2]

`engine="ray"` starts a Ray for this run alone: it listens on the loopback address, asks for a token, and ends with the
run. On a cluster, pass `RayEngine("auto")` instead. It needs `latecomer[ray]` and takes half a minute, most of which is
the start of Ray and of its workers.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import latecomer as lc


def main() -> None:
    """Train, kill both workers once, print what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(0)
    inputs = torch.randn(512, 8)
    targets = inputs.sum(1, keepdim=True)
    model = nn.Linear(8, 1)
    run = lc.fit(
        model,
        nn.functional.mse_loss,
        torch.utils.data.TensorDataset(inputs, targets),
        lr=0.1,
        steps=options.steps,
        workers=options.workers,
        engine="ray",
        callbacks=[lc.testing.KillAt((0, options.steps // 3), (1, options.steps // 2))],
    )
    print(run)
    with torch.no_grad():
        print(f"loss: {nn.functional.mse_loss(model(inputs), targets):.6f}")
    print(f"{run.deaths} workers died, {run.reissued} tickets were issued again, {run.server.arrivals} counted.")


if __name__ == "__main__":
    main()
