"""Hysteresis against a model in Python, the limit on skips in a row, and reports of what overflowed."""
import functools
import random

import _mezzo
import mezzo
import pytest
import torch

INF, NAN = float("inf"), float("nan")


KINDS = {"plain": torch.optim.SGD, "fused": functools.partial(torch.optim.SGD, fused=True), "mezzo": mezzo.optim.SGD}


def iterate(scaler, optimizer, parameter, factor=1.0):
    parameter.grad = None
    scaler.scale((parameter * factor).sum()).backward()
    stepped = scaler.step(optimizer).stepped()
    scaler.update()
    return stepped


class Model:
    """Apex's update_scale_hysteresis: overflows are counted down, and counted afresh after a step without one."""

    def __init__(self, scale, interval, hysteresis):
        self.scale, self.interval, self.hysteresis = scale, interval, hysteresis
        self.growth, self.left = 0, hysteresis

    def update(self, overflowed):
        if overflowed:
            self.growth = 0
            self.left -= 1
            if self.left <= 0:
                self.scale *= 0.5
            return
        self.left = self.hysteresis
        self.growth += 1
        if self.growth == self.interval:
            self.scale, self.growth = self.scale * 2, 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_random_runs_follow_the_model(seed, kind):
    rng = random.Random(seed)
    for _ in range(20):
        hysteresis, interval, share = rng.randint(1, 5), rng.randint(1, 6), rng.choice([0.1, 0.5, 0.9])
        model = Model(2.0**16, interval, hysteresis)
        scaler = mezzo.GradScaler("cpu", growth_interval=interval, hysteresis=hysteresis)
        parameter = torch.ones(2, requires_grad=True)
        optimizer = KINDS[kind]([parameter], 0.1)
        for _ in range(30):
            overflows = rng.random() < share
            iterate(scaler, optimizer, parameter, rng.choice([INF, NAN, -INF]) if overflows else 1e-3)
            model.update(overflows)
            assert scaler.get_scale() == model.scale
            assert scaler.state_dict()["_growth_tracker"] == model.growth
            if hysteresis > 1:
                assert scaler.state_dict()["_hysteresis_tracker"] == max(model.left, 0)
            if rng.random() < 0.1:  # through a checkpoint
                state = scaler.state_dict()
                scaler = mezzo.GradScaler("cpu", growth_interval=interval, hysteresis=hysteresis)
                scaler.load_state_dict(state)


def test_states_pass_to_pytorch_and_back():
    scaler = mezzo.GradScaler("cpu", hysteresis=3)
    parameter = torch.ones(1, requires_grad=True)
    iterate(scaler, torch.optim.SGD([parameter], 0.1), parameter, INF)
    theirs = torch.amp.GradScaler("cpu")
    theirs.load_state_dict(scaler.state_dict())
    assert theirs.get_scale() == 65536
    scaler.load_state_dict(theirs.state_dict())
    assert scaler.state_dict()["_hysteresis_tracker"] == 3, "a state without the entry starts afresh"
    assert "_hysteresis_tracker" not in mezzo.GradScaler("cpu").state_dict()


@pytest.mark.parametrize("options, message", [
    (dict(hysteresis=0), "hysteresis must be between 1"),
    (dict(hysteresis=2, reproduce_pytorch=True), "hysteresis is 2, but PyTorch has none"),
    (dict(max_consecutive_skips=-1), "max_consecutive_skips must be 0 .no limit. to"),
])
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        mezzo.GradScaler("cpu", **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [1, 3])
def test_the_limit_counts_skips_in_a_row_and_names_the_cause(kind, limit):
    scaler = mezzo.GradScaler("cpu", max_consecutive_skips=limit, init_scale=4096)
    parameter = torch.ones(2, requires_grad=True)
    optimizer = KINDS[kind]([parameter], 0.1)
    for _ in range(3):  # a good step in between starts the count afresh
        for _ in range(limit - 1):
            iterate(scaler, optimizer, parameter, NAN)
        iterate(scaler, optimizer, parameter)
    for _ in range(limit - 1):
        iterate(scaler, optimizer, parameter, torch.tensor([1e-3, INF]))
    before, scale = parameter.detach().clone(), scaler.get_scale()
    with pytest.raises(RuntimeError, match=f"the last {limit} iterations in a row were skipped.*1 of 1 gradients of .* held "
                       r"inf or NaN: .*\[2\] \(1 inf, 0 NaN, largest finite .*lower the learning rate"):
        iterate(scaler, optimizer, parameter, torch.tensor([1e-3, INF]))
    assert torch.equal(parameter, before) and scaler.get_scale() == scale and parameter.grad is not None


def test_nan_is_said_to_stay():
    scaler = mezzo.GradScaler("cpu", max_consecutive_skips=1)
    parameter = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="NaN stays NaN at any scale: find its source with FiniteTracer"):
        iterate(scaler, torch.optim.SGD([parameter], 0.1), parameter, NAN)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_report_counts_as_pytorch_does(dtype):
    rng = random.Random(0)
    torch.manual_seed(0)
    parameters = []
    for i in range(12):
        shape = [rng.randint(0 if i == 5 else 1, 9) for _ in range(rng.randint(0, 3))]
        parameter = torch.zeros(shape, dtype=dtype, requires_grad=True)
        gradient = torch.randn(shape).to(dtype)
        for value in rng.sample([INF, -INF, NAN], rng.randint(0, 3)):
            gradient[torch.rand(shape) < 0.3] = value
        if i != 7:
            parameter.grad = gradient
        parameters.append(parameter)
    report = _mezzo.overflow_report(parameters)
    bad = [i for i, p in enumerate(parameters) if p.grad is not None and not p.grad.isfinite().all()]
    assert 2 < len(bad) < 11
    assert report.num_gradients == 11 and [g.index for g in report.overflowed] == bad
    for entry in report.overflowed:
        gradient = parameters[entry.index].grad
        finite = gradient[gradient.isfinite()].abs()
        assert entry.parameter == f"parameter {entry.index} of group 0" and entry.shape == list(gradient.shape)
        assert (entry.num_inf, entry.num_nan) == (gradient.isinf().sum(), gradient.isnan().sum())
        assert entry.largest_finite == (finite.max() if len(finite) else 0)
    assert report.has_nan()
    assert report.to_string(99).count("\n") == 2 + len(bad) and report.summary(2).endswith(", …")
    assert report.to_string(1).endswith(f"  … and {len(bad) - 1} more\n")


def test_a_report_of_sparse_and_of_clean_gradients():
    parameter = torch.zeros(6, 2, requires_grad=True)
    parameter.grad = torch.sparse_coo_tensor([[1, 4, 1]], [[INF, 1.0], [2.0, 3.0], [-INF, 1.0]], (6, 2))
    (entry,) = _mezzo.overflow_report([parameter]).overflowed
    assert (entry.num_inf, entry.num_nan, entry.largest_finite, entry.num_values, entry.shape) == (0, 1, 3.0, 4, [6, 2])
    parameter.grad = torch.ones(6, 2)
    report = _mezzo.overflow_report([parameter])
    assert not report.overflowed and not report.has_nan() and report.num_gradients == 1
    assert _mezzo.overflow_report([torch.zeros(2, requires_grad=True)]).num_gradients == 0
