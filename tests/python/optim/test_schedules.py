"""mezzo's learning-rate schedules against the schedules of transformers and PyTorch."""
import random

import _mezzo
import pytest
import torch
from transformers import get_scheduler
from transformers.optimization import GreedyLR
from transformers.trainer_utils import SchedulerType

LR = 0.25  # a power of two: factors come out of the division by it exactly


def factors(name, warmup, total, **arguments):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=LR)
    schedule = get_scheduler(name, optimizer, warmup, total, scheduler_specific_kwargs=arguments)
    for _ in range(total + 3):  # a schedule is asked beyond the end too
        yield schedule.get_last_lr()[0] / LR
        optimizer.step()
        schedule.step()


RAMPS = ["linear", "cosine", "1-sqrt"]

CASES = [
    ("linear", {}, {}),
    ("cosine", {}, {}),
    ("cosine", dict(num_cycles=1.25), dict(num_cycles=1.25)),
    ("cosine_with_restarts", {}, {}),
    ("cosine_with_restarts", dict(num_cycles=3), dict(num_cycles=3)),
    ("polynomial", dict(lr_end=LR / 8), dict(min_lr_rate=1 / 8)),
    ("polynomial", dict(lr_end=0.0, power=2.5), dict(power=2.5)),
    ("constant_with_warmup", {}, {}),
    ("inverse_sqrt", {}, {}),
    ("inverse_sqrt", dict(timescale=40), dict(timescale=40)),
    ("cosine_with_min_lr", dict(min_lr=LR / 4), dict(min_lr_rate=0.25)),
    ("cosine_with_min_lr", dict(min_lr_rate=0.1, num_cycles=2.0), dict(min_lr_rate=0.1, num_cycles=2.0)),
    ("cosine_warmup_with_min_lr", dict(min_lr_rate=0.1), dict(min_lr_rate=0.1)),
    ("cosine_warmup_with_min_lr", dict(min_lr_rate=0.0, warmup_lr_rate=0.3), dict(warmup_lr_rate=0.3)),
    ("warmup_stable_decay", dict(num_decay_steps=4), dict(num_decay_steps=4)),
    *[("warmup_stable_decay", dict(num_decay_steps=5, warmup_type=w, decay_type=d, min_lr_ratio=0.2),
       dict(num_decay_steps=5, warmup_type=w, decay_type=d, min_lr_rate=0.2))
      for w in RAMPS for d in RAMPS],
]


@pytest.mark.parametrize("name, theirs, mine", CASES)
@pytest.mark.parametrize("warmup, total", [(0, 10), (1, 10), (3, 10), (5, 100)])
def test_factors_are_those_of_transformers(name, theirs, mine, warmup, total):
    schedule = _mezzo.get_schedule(name, warmup, total, **mine)
    for step, factor in enumerate(factors(name, warmup, total, **theirs)):
        # Both compute in double; a cosine near its end subtracts numbers near 1.
        assert schedule(step) == pytest.approx(factor, rel=1e-12, abs=1e-14), step


def test_constant_is_constant_and_warms_up_if_asked():
    assert [_mezzo.get_schedule("constant", 0, 10)(step) for step in range(12)] == list(factors("constant", 0, 10))[:12]
    assert [_mezzo.get_schedule("constant", 4, 10)(step) for step in range(6)] == list(factors("constant_with_warmup", 4, 10))[:6]


def test_every_schedule_of_transformers_is_known_and_finite_in_every_step():
    for kind in SchedulerType:
        for warmup, total in [(0, 1), (5, 5), (7, 5), (2, 9)]:
            for step in range(total + 3):
                assert 0 <= _mezzo.get_schedule(kind.value, warmup, total)(step) <= 1, (kind, warmup, total, step)
    with pytest.raises(ValueError, match="'step' is not known: linear, cosine, cosine_with_restarts, polynomial"):
        _mezzo.get_schedule("step", 0, 1)
    with pytest.raises(ValueError, match="'linear' depends on the number of training steps. Set num_training_steps."):
        _mezzo.get_schedule("linear", 0, 0)
    with pytest.raises(ValueError, match="decay_type 'sqrt' is not known. Pass linear, cosine or 1-sqrt."):
        _mezzo.get_schedule("warmup_stable_decay", 0, 1, decay_type="sqrt")


