"""Optimizers as torch.amp.GradScaler takes them: `step` says whether it stepped, as the results of mezzo's scaler do."""
import functools

import torch


class Shim:
    """What torch.amp.GradScaler needs of an optimizer, around one in C++."""

    def __init__(self, optimizer, parameters):
        self.optimizer = optimizer
        self.param_groups = [{"params": parameters}]

    def step(self):
        self.optimizer.step()
        return True


@functools.cache
def Told(optimizer_class):
    """A class of Python's that says whether it stepped. `found_inf` is there if it decides by itself."""
    def step(self):
        found_inf = getattr(self, "found_inf", None)
        optimizer_class.step(self)
        return found_inf is None or not found_inf

    return type("Told" + optimizer_class.__name__, (optimizer_class,), {"step": step})
