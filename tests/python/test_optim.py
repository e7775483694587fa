"""mezzo's optimizers and schedules against torch.optim and transformers."""
import itertools
import random

import _mezzo
import pytest
import torch
from transformers import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
)

STEPS = 100
HALVES = [torch.float16, torch.bfloat16]


def reference(kind, groups, lr, momentum=0, nesterov=False):
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov, fused=True)
    return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind](groups, lr=lr, fused=True)


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def follow_pytorch(kind, seed, sizes, check, momentum=0, nesterov=False, dtype=torch.float32):
    """A hundred steps of both, with gradients that are missing now and then and a learning rate that changes."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    shapes = [[tuple(rng.choices(sizes, k=rng.randint(1, 3))) for _ in range(rng.randint(1, 4))] for _ in range(2)]
    decays, scales = [0.01, 0.0], [1.0, 0.5]
    lr = 10 ** rng.uniform(-4, -2)
    mine = [[torch.randn(s, generator=generator, dtype=dtype).requires_grad_() for s in group] for group in shapes]
    theirs = [[t.detach().clone().requires_grad_() for t in group] for group in mine]
    ours = _mezzo.MezzoOptimizer(kind, mine, decays, lr, momentum, nesterov, lr_scales=scales)
    oracle = reference(kind, [dict(params=g, weight_decay=d, lr=lr * s) for g, d, s in zip(theirs, decays, scales)], lr,
                       momentum, nesterov)
    for step in range(STEPS):
        for a, b in zip(itertools.chain(*mine), itertools.chain(*theirs)):
            if momentum == 0 and rng.random() < 0.1:  # PyTorch's fused SGD fails on a first gradient that comes late
                a.grad = b.grad = None
            else:
                a.grad = torch.randn(a.shape, generator=generator, dtype=dtype)
                b.grad = a.grad.clone()
        if step == STEPS // 2:
            ours.set_lr(lr / 3)
            for group, scale in zip(oracle.param_groups, scales):
                group["lr"] = lr / 3 * scale
        ours.step()
        oracle.step()
        for a, b in zip(itertools.chain(*mine), itertools.chain(*theirs)):
            check(a, b, step)


KINDS = [("adamw", 0, False), ("adam", 0, False), ("sgd", 0, False), ("sgd", 0.9, False), ("sgd", 0.9, True)]


@pytest.mark.parametrize("kind, momentum, nesterov", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_a_hundred_steps_give_pytorchs_bits_where_it_uses_vectors(kind, momentum, nesterov, seed, one_thread):
    """PyTorch computes what is left over after whole vectors in double; multiples of 16 leave nothing over."""
    def check(a, b, step):
        assert torch.equal(a, b), (step, (a - b).abs().max())

    follow_pytorch(kind, seed, [16, 32, 48, 80], check, momentum, nesterov)


@pytest.mark.parametrize("kind, momentum, nesterov", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_a_hundred_steps_of_any_shape_follow_pytorch(kind, momentum, nesterov, seed):
    """Left-over elements differ by the rounding of float32: an ulp of the weight a step, and errors of a few ulp in
    each update that are as large as a weight's own step where Adam divides noise by its root."""
    def check(a, b, step):
        torch.testing.assert_close(a, b, rtol=(step + 1) * 2**-22, atol=(step + 1) * 2**-23)

    follow_pytorch(kind, seed, [1, 3, 8, 17, 65], check, momentum, nesterov)


@pytest.mark.parametrize("kind, momentum, nesterov", KINDS)
def test_float64_parameters_give_pytorchs_bits(kind, momentum, nesterov):
    def check(a, b, step):
        assert torch.equal(a, b), step

    follow_pytorch(kind, 0, [1, 3, 17], check, momentum, nesterov, torch.float64)


def lamb_step(p, g, state, lr, decay, beta1=0.9, beta2=0.999, eps=1e-6):
    """Algorithm 2 of You et al. 2019, in float64."""
    state["t"] += 1
    state["m"] = beta1 * state["m"] + (1 - beta1) * g
    state["v"] = beta2 * state["v"] + (1 - beta2) * g * g
    direction = (state["m"] / (1 - beta1 ** state["t"])) / ((state["v"] / (1 - beta2 ** state["t"])).sqrt() + eps) + decay * p
    trust = p.norm() / direction.norm() if p.norm() > 0 and direction.norm() > 0 else 1.0
    return p - lr * trust * direction


