"""An optimizer of Latecomer in a LightningModule, with gradients that come late.

    pip install lightning
    python examples/lightning_module.py [--steps 300]

Lightning wraps the optimizer and does not pass `delay=` on, so the delay is set on the optimizer itself before `step`.
Every gradient is computed at the parameters of one update ago here, as if a second worker were always between. It takes
seconds.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from typing import Any

import lightning
import torch
from torch import Tensor, nn

import latecomer as lc


class Regression(lightning.LightningModule):
    """A linear model whose gradients are one update late."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.layer = nn.Linear(8, 1)
        self.stale: tuple[int, dict[str, Tensor]] | None = None

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the rule; Lightning wraps it."""
        return lc.optim.OrderedMomentum(self.layer.parameters(), lr=0.1, beta=0.1, catch_up=True)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Compute the gradient at the last point, and apply it to the parameters of now."""
        wrapped: Any = self.optimizers()
        rule = wrapped.optimizer
        now = rule.version, {name: value.detach().clone() for name, value in self.layer.named_parameters()}
        version, point = self.stale or now
        self.stale = now
        point = {name: value.requires_grad_() for name, value in point.items()}
        loss = nn.functional.mse_loss(torch.func.functional_call(self.layer, point, batch[0]), batch[1])
        for name, gradient in zip(point, torch.autograd.grad(loss, list(point.values())), strict=True):
            self.layer.get_parameter(name).grad = gradient
        rule.delay = rule.version - version
        wrapped.step()


def main() -> None:
    """Train for some steps on the CPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=UserWarning, module="lightning")  # about loaders without workers
    lightning.seed_everything(0, verbose=False)
    inputs = torch.randn(256, 8)
    targets = inputs.sum(1, keepdim=True)
    model = Regression()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=32, shuffle=True)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(max_steps=options.steps, accelerator="cpu", **quiet)
    trainer.fit(model, loader)
    with torch.no_grad():
        loss = nn.functional.mse_loss(model.layer(inputs), targets)
    print(f"{trainer.optimizers[0].t} arrivals, loss {loss:.6f}")


if __name__ == "__main__":
    main()
