"""Training with mezzo's DistributedDataParallel: uneven inputs, overflows, failures, and curves that do not depend on the
number of ranks."""
import functools
import os
import signal

import _mezzo
import mezzo
import pytest
import ranks
import torch
from ddp_pair import BRANCH, SMALL, Net, assert_same, batch, end, mezzo_ddp, pair, start, train
from torch import nn
from torch.distributed.algorithms.join import _JoinConfig

TIMEOUT = 4.0  # of groups that are meant to break, in seconds


def use_nothing(ddp):
    """Python's joined ranks report the parameters that all ranks used in the step before, which keeps unused
    parameters moving. The joined ranks used none."""
    ddp.process_group.allreduce(ddp.reducer._get_local_used_map().zero_()).wait()


def uneven(rank, folder):
    """Rank r has r more batches than rank 0."""
    group = start(folder)
    counts = []
    for by_initial in (True, False):
        for options in ({}, dict(bucket_cap_mb=SMALL), dict(find_unused_parameters=True, branch=BRANCH),
                        dict(broadcast_buffers=False), dict(first_has_none=True)):
            options = dict(options)
            branch = options.pop("branch", lambda rank, step: ())
            steps = rank if options.pop("first_has_none", False) else 2 + rank
            theirs, mine = pair(group, **options)
            theirs[1]._match_unused_params_allreduce = lambda ddp=theirs[1]: use_nothing(ddp)
            with theirs[1].join(divide_by_initial_world_size=by_initial):
                for _ in train(*theirs, rank, steps, branch):
                    pass
            mine[1].join(lambda: [None for _ in train(*mine, rank, steps, branch)],  # noqa: B023 – runs at once
                         divide_by_initial_world_size=by_initial)
            for (name, a), b in zip(theirs[0].named_parameters(), mine[0].parameters()):
                assert torch.equal(a, b), (by_initial, options, name)
            for (name, a), b in zip(theirs[0].named_buffers(), mine[0].buffers()):
                assert torch.equal(a, b), (by_initial, options, name)
            # An even epoch afterwards: all is as it was. (Python's goes on asking which ranks have
            # joined until it is told, and divides by the number of other ranks.)
            if by_initial:
                theirs[1]._join_config = _JoinConfig.construct_disabled_join_config()
                for _ in zip(train(*theirs, rank, 2, branch), train(*mine, rank, 2, branch), strict=True):
                    assert_same(theirs[0], mine[0], "after join")
            counts.append(mine[1].stats()["steps"])

    # A static graph and compression, whose gradients must stay the mean.
    mine = Net()
    ddp = mezzo_ddp(mine, group, static_graph=True)
    ddp.register_comm_hook("fp16")
    ddp.join(lambda: [None for _ in train(mine, ddp, rank, 1 + rank)])
    weights = group.all_gather(str(mine.last.weight.tolist()))
    assert len(set(weights)) == 1

    ddp = mezzo_ddp(mine, group)
    try:
        ddp.join(lambda: [None for _ in train(mine, ddp, rank, 2 + rank)], throw_on_early_termination=True)
        message = "no error"
    except RuntimeError as error:
        message = str(error).splitlines()[0]
    torch.distributed.destroy_process_group()
    return message, counts


def fail_in_join(rank):
    group = _mezzo.ProcessGroup(TIMEOUT)
    net = Net()
    ddp = mezzo_ddp(net, group)

    def loop():
        for step, _ in enumerate(train(net, ddp, rank, 3)):
            if rank == 1 and step == 1:
                raise ValueError("no such batch")

    try:
        ddp.join(loop)
    except (RuntimeError, ValueError) as error:
        return str(error).splitlines()[0]
    return "no error"


def test_an_error_in_the_loop_of_join_is_quoted_on_the_other_ranks():
    outcomes = ranks.Ranks(3, fail_in_join).outcomes(60)
    quoted = "rank 1 failed: ValueError: no such batch"
    assert outcomes == {0: ("result", quoted), 1: ("result", "no such batch"), 2: ("result", quoted)}


def test_ranks_with_fewer_batches_join_as_in_python(tmp_path):
    for rank, (message, counts) in enumerate(ranks.run(3, uneven, tmp_path)):
        assert "rank 0 has run out of batches" in message
        assert counts == [4 + rank] * 4 + [2 + rank] + [2 + rank] * 4 + [rank]


