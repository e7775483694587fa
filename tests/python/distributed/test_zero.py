"""ZeroRedundancyOptimizer: the numbers of one optimizer on one process, PyTorch's partition, and states that move between
numbers of ranks."""
import functools
import random

import _mezzo
import pytest
import ranks
import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

INF = float("inf")
STEPS = 8
SHAPES = dict(embedding=(50, 16), dense=(16, 24), bias=(24,), norm=(24,), out=(24, 3), out_bias=(3,), never=(5, 5),
              scalar=())
KINDS = ["adamw", "adam", "sgd", "lamb"]


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [(name, torch.randn(shape, generator=generator).to(dtype).requires_grad_())
            for name, shape in SHAPES.items()]


def set_gradients(named, step, scale, overflow_at=None):
    """As if averaged over the ranks: the same on each. `never` has none; `bias` not in every step."""
    generator = torch.Generator().manual_seed(100 + step)
    for name, parameter in named:
        gradient = (torch.randn(parameter.shape, generator=generator) * scale).to(parameter.dtype)
        if name == "never" or (name == "bias" and step % 3 == 0):
            parameter.grad = None
            continue
        parameter.grad = gradient
        if name == overflow_at:
            parameter.grad.view(-1)[0] = INF


def train(group, kind, how, steps=range(STEPS), state=None):
    """Trains alone if `group` is None. Returns the final state."""
    named = parameters(how.get("dtype", torch.float32))
    if state:
        for name, parameter in named:
            parameter.data.copy_(torch.tensor(state["weights"][name]).view(parameter.shape))
    setup = _mezzo.OptimizerSetup(named, kind, 0.02, how.get("max_grad_norm", 0.0), how.get("seed"), group,
                                  how.get("masters"), bucket_bytes=how.get("bucket_bytes", 25 << 20))
    if state:
        setup.load_state_dict({k: torch.tensor(v) for k, v in state["state"].items()})
    scaled = how.get("scaled", False)
    own_scaler = how.get("own_scaler", False)
    scaler = _mezzo.agreeing_grad_scaler(None if own_scaler else group) if scaled else None
    log = []
    for step in steps:
        setup.set_lr(0.02 / (1 + step))
        scale = scaler.scale(torch.ones(())).item() if scaler else 1.0
        # On one rank alone, as if ranks differed: each looks at the gradients that it is to apply.
        overflows = step in how.get("overflows_in", ()) and (group is None or setup.owns(how["overflow_at"]))
        set_gradients(named, step, scale, how["overflow_at"] if overflows else None)
        if how.get("accumulate"):
            setup.accumulate_gradients()
            set_gradients(named, step + 1000, scale)
            setup.accumulate_gradients()
        if how.get("unscales"):
            setup.unscaled_by(scaler)
        stepped = setup.scaled_by(scaler) if scaler else setup.step()
        if scaler:
            scaler.update()
        norm, found_inf = setup.grad_norm(), setup.found_inf()
        outcome = None if own_scaler else (stepped, scale)
        log.append((outcome, None if norm is None or not torch.isfinite(norm) else norm.item(),
                    None if found_inf is None else found_inf.item()))
        setup.zero_grad()
        assert all(p.grad is None for _, p in named)
    to = how.get("to", 0)
    result = dict(model={n: p.detach().float().tolist() for n, p in named}, log=log,
                  state={k: v.tolist() for k, v in setup.state_dict(to).items()},
                  weights={k: v.float().tolist() for k, v in setup.weights(to).items()})
    if group:
        result.update(statistics=setup.statistics(), state_bytes=setup.state_bytes(),
                      own_state=list(setup.own_state_dict()), owned=[n for n in SHAPES if setup.owns(n)])
        if how.get("masters"):
            result["own_masters"] = list(setup.own_masters())
    return result


def train_all(rank, jobs):
    group = _mezzo.ProcessGroup()
    results = [train(group, *job) for job in jobs]
    group.shutdown()
    return results


