"""mezzo's DistributedDataParallel beside Python's: the same model on the same data in the same processes, on Gloo. Where
both reduce the same buckets the bits must be the same, so equality is exact unless a test says otherwise."""
import functools

import _mezzo
import pytest
import ranks
import torch
from ddp_pair import BRANCH, SMALL, STATIC_BRANCH, Net, assert_same, batch, end, mezzo_ddp, pair, start, train
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

def side_by_side(group, rank, branch=lambda rank, step: (), steps=4, set_to_none=True, hooks=None, **options):
    theirs, mine = pair(group, **options)
    assert_same(theirs[0], mine[0], "at start")
    if hooks:
        # Without NCCL, Python refuses bfloat16 hooks by their names, though Gloo can add bfloat16
        # up.
        theirs[1].register_comm_hook(None, lambda state, bucket: hooks[0](state, bucket))
        mine[1].register_comm_hook(hooks[1])
    runs = [train(model, ddp, rank, steps, branch, set_to_none=set_to_none) for model, ddp in (theirs, mine)]
    for step, _ in enumerate(zip(*runs, strict=True)):
        assert_same(theirs[0], mine[0], f"step {step}")
    assert_same(theirs[0], mine[0], "in the end")
    return mine[1].stats()


# name: options of the wrapper and of the run
RUNS = {
    "plain": {},
    "small buckets": dict(bucket_cap_mb=SMALL),
    "unused": dict(find_unused_parameters=True, branch=BRANCH),
    "unused, small buckets": dict(find_unused_parameters=True, bucket_cap_mb=SMALL, branch=BRANCH),
    "static": dict(static_graph=True, branch=STATIC_BRANCH),
    "static, small buckets": dict(static_graph=True, bucket_cap_mb=SMALL, branch=STATIC_BRANCH),
    "views": dict(gradient_as_bucket_view=True, bucket_cap_mb=SMALL),
    "views, gradients zeroed": dict(gradient_as_bucket_view=True, bucket_cap_mb=SMALL, set_to_none=False),
    "views, unused": dict(gradient_as_bucket_view=True, find_unused_parameters=True, branch=BRANCH),
    "own buffers": dict(broadcast_buffers=False),
}
HOOKS = {
    "allreduce": default_hooks.allreduce_hook,
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": default_hooks.bf16_compress_hook,
    "fp16(allreduce)": default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
    "bf16(allreduce)": default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook),
    "bf16(fp16)": default_hooks.bf16_compress_wrapper(default_hooks.fp16_compress_hook),
}


def everything(rank, folder):
    group = start(folder)
    stats = {name: side_by_side(group, rank, **options) for name, options in RUNS.items()}
    for name, hook in HOOKS.items():
        stats[name] = side_by_side(group, rank, hooks=(hook, name), bucket_cap_mb=SMALL)
    stats["fp16, unused"] = side_by_side(group, rank, hooks=(default_hooks.fp16_compress_hook, "fp16"), branch=BRANCH,
                                         find_unused_parameters=True)
    end(group)
    return stats


