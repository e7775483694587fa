"""mezzo's optimizers and PyTorch's, by short names."""
import mezzo
import torch


def classes(kind):
    """mezzo's, PyTorch's, and options: "adamw amsgrad"."""
    kind, _, amsgrad = kind.partition(" ")
    name = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD"}[kind]
    return getattr(mezzo.optim, name), getattr(torch.optim, name), dict(amsgrad=True) if amsgrad else {}


def reference(kind, groups, lr, momentum=0, nesterov=False):
    _, of_torch, options = classes(kind)
    return of_torch(groups, lr=lr, fused=True, **(dict(momentum=momentum, nesterov=nesterov) if kind == "sgd" else options))


def make(kind, params, weight_decay=0.0, lr=0.01, momentum=0, **options):
    """One of mezzo's."""
    if kind == "lamb":
        return mezzo.optim.LAMB(params, lr=lr, weight_decay=weight_decay, **options)
    ours, _, amsgrad = classes(kind)
    return ours(params, lr=lr, weight_decay=weight_decay, **(dict(momentum=momentum) if kind == "sgd" else amsgrad), **options)