def mixed_precision(rank, folder):
    """fp16 with one overflow, on rank 1 alone."""
    group = start(folder)
    curves = []
    for wrap in (nn.parallel.DistributedDataParallel, functools.partial(mezzo_ddp, group=group)):
        model = Net()
        ddp = wrap(model)
        trained = [p for p in model.parameters() if p.requires_grad]
        amp = torch.amp if isinstance(ddp, nn.Module) else mezzo
        optimizer = torch.optim.SGD(trained, lr=0.05)
        scaler = amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
        curve = []
        for step in range(8):
            model.zero_grad()
            with amp.autocast("cpu", torch.float16):
                loss = ddp(batch(rank, step)).float().square().sum()
            scaler.scale(loss * (1e38 if (step, rank) == (4, 1) else 1)).backward()
            before = model.last.weight.detach().clone()
            scaler.step(optimizer)
            scaler.update()
            curve.append((scaler.get_scale(), torch.equal(before, model.last.weight), model.last.weight.tolist()))
        curves.append(curve)
    end(group)
    return curves


def test_an_overflow_on_one_rank_skips_the_step_on_all(tmp_path):
    """Scales, skips and weights equal Python's, and are the same on every rank."""
    results = ranks.run(2, mixed_precision, tmp_path)
    assert results[0] == results[1]
    theirs, mine = results[0]
    assert theirs == mine
    assert [skipped for _, skipped, _ in mine] == [step == 4 for step in range(8)]


def guarded(rank, how):
    """Rank 1 breaks while the others are in backward."""
    group = _mezzo.ProcessGroup(TIMEOUT)
    model = Net()
    ddp = mezzo_ddp(model, group)

    class Break(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            if rank == 1 and step == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return gradient

    def work():
        output = ddp(batch(rank, step))
        if how == "raises" and rank == 1 and step == 2:
            raise ValueError("a broken text")
        (Break.apply(output) if how == "killed" else output).sum().backward()

    try:
        for step in range(4):
            group.guard(work)
    except (RuntimeError, ValueError) as error:
        return str(error).splitlines()[0]
    return "no error"


@pytest.mark.parametrize("how", ["raises", "killed"])
def test_the_rank_that_breaks_in_a_step_is_named(how):
    outcomes = ranks.Ranks(3, guarded, how).outcomes(120)
    for rank in (0, 2):
        message = outcomes[rank][1]
        assert ("rank 1 failed: ValueError: a broken text" if how == "raises" else "lost rank 1 (process") in message
    assert (1 in outcomes) == (how == "raises")


class Plain(nn.Module):
    """Rows do not see each other, as they do in batch normalisation."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3))

    def forward(self, x):
        return self.layers(x)


def curve(model, forward, batches, no_sync=None):
    """`batches`: for each step, those to accumulate."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for parts in batches:
        optimizer.zero_grad()
        total = 0.0
        for i, x in enumerate(parts):
            def run(x=x):
                loss = (forward(x) - x[:, :3].sin()).square().mean() / len(parts)
                loss.backward()
                return loss.item()
            if no_sync and i + 1 < len(parts):
                with no_sync():
                    total += run()
            else:
                total += run()
        losses.append(total)
        optimizer.step()
    return losses


def share(rank):
    """Without accumulation, and with two parts a step."""
    group = _mezzo.ProcessGroup()
    results = []
    for accumulation in (1, 2):
        model = Plain()
        ddp = mezzo_ddp(model, group)
        steps = [[x.chunk(4 * accumulation)[part * 4 + rank] for part in range(accumulation)] for x in whole_batches()]
        results.append((curve(model, ddp, steps, ddp.no_sync), [p.tolist() for p in model.parameters()]))
    group.shutdown()
    return results


def whole_batches():
    return [batch(0, step, rows=64) for step in range(30)]


def test_four_ranks_learn_as_one_process_with_four_times_the_batch():
    model = Plain()
    expected = torch.tensor(curve(model, model, [[x] for x in whole_batches()]))
    assert expected[-1] < 0.5 * expected[0]
    for results in zip(*ranks.run(4, share), strict=True):
        losses = torch.tensor([losses for losses, _ in results]).mean(0)
        # Sums of 64 rows, made in another order: a few roundings of float32, which
        # 30 steps of AdamW carry on.
        torch.testing.assert_close(losses, expected, rtol=1e-5, atol=0)
        for _, weights in results:
            assert weights == results[0][1]
            for mine, theirs in zip(weights, model.parameters()):
                torch.testing.assert_close(torch.tensor(mine), theirs.detach(), rtol=1e-4, atol=1e-5)