def test_lamb_follows_its_paper():
    generator = torch.Generator().manual_seed(0)
    mine = [[torch.randn(9, 4, generator=generator).requires_grad_(), torch.zeros(5).requires_grad_()]]
    theirs = [t.detach().double() for t in mine[0]]
    states = [dict(t=0, m=torch.zeros(t.shape).double(), v=torch.zeros(t.shape).double()) for t in theirs]
    ours = _mezzo.MezzoOptimizer("lamb", mine, [0.01], 0.01)
    for _ in range(STEPS):
        for i, tensor in enumerate(mine[0]):
            tensor.grad = torch.randn(tensor.shape, generator=generator)
            theirs[i] = lamb_step(theirs[i], tensor.grad.double(), states[i], 0.01, 0.01)
        ours.step()
        for a, b in zip(mine[0], theirs):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)  # float32 rounding over 100 steps


@pytest.mark.parametrize("kind", ["adamw", "adam", "sgd", "lamb"])
def test_a_scaled_step_equals_a_plain_one_and_found_inf_changes_nothing(kind):
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(40, generator=generator)
    plain, scaled = start.clone().requires_grad_(), start.clone().requires_grad_()
    one, other = _mezzo.MezzoOptimizer(kind, [[plain]], [0.1], 0.01, 0.9), _mezzo.MezzoOptimizer(kind, [[scaled]], [0.1], 0.01, 0.9)
    for step in range(10):
        gradient = torch.randn(40, generator=generator)
        skip = step % 3 == 0  # the first step too
        scaled.grad = gradient * 1024 if not skip else torch.full((40,), float("inf"))
        before, state = scaled.detach().clone(), {k: t.clone() for k, t in other.state_dict().items()}
        other.step_scaled(torch.tensor(1024.0), torch.tensor(float(skip)))
        if skip:
            assert torch.equal(scaled, before)
            for key, tensor in state.items():
                assert torch.equal(other.state_dict()[key], tensor), key
            continue
        plain.grad = gradient.clone()
        one.step()
        assert torch.equal(plain, scaled), step  # 1024 is a power of two: unscaling is exact


@pytest.mark.parametrize("kind", ["adamw", "sgd", "lamb"])
def test_state_round_trips_and_foreign_state_is_refused(kind):
    generator = torch.Generator().manual_seed(2)
    make = lambda t: _mezzo.MezzoOptimizer(kind, [[t]], [0.1], 0.01, 0.9)
    a = torch.randn(7, generator=generator).requires_grad_()
    first = make(a)
    a.grad = torch.randn(7, generator=generator)
    first.step()
    b = a.detach().clone().requires_grad_()
    second = make(b)
    second.load_state_dict({k: t.clone() for k, t in first.state_dict().items()})
    a.grad = torch.randn(7, generator=generator)
    b.grad = a.grad.clone()
    first.step()
    second.step()
    assert torch.equal(a, b)
    with pytest.raises(ValueError, match="1 entries that belong to no parameter"):
        second.load_state_dict(first.state_dict() | {"exp_avg/other": torch.zeros(7)})
    key = next(k for k, t in first.state_dict().items() if t.dim())
    with pytest.raises(ValueError, match="expected"):
        second.load_state_dict(first.state_dict() | {key: torch.zeros(3)})


def test_parameters_that_cannot_be_trained_are_refused():
    leaf = torch.zeros(2).requires_grad_()
    for groups, message in [([[]], "no parameters"), ([[leaf], [leaf]], "1.0 is listed twice"), ([[leaf * 2]], "must be a leaf"),
                            ([[torch.zeros(2)]], "requires a gradient")]:
        with pytest.raises(ValueError, match=message):
            _mezzo.MezzoOptimizer("adamw", groups, [0.0] * len(groups), 0.1)
    sparse = _mezzo.MezzoOptimizer("adamw", [[leaf]], [0.0], 0.1)
    leaf.grad = torch.zeros(2).to_sparse()
    with pytest.raises(ValueError, match="gradient of parameter 0.0 is sparse"):
        sparse.step()


@pytest.mark.parametrize("kind, make", [
    ("constant", lambda o, w, t: get_constant_schedule_with_warmup(o, w)),
    ("linear", get_linear_schedule_with_warmup),
    ("cosine", get_cosine_schedule_with_warmup),
])
@pytest.mark.parametrize("warmup, total", [(0, 10), (3, 10), (10, 10), (5, 100)])
def test_schedules_are_those_of_transformers(kind, make, warmup, total):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = make(optimizer, warmup, total)
    for step in range(total):
        assert _mezzo.lr_factor(kind, warmup, total, step) == pytest.approx(schedule.get_last_lr()[0], abs=1e-15), step
        optimizer.step()
        schedule.step()
