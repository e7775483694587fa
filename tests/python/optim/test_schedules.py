"""mezzo's learning-rate schedules against those of transformers and PyTorch."""
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


def ours(name, warmup, total, **settings):
    schedule = _mezzo.LrSchedule(name, warmup, total)
    for key, value in settings.items():
        setattr(schedule, key, value)
    return schedule


RAMPS = {"linear": _mezzo.RampShape.linear, "cosine": _mezzo.RampShape.cosine, "1-sqrt": _mezzo.RampShape.one_minus_sqrt}

CASES = [
    ("linear", {}, {}),
    ("cosine", {}, {}),
    ("cosine", dict(num_cycles=1.25), dict(num_cycles=1.25)),
    ("cosine_with_restarts", {}, {}),
    ("cosine_with_restarts", dict(num_cycles=3), dict(num_cycles=3)),
    ("polynomial", dict(lr_end=LR / 8), dict(min_lr_ratio=1 / 8)),
    ("polynomial", dict(lr_end=0.0, power=2.5), dict(power=2.5)),
    ("constant_with_warmup", {}, {}),
    ("inverse_sqrt", {}, {}),
    ("inverse_sqrt", dict(timescale=40), dict(timescale=40)),
    ("cosine_with_min_lr", dict(min_lr=LR / 4), dict(min_lr_ratio=0.25)),
    ("cosine_with_min_lr", dict(min_lr_rate=0.1, num_cycles=2.0), dict(min_lr_ratio=0.1, num_cycles=2.0)),
    ("cosine_warmup_with_min_lr", dict(min_lr_rate=0.1), dict(min_lr_ratio=0.1)),
    ("cosine_warmup_with_min_lr", dict(min_lr_rate=0.0, warmup_lr_rate=0.3), dict(warmup_lr_ratio=0.3)),
    ("warmup_stable_decay", dict(num_decay_steps=4), dict(decay_steps=4)),
    *[("warmup_stable_decay", dict(num_decay_steps=5, warmup_type=w, decay_type=d, min_lr_ratio=0.2),
       dict(decay_steps=5, warmup_shape=RAMPS[w], decay_shape=RAMPS[d], min_lr_ratio=0.2))
      for w in RAMPS for d in RAMPS],
]


@pytest.mark.parametrize("name, theirs, mine", CASES)
@pytest.mark.parametrize("warmup, total", [(0, 10), (1, 10), (3, 10), (5, 100)])
def test_factors_are_those_of_transformers(name, theirs, mine, warmup, total):
    schedule = ours(name, warmup, total, **mine)
    for step, factor in enumerate(factors(name, warmup, total, **theirs)):
        # Both compute in double; a cosine near its end subtracts numbers near 1.
        assert schedule.factor(step) == pytest.approx(factor, rel=1e-12, abs=1e-14), step


def test_constant_is_constant_and_warms_up_if_asked():
    assert [ours("constant", 0, 10).factor(step) for step in range(12)] == list(factors("constant", 0, 10))[:12]
    assert [ours("constant", 4, 10).factor(step) for step in range(6)] == list(factors("constant_with_warmup", 4, 10))[:6]


def test_every_schedule_of_transformers_is_known_and_finite_in_every_step():
    for kind in SchedulerType:
        for warmup, total in [(0, 0), (0, 1), (5, 5), (7, 5), (2, 9)]:
            for step in range(total + 3):
                assert 0 <= ours(kind.value, warmup, total).factor(step) <= 1, (kind, warmup, total, step)
    with pytest.raises(ValueError, match="'step' is not known: linear, cosine, cosine_with_restarts, polynomial"):
        ours("step", 0, 1)


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
        extra["reset_after"] = reset
    else:
        oracle = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max" if maximize else "min",
                                                            threshold_mode="rel" if relative else "abs", **common)
    make = lambda: _mezzo.MetricSchedule(kind, lr, relative=relative, maximize=maximize, **common, **extra)
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
        mine.observe(metric)
        oracle.step(metric)
        assert mine.lr() == their_lr(), step
        changes += mine.lr() != before
        if step % 40 == 17:  # goes on from its state alone
            state, mine = mine.state_dict(), make()
            mine.load_state_dict(state)
    assert changes > 0


def test_a_metric_schedule_refuses_what_it_cannot_do():
    good = dict(factor=0.5, patience=1, threshold=0.0, relative=True, cooldown=0)
    with pytest.raises(ValueError, match="expected kReduceLrOnPlateau or kGreedy"):
        _mezzo.MetricSchedule("linear", 0.1, **good)
    with pytest.raises(ValueError, match=r"factor must be in \(0, 1\), got 1"):
        _mezzo.MetricSchedule("greedy", 0.1, **(good | dict(factor=1.0)))
    schedule = _mezzo.MetricSchedule("greedy", 0.1, **good)
    with pytest.raises(ValueError, match="no entry lr"):
        schedule.load_state_dict({})