@functools.cache
def stats_of(world_size, folder):
    return ranks.run(world_size, everything, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ddp")


@pytest.mark.parametrize("world_size", [2, 3])
def test_trains_as_python_does_to_the_bit(world_size, folder):
    """Three ranks too: Gloo adds up in one order for one size of buffer, and the buckets are the same."""
    (folder / str(world_size)).mkdir(exist_ok=True)
    stats_of(world_size, folder / str(world_size))


def trained_numel():
    return sum(p.numel() for p in Net().parameters() if p.requires_grad)


def test_bytes_and_buckets_are_counted(folder):
    (folder / "2").mkdir(exist_ok=True)
    for stats in stats_of(2, folder / "2"):
        for name, run in stats.items():
            assert run["steps"] == 4
            assert run["gradient_bytes"] == 4 * (2 if "16" in name else 4) * trained_numel(), name
            assert name not in ("plain", "own buffers") or run["buckets"] == 4, name
            assert "small" not in name or run["buckets"] > 8, name
            assert run["seconds"] >= run["exposed_seconds"] >= 0 and run["seconds"] > 0
            assert 0 <= run["overlapped_share"] <= 1


def accumulate(rank, folder):
    group = start(folder)
    for options in ({}, dict(gradient_as_bucket_view=True, bucket_cap_mb=SMALL), dict(find_unused_parameters=True)):
        theirs, mine = pair(group, **options)
        for step in range(3):
            local = []
            for model, ddp in (theirs, mine):
                model.zero_grad()
                for part in range(2):
                    with ddp.no_sync():
                        ddp(batch(rank, 10 * step + part)).sum().backward()
                local.append(model.last.weight.grad.clone())
                ddp(batch(rank, 10 * step + 9)).sum().backward()
            assert torch.equal(*local)
            assert not torch.equal(local[0], mine[0].last.weight.grad)
            assert_same(theirs[0], mine[0], f"accumulation step {step}")
        assert mine[1].stats()["steps"] == 3
        assert mine[1].stats()["gradient_bytes"] == 3 * 4 * trained_numel()

    # Several forward passes before backward: one backward through both is
    # reduced; of two, only the first.
    theirs, mine = pair(group)
    for model, ddp in (theirs, mine):
        (ddp(batch(rank, 1)).sum() + ddp(batch(rank, 2)).square().sum()).backward()
    assert_same(theirs[0], mine[0], "one backward through two forward passes")
    for model, ddp in (theirs, mine):
        model.zero_grad()
        losses = [ddp(batch(rank, 3)).sum(), ddp(batch(rank, 4)).square().sum()]
        for loss in losses:
            loss.backward()
    assert_same(theirs[0], mine[0], "two backward passes after two forward passes")

    # Evaluation is a rank's own affair: no collective, though only rank 0 runs it.
    mine[1].train(False)
    if rank == 0:
        with torch.no_grad():
            mine[1](batch(rank, 5))
        mine[1](batch(rank, 5)).detach()
    mine[1].train(True)
    end(group)


def test_accumulates_and_repeats_as_python_does(tmp_path):
    ranks.run(2, accumulate, tmp_path)


def structures(rank, folder):
    group = start(folder)
    shapes = {
        "vector": (lambda y: [y, y.detach()], lambda out: out[0]),
        "map": (lambda y: {"logits": y, "other": y.detach()}, lambda out: out["logits"]),
        "tuple": (lambda y: (y, None), lambda out: out[0]),
        "described": (lambda y: y, lambda out: out),
    }
    for kind, (wrap, unwrap) in shapes.items():
        for options in (dict(find_unused_parameters=True), dict(static_graph=True)):
            theirs, mine = Net(), Net()
            branch = 1
            forward = lambda x, model=mine: wrap(model(x, branch))  # noqa: E731
            python = nn.parallel.DistributedDataParallel(theirs, **options)
            ddp = mezzo_ddp(mine, group, kind, forward, **options)
            for step in range(3):
                theirs.zero_grad(), mine.zero_grad()
                python(batch(rank, step), branch).sum().backward()
                unwrap(ddp(batch(rank, step))).sum().backward()
                assert_same(theirs, mine, kind)

    errors = []
    model = Net()
    ddp = mezzo_ddp(model, group, "opaque")  # nobody has to look inside
    ddp(batch(rank, 0)).sum().backward()
    ddp = mezzo_ddp(model, group, "opaque", find_unused_parameters=True)
    for action in (lambda: ddp(batch(rank, 0)),
                   lambda: ddp.register_comm_hook("allreduce") or ddp.register_comm_hook("fp16"),
                   lambda: ddp.join(lambda: None, divide_by_initial_world_size=False),
                   lambda: mezzo_ddp(model.norm.eval().requires_grad_(False), group),
                   lambda: mezzo_ddp(model, group, bucket_cap_mb=0)):
        try:
            action()
        except ValueError as error:
            errors.append(str(error).splitlines()[0])
    ddp = mezzo_ddp(model, group)
    try:
        for step in range(2):
            ddp(batch(rank, step), 1).sum().backward()
    except RuntimeError as error:
        errors.append(str(error).splitlines()[0])

    # Only parameters of a loss count as used, and shared parameters count once.
    class Heads(nn.Module):
        def __init__(self, seed=0):
            super().__init__()
            torch.manual_seed(seed)
            self.left, self.right = nn.Linear(6, 4), nn.Linear(6, 4)
            self.right.bias = self.left.bias

        def forward(self, x):
            return [self.left(x), self.right(x)]

    theirs, mine = Heads(), Heads()
    python = nn.parallel.DistributedDataParallel(theirs, find_unused_parameters=True)
    ddp = mezzo_ddp(mine, group, "vector", find_unused_parameters=True)
    for step in range(3):
        for model, wrapped in ((theirs, python), (mine, ddp)):
            model.zero_grad()
            wrapped(batch(rank, step))[step % 2].sum().backward()
        assert_same(theirs, mine, "one output of two")
    end(group)
    return errors


def test_finds_tensors_in_outputs_and_refuses_what_it_cannot_do(tmp_path):
    for errors in ranks.run(2, structures, tmp_path):
        expected = ["cannot find the tensors in the output of forward, of type (anonymous namespace)::Opaque",
                    "a comm hook is registered already", "join cannot divide by the remaining ranks",
                    "so there is nothing to reduce", "bucket_cap_mb must be above 0, got 0",
                    "gave no gradient to branches.0.weight, branches.0.bias, branches.2.weight, branches.2.bias; use"]
        assert len(errors) == len(expected), errors
        for error, words in zip(errors, expected):
            assert words in error, error


def sparse(rank, folder):
    group = start(folder)
    torch.manual_seed(0)
    theirs = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2))
    weights = [p.detach().clone() for p in theirs.parameters()]
    python, ddp = nn.parallel.DistributedDataParallel(theirs), _mezzo.SparseDdp(weights, group)
    ids = torch.tensor([1, 3, 3, 5 + rank])
    for wrapped in (python, ddp):
        wrapped(ids).square().sum().backward()
    gradients = [g.to_dense() for g in ddp.gradients()]
    for parameter, gradient in zip(theirs.parameters(), gradients, strict=True):
        assert torch.equal(parameter.grad.to_dense(), gradient)
    end(group)