HOWS = {
    "plain": dict(),
    "small messages": dict(bucket_bytes=200),
    "scaler": dict(scaled=True, overflows_in=(2, 3), overflow_at="dense"),
    "scaler, another tensor overflows": dict(scaled=True, overflows_in=(1, 2, 6), overflow_at="out_bias"),
    "clipped": dict(max_grad_norm=1.0),
    "measured, with overflows": dict(max_grad_norm=INF, overflows_in=(1, 4, 5), overflow_at="out"),
    "clipped, scaler": dict(max_grad_norm=1.0, scaled=True, overflows_in=(2, 5), overflow_at="scalar"),
    "clipped, unscaled first": dict(max_grad_norm=1.0, scaled=True, unscales=True, overflows_in=(2, 5), overflow_at="scalar"),
    "unscaled first, scalers that do not agree": dict(scaled=True, unscales=True, own_scaler=True, overflows_in=(2, 5),
                                                      overflow_at="scalar"),
    "unscaled first": dict(scaled=True, unscales=True, overflows_in=(2, 5), overflow_at="scalar"),
    "bf16, stochastic": dict(dtype=torch.bfloat16, seed=7),
    "fp16 masters": dict(masters=torch.float16, scaled=True, overflows_in=(3,), overflow_at="dense"),
    "fp16 masters, clipped, unscaled first": dict(masters=torch.float16, max_grad_norm=1.0, scaled=True, unscales=True,
                                                  overflows_in=(5,), overflow_at="dense"),
    "bf16 masters, clipped": dict(masters=torch.bfloat16, max_grad_norm=1.0),
    "fp16 masters, accumulated": dict(masters=torch.float16, scaled=True, accumulate=True),
}


RESUMED = [("adamw", {}), ("lamb", dict(masters=torch.bfloat16)), ("sgd", dict(scaled=True))]
FIRST, SECOND = range(4), range(4, 8)  # halves of the steps


@functools.cache
def alone(kind, name):
    return train(None, kind, HOWS[name])


@pytest.fixture(scope="module")
def runs():
    """By number of ranks, for every job: each rank's result. All in one group of processes, as starting those
    takes longest. "half" is a run of the first steps, "resumed" one that goes on from the half run of one rank
    less."""
    result = {1: {("half", i): [train(None, *job, FIRST)] for i, job in enumerate(RESUMED)}}
    for world_size in (2, 3):
        jobs = {(kind, name): (kind, how) for kind in KINDS for name, how in HOWS.items()}
        jobs |= {("half", i): (*job, FIRST) for i, job in enumerate(RESUMED)}
        jobs |= {("resumed", i): (*job, SECOND, result[world_size - 1]["half", i][0]) for i, job in enumerate(RESUMED)}
        by_rank = ranks.run(world_size, train_all, list(jobs.values()))
        result[world_size] = {key: [rank[i] for rank in by_rank] for i, key in enumerate(jobs)}
    result[1] |= {("resumed", i): [train(None, *job, SECOND, result[3]["half", i][0])] for i, job in enumerate(RESUMED)}
    return result


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("name", HOWS)
def test_ranks_together_equal_one_process(runs, world_size, name):
    how = HOWS[name]
    for kind in KINDS:
        together = runs[world_size][kind, name]
        expected = alone(kind, name)
        for rank, result in enumerate(together):
            # Every tensor is updated by the same kernel, and norms are summed in double and rounded
            # to float32, to the same number here. All is bit-identical.
            assert result["model"] == expected["model"], (kind, rank)
            assert result["log"] == expected["log"], (kind, rank)
        assert together[0]["state"] == expected["state"] and together[0]["weights"] == expected["weights"], kind
        assert all(not other["state"] and not other["weights"] for other in together[1:])
        assert [found_inf for *_, found_inf in expected["log"]].count(1.0) >= len(how.get("overflows_in", ()))


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_run_resumes_with_another_number_of_ranks(runs, world_size):
    for i, (kind, how) in enumerate(RESUMED):
        unbroken = train(None, kind, how)
        resumed = runs[world_size]["resumed", i]
        assert resumed[0]["state"] == unbroken["state"] and resumed[0]["weights"] == unbroken["weights"]
        for result in resumed:
            assert result["model"] == unbroken["model"]


