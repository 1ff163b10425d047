"""What the simulator and the training loop share: the flat model, one gradient, and the state of a run."""