def test_reduces_sparse_gradients(tmp_path):
    ranks.run(2, sparse, tmp_path)


def differ(rank):
    group = _mezzo.ProcessGroup()
    odd = rank == 2
    models = [
        nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 6 if odd else 5)),
        nn.Sequential(nn.Linear(3, 4), *[nn.Linear(4, 4)] * odd),
        nn.Linear(3, 4, dtype=torch.bfloat16 if odd else torch.float32),
        nn.Linear(3, 4).requires_grad_(True),
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=not odd)),
        nn.Linear(3, 4),
    ]
    models[3].bias.requires_grad_(not odd)
    errors = []
    for i, model in enumerate(models):
        try:
            mezzo_ddp(model, group, find_unused_parameters=i == 5 and odd)
        except ValueError as error:
            errors.append(str(error).splitlines()[0])
    before = [p.tolist() for p in models[0].parameters()]
    mezzo_ddp(models[0], group, init_sync=False)  # asked for
    assert before == [p.tolist() for p in models[0].parameters()]
    group.shutdown()
    return errors


def test_models_that_differ_are_found_at_start():
    says = [
        "parameter '1.weight' Float [5, 4] on rank 0, parameter '1.weight' Float [6, 4] on rank 2",
        "options find_unused_parameters=false", "parameter 'weight' Float [4, 3] on rank 0, parameter 'weight' BFloat16",
        "parameter 'bias' Float [4] on rank 0, parameter 'bias' Float [4] without gradient on rank 2",
        "buffer '1.running_mean'", "options find_unused_parameters=false",
    ]
    for errors in ranks.run(3, differ):
        assert len(errors) == len(says), errors
        for error, words in zip(errors, says):
            assert error.startswith("DistributedDataParallel: the models differ: ") and words in error, error