@pytest.mark.parametrize("world_size", [2, 3])
def test_state_and_masters_are_of_the_share_alone(runs, world_size):
    runs = runs[world_size]
    plain = runs["adamw", "plain"]
    whole = set(plain[0]["state"])
    assert sorted(key for result in plain for key in result["own_state"]) == sorted(whole)
    assert sorted(name for result in plain for name in result["owned"]) == sorted(SHAPES)
    elements = {name: torch.Size(shape).numel() for name, shape in SHAPES.items()}
    for result in plain:
        assert {key.split("/")[1] for key in result["own_state"]} == set(result["owned"]) - {"never"}
        # Two float32 moments of each element, and one step count a tensor.
        assert result["state_bytes"] == sum(8 * elements[n] + 4 for n in result["owned"] if n != "never")
    mastered = runs["adamw", "bf16 masters, clipped"]
    for result in mastered:
        assert sorted(result["own_masters"]) == sorted(result["owned"])


@pytest.mark.parametrize("world_size", [2, 3])
def test_what_travels_is_counted(runs, world_size):
    runs = runs[world_size]
    elements = {name: torch.Size(shape).numel() for name, shape in SHAPES.items()}
    for name, bytes_each, steps in [("plain", 4, STEPS), ("small messages", 4, STEPS), ("bf16, stochastic", 2, STEPS),
                                    ("bf16 masters, clipped", 2, STEPS), ("scaler", 4, STEPS - 2)]:
        for result in runs["adamw", name]:
            share = sum(elements[n] for n in result["owned"])
            statistics = result["statistics"]
            assert statistics["steps"] == steps, name
            assert statistics["bytes_sent"] == steps * bytes_each * share, name
            assert statistics["bytes_received"] == steps * bytes_each * (sum(elements.values()) - share), name
            if name == "small messages":
                assert statistics["messages"] > steps * len(runs["adamw", name])
            else:
                assert statistics["messages"] == steps * len(runs["adamw", name])  # one a rank


# --- Against PyTorch ---

def compare_with_torch(rank, world_size, port):
    """Parameters of PyTorch's ZeroRedundancyOptimizer with Adam, and of mezzo's, after a few steps; and its partition."""
    import torch.distributed as dist
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    theirs, mine = parameters(), parameters()
    groups = [dict(params=[p for _, p in theirs if p.dim() > 1], weight_decay=0.01, lr=0.02),
              dict(params=[p for _, p in theirs if p.dim() <= 1], weight_decay=0.0, lr=0.01)]
    zero = ZeroRedundancyOptimizer(groups, torch.optim.Adam, lr=0.02)
    group = _mezzo.ProcessGroup()
    setup = _mezzo.OptimizerSetup(mine, "adam", 0.02, group=group)
    for step in range(STEPS):
        for named, optimizer in ((theirs, zero), (mine, setup)):
            set_gradients(named, step, 1.0)
            optimizer.step()
    state_of_this_rank = [g["params"] for g in zero._partition_parameters()[rank]]
    owned = [name for name, p in theirs if any(p is q for params in state_of_this_rank for q in params)]
    result = [(p.tolist(), q.tolist()) for (_, p), (_, q) in zip(theirs, mine)], owned, \
        [name for name in SHAPES if setup.owns(name)]
    group.shutdown()
    dist.destroy_process_group()
    return result


def test_numbers_and_partition_are_torchs():
    world_size = 3
    for weights, their_names, my_names in ranks.run(world_size, compare_with_torch, world_size, ranks.free_port()):
        assert sorted(their_names) == sorted(my_names)
        for theirs, mine in weights:
            # PyTorch's default Adam divides in another order than its fused one: a
            # few roundings a step.
            torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs), rtol=1e-5, atol=1e-6)


