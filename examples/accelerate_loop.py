"""Late gradients in a loop of Hugging Face accelerate, which does not pass `delay=` on to the optimizer.

    pip install accelerate
    python examples/accelerate_loop.py [--steps 300]

Set `delay` on the optimizer itself before `step`; it is reset to 0 after the step. Gradients are made late here by
computing each at the parameters of three updates ago, as four workers in turn would. It takes seconds.
"""

from __future__ import annotations

import argparse
from collections import deque

import torch
from accelerate import Accelerator
from torch import nn

import latecomer as lc


def main() -> None:
    """Train with gradients that are three updates late."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    inputs = torch.randn(256, 8)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=32, shuffle=True
    )
    model = nn.Linear(8, 1)
    rule = lc.optim.OrderedMomentum(model.parameters(), lr=0.1, beta=0.1, catch_up=True)
    model, optimizer, loader = accelerator.prepare(model, rule, loader)
    in_flight: deque[tuple[int, list[torch.Tensor]]] = deque()
    step = 0
    while step < options.steps:
        for x, y in loader:
            in_flight.append((rule.version, [p.detach().clone() for p in model.parameters()]))
            if len(in_flight) < 4:
                continue
            version, stale = in_flight.popleft()
            here = [p.detach().clone() for p in model.parameters()]
            with torch.no_grad():
                for p, value in zip(model.parameters(), stale, strict=True):
                    p.copy_(value)
            optimizer.zero_grad()
            accelerator.backward(nn.functional.mse_loss(model(x), y))
            with torch.no_grad():
                for p, value in zip(model.parameters(), here, strict=True):
                    p.copy_(value)
            rule.delay = rule.version - version  # on the rule, not on accelerate's wrapper
            optimizer.step()
            step += 1
            if step == options.steps:
                break
    with torch.no_grad():
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
    print(f"{rule.t} arrivals, loss {loss:.6f}")


if __name__ == "__main__":
    main()
