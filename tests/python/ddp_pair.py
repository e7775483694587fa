"""Models for the tests of DistributedDataParallel, and the same model wrapped by Python and by mezzo."""
import copy
import os

import _mezzo
import torch
from torch import nn


class Net(nn.Module):
    """A little of everything: a frozen parameter, buffers that change, and (on request) a branch that is not used."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.branches = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.last = nn.Linear(16, 3)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("factor", torch.ones(3))

    def forward(self, x, branch=None):
        x = torch.relu(self.norm(self.first(x)))
        for i, layer in enumerate(self.branches):
            if branch is None or i == branch:
                x = torch.relu(layer(x))
        return self.last(x) * self.frozen * self.factor


KINDS = {"tensor": _mezzo.DdpTensor, "vector": _mezzo.DdpVector, "map": _mezzo.DdpMap, "tuple": _mezzo.DdpTuple,
         "opaque": _mezzo.DdpOpaque, "described": _mezzo.DdpDescribed}


def mezzo_ddp(model, group, kind="tensor", forward=None, **options):
    """A DistributedDataParallel of mezzo's around a model of Python's, whose tensors it shares."""
    parameters = list(model.named_parameters(remove_duplicate=False))
    return KINDS[kind](parameters, list(model.named_buffers()), forward or model, group, **options)


def start(folder):
    """A group of mezzo's, and Python's default one."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = torch.distributed.FileStore(str(folder / "store"), size)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    return _mezzo.ProcessGroup()


def end(group):
    group.shutdown()
    torch.distributed.destroy_process_group()


def pair(group, make=Net, **options):
    """The same model twice, wrapped by Python and by mezzo. What rank 0 has wins."""
    theirs = make(seed=int(os.environ["RANK"]))
    mine = copy.deepcopy(theirs)
    return (theirs, nn.parallel.DistributedDataParallel(theirs, **options)), (mine, mezzo_ddp(mine, group, **options))


def batch(rank, step, rows=5):
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(100 * step + rank))


def assert_same(theirs, mine, what=""):
    """Parameters, gradients and buffers, bit for bit."""
    for (name, a), b in zip(theirs.named_parameters(), mine.parameters(), strict=True):
        assert torch.equal(a, b), f"{what} {name}"
        assert (a.grad is None) == (b.grad is None), f"{what} gradient of {name}: {a.grad} {b.grad}"
        assert a.grad is None or torch.equal(a.grad, b.grad), f"{what} gradient of {name}: {a.grad} {b.grad}"
    for (name, a), b in zip(theirs.named_buffers(), mine.buffers(), strict=True):
        assert torch.equal(a, b), f"{what} buffer {name}"


def train(model, ddp, rank, steps=4, branch=lambda rank, step: (), zero=True, set_to_none=True):
    """A few steps of SGD; yields after each backward."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    for step in range(steps):
        if zero:
            optimizer.zero_grad(set_to_none=set_to_none)
        ddp(batch(rank, step), *branch(rank, step)).square().sum().backward()
        yield
        optimizer.step()


SMALL = 0.001  # MiB in a bucket, so that there are several
BRANCH = lambda rank, step: ((step + rank) % 2,)  # noqa: E731 – branch 2 is used by nobody
STATIC_BRANCH = lambda rank, step: (1,)  # noqa: E731