def test_partitions_are_torchs():
    class Torchs(ZeroRedundancyOptimizer):
        """No process group, just the partition."""

        def __init__(self, groups, world_size):
            self._partition_parameters_cache = []
            self.world_size = world_size
            self.param_groups = groups

    rng = random.Random(0)
    for _ in range(200):
        world_size = rng.randint(1, 6)
        groups = [[torch.empty(rng.choice([1, 2, 8, 8, 32, rng.randint(0, 100)])) for _ in range(rng.randint(0, 12))]
                  for _ in range(rng.randint(1, 3))]
        names = {id(p): f"{g}.{i}" for g, params in enumerate(groups) for i, p in enumerate(params)}
        theirs = Torchs([dict(params=params) for params in groups], world_size)._partition_parameters()
        owner = {names[id(p)]: rank for rank, share in enumerate(theirs) for group in share for p in group["params"]}
        assert _mezzo.partition_parameters(groups, world_size) == owner


# --- Every rank reports an error ---

def go_wrong(rank):
    group = _mezzo.ProcessGroup()
    errors = []

    def expect_error(call):
        try:
            call()
            errors.append("no error")
        except (RuntimeError, ValueError) as error:
            errors.append(str(error).splitlines()[0])

    named = parameters()
    expect_error(lambda: _mezzo.OptimizerSetup(named[:-1] if rank == 1 else named, "adam", 0.1, group=group))
    expect_error(lambda: _mezzo.OptimizerSetup(parameters(), "adam", 0.1, group=group, masters=torch.bfloat16,
                                               keeps_all_masters=True))
    setup = _mezzo.OptimizerSetup(parameters(), "adam", 0.1, group=group, masters=torch.bfloat16)
    expect_error(setup.masters_to_float32)
    expect_error(lambda: setup.load_state_dict({"exp_avg/unknown": torch.ones(1)}))
    expect_error(lambda: setup.load_state_dict({"step/bias": torch.ones(()), "exp_avg/bias": torch.ones(7),
                                                "exp_avg_sq/bias": torch.ones(24)}))
    weights = {name: parameter.detach() for name, parameter in parameters()}
    setup.load_masters(weights)
    loaded = setup.weights(1)
    assert not loaded if rank == 0 else all(torch.equal(loaded[name], weights[name]) for name in weights)
    del weights["bias"]
    expect_error(lambda: setup.load_masters(weights))
    return errors


def test_errors_name_what_is_wrong():
    results = ranks.run(2, go_wrong)
    for rank, (differ, stale, to_float32, unknown, shape, missing) in enumerate(results):
        assert "the parameter list of ZeroRedundancyOptimizer differs between ranks: 'mezzo::Adam of 8 tensors" in differ
        assert "has a master of" in stale and "make the masters by ShardedMasterWeights" in stale
        assert "to_float32() needs all masters" in to_float32
        assert "1 entries that belong to no parameter" in unknown
        assert "state entry exp_avg/bias is [7], expected [24]" in shape  # also if it is another rank's
        assert "has no entry bias" in missing


def step_with_closure(rank):
    group = _mezzo.ProcessGroup()
    named = parameters()
    setup = _mezzo.OptimizerSetup(named, "adamw", 0.1, group=group)

    def closure():
        set_gradients(named, 1, 1.0)
        return torch.tensor(3.0)

    loss = setup.step_with(closure)
    named[0][1].grad.view(-1)[5] = INF
    summary = setup.overflow_summary()
    bias = named[2][1].tolist()

    set_gradients(named, 2, 1.0)
    if rank == 1:  # which cannot go on, then
        owned = next(p for n, p in named if setup.owns(n) and n != "never" and p.dim() > 0)
        owned.grad = owned.grad.to_sparse()
    try:
        setup.step()
    except (RuntimeError, ValueError) as error:
        return loss.item(), summary, bias, str(error)


def test_closures_overflow_reports_and_failing_ranks():
    single = parameters()
    setup = _mezzo.OptimizerSetup(single, "adamw", 0.1)
    set_gradients(single, 1, 1.0)
    setup.step()
    results = ranks.run(2, step_with_closure)
    for loss, summary, bias, _ in results:
        assert loss == 3.0 and bias == single[2][1].tolist()
        assert summary.startswith("1 of 7 gradients of mezzo::distributed::ZeroRedundancyOptimizer held inf or NaN: "
                                  "embedding [50, 16] (1 inf, 0 NaN, largest finite ")
    assert "does not support sparse gradients" in results[1][3]
    assert results[0][3].startswith("rank 1 failed: mezzo::AdamW does not support sparse gradients")