def torch_factors(make, steps):
    """Of a scheduler of torch.optim.lr_scheduler."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=LR)
    schedule = make(optimizer)
    for _ in range(steps):
        yield schedule.get_last_lr()[0] / LR
        optimizer.step()
        schedule.step()


sch = torch.optim.lr_scheduler
TORCH_CASES = [
    (lambda o: sch.StepLR(o, 3, gamma=0.3), lambda: _mezzo.step_lr(3, 0.3), 20),
    (lambda o: sch.MultiStepLR(o, [2, 3, 3, 9], gamma=0.5), lambda: _mezzo.multi_step_lr([2, 3, 3, 9], 0.5), 20),
    (lambda o: sch.ExponentialLR(o, 0.9), lambda: _mezzo.exponential_lr(0.9), 20),
    (lambda o: sch.SequentialLR(o, [sch.ExponentialLR(o, 0.9), sch.StepLR(o, 2, 0.5), sch.ExponentialLR(o, 0.7)], [4, 9]),
     lambda: _mezzo.sequential_lr([_mezzo.exponential_lr(0.9), _mezzo.step_lr(2, 0.5), _mezzo.exponential_lr(0.7)], [4, 9]),
     20),
    *[(lambda o, t=total, p=pct, a=anneal, h=phases: sch.OneCycleLR(o, LR, total_steps=t, pct_start=p, anneal_strategy=a,
                                                                     div_factor=20, final_div_factor=1e3, three_phase=h),
       lambda t=total, p=pct, a=anneal, h=phases: _mezzo.one_cycle_lr(t, p, a, 20, 1e3, h), total)
      for total in (7, 30) for pct in (0.3, 0.45) for anneal in ("cos", "linear") for phases in (False, True)],
]


@pytest.mark.parametrize("theirs, mine, steps", TORCH_CASES)
def test_factors_are_those_of_torch_optim(theirs, mine, steps):
    schedule = mine()
    for step, factor in enumerate(torch_factors(theirs, steps)):
        # PyTorch multiplies step by step, and rounds each time.
        assert schedule(step) == pytest.approx(factor, rel=1e-12, abs=1e-15), step


def test_schedules_of_torch_optim_refuse_what_has_no_factors():
    for make, message in [
        (lambda: _mezzo.step_lr(0, 0.1), "step_lr: step_size must be at least 1, got 0"),
        (lambda: _mezzo.multi_step_lr([3, 2], 0.1), "multi_step_lr: milestones must increase, got 3, 2"),
        (lambda: _mezzo.sequential_lr([_mezzo.exponential_lr(1)], [2]), "expected a milestone between any two of 1 schedules"),
        (lambda: _mezzo.one_cycle_lr(0, 0.3, "cos", 25, 1e4, False), "one_cycle_lr: total_steps must be above 0"),
        (lambda: _mezzo.one_cycle_lr(9, 0.3, "cosine", 25, 1e4, False), "anneal_strategy must be cos or linear, got 'cosine'"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()


def make_pair(kind, rng):
    """Both schedules with the same settings, drawn at random; the function returns torch's current rate."""
    lr = 10 ** rng.uniform(-2, 0)
    common = dict(factor=rng.uniform(0.1, 0.95), patience=rng.randint(0, 3), threshold=rng.choice([0.0, 1e-4, 0.05]),
                  cooldown=rng.randint(0, 3), min_lr=rng.choice([0.0, lr / 4]))
    relative, maximize = rng.random() < 0.5, rng.random() < 0.3
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=lr)
    extra = {}
    if kind == "greedy":
        extra = dict(warmup=rng.randint(0, 3), max_lr=lr * rng.uniform(1, 3))
        reset = rng.choice([2, 500])
        oracle = GreedyLR(optimizer, mode="max" if maximize else "min", threshold_mode="rel" if relative else "abs",
                          reset_start=reset, **common, **extra)
        extra["reset_start"] = reset
    else:
        oracle = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max" if maximize else "min",
                                                            threshold_mode="rel" if relative else "abs", **common)
    make = lambda: _mezzo.ReduceLROnPlateau(kind == "greedy", lr, mode="max" if maximize else "min",
                                            threshold_mode="rel" if relative else "abs", **common, **extra)
    return make, oracle, lambda: optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("kind", ["reduce_lr_on_plateau", "greedy"])
@pytest.mark.parametrize("seed", range(20))
def test_schedules_that_follow_a_metric_are_those_of_pytorch_and_transformers(kind, seed):
    rng = random.Random(seed)
    make, oracle, their_lr = make_pair(kind, rng)
    mine, metric, changes = make(), 1.0, 0
    for step in range(150):
        metric = float("nan") if rng.random() < 0.02 else 1.0 + 0.5 * rng.random() - step * rng.choice([0, 0.01])
        before = mine.lr()
        mine.step(metric)
        oracle.step(metric)
        assert mine.lr() == their_lr(), step
        changes += mine.lr() != before
        if step % 40 == 17:  # goes on from its state alone
            state, mine = mine.state_dict(), make()
            mine.load_state_dict(state)
    assert changes > 0


def test_a_schedule_of_a_metric_refuses_what_it_cannot_do():
    for wrong, message in [
        (dict(factor=1.0), r"factor must be in \(0, 1\), got 1"),
        (dict(patience=-1), "patience must be at least 0, got -1"),
        (dict(mode="least"), "mode must be min or max, got 'least'"),
        (dict(threshold_mode="both"), "threshold_mode must be rel or abs, got 'both'"),
    ]:
        with pytest.raises(ValueError, match=message):
            _mezzo.ReduceLROnPlateau(False, 0.1, **wrong)
    with pytest.raises(ValueError, match="no entry lr"):
        _mezzo.ReduceLROnPlateau(True, 0.1).load_state_dict({})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_averages_are_those_of_swa_utils(dtype):
    from torch.optim import swa_utils
    torch.manual_seed(0)
    models = [[(torch.randn(33) * 8).to(dtype), torch.randn(4, 5).to(dtype)] for _ in range(9)]
    cases = [(swa_utils.get_ema_multi_avg_fn(decay), lambda *arguments, d=decay: _mezzo.ema_average(d, *arguments))
             for decay in (0.9, 0.3)]
    if dtype.is_floating_point:  # PyTorch has no mean of integers
        cases.append((swa_utils.get_swa_multi_avg_fn(), _mezzo.swa_average))
    for theirs, ours in cases:
        expected, averaged = ([t.clone() for t in models[0]] for _ in range(2))
        for count, model in enumerate(models[1:], 1):
            theirs(expected, model, count)
            ours(averaged, model, count)
        assert all(torch.equal(a, b) for a, b in zip(expected, averaged)), dtype
    with pytest.raises(ValueError, match=r"decay must be in \[0, 1\], got 2"):
        _mezzo.ema_average(2, [], [], 1)
