"""Optimizers as torch.amp.GradScaler takes them."""
import torch


class Shim:
    """What torch.amp.GradScaler needs of an optimizer, around one in C++."""

    def __init__(self, optimizer, parameters):
        self.optimizer = optimizer
        self.param_groups = [{"params": parameters}]

    def step(self):
        self.optimizer.step()
        return True


class PyTorchFused(torch.optim.SGD):
    """Says whether it stepped, as mezzo's optimizers do; `found_inf` is there while the scaler is enabled."""

    def step(self):
        found_inf = getattr(self, "found_inf", None)
        super().step()
        return found_inf is None or not found_inf
