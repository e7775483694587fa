"""Meeting, collectives, and naming the rank that is to blame when something breaks."""
import os
import signal
import time

import _mezzo
import pytest
import ranks
import torch
import torch.distributed as dist
from ddp_pair import end, start

TIMEOUT = 4.0  # of the groups of ranks that are meant to be lost, in seconds


def collectives(rank):
    group = _mezzo.ProcessGroup()
    total = torch.full((3,), float(rank + 1))
    group.all_reduce(total)
    largest = torch.tensor([rank, -rank])
    group.all_reduce(largest, "max")
    copied = torch.full((2, 2), rank, dtype=torch.bfloat16)
    group.broadcast(copied, 1)
    texts = group.all_gather("" if rank == 0 else "é" * rank)
    group.barrier()
    anyone = [group.any(False), group.any(rank == 2)]
    group.shutdown()
    return total.tolist(), largest.tolist(), copied.tolist(), texts, anyone


def test_collectives():
    for result in ranks.run(3, collectives):
        assert result == ([6.0] * 3, [2, 0], [[1.0, 1.0]] * 2, ["", "é", "éé"], [False, True])


DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64]


def beside_python(rank, folder):
    """Results of mezzo's collectives and of torch.distributed's, side by side."""
    group = start(folder)
    results = []
    for dtype in DTYPES:
        rows = (torch.arange(24).view(6, 4) + 50 * rank).to(dtype)
        for op, python_op in (("sum", dist.ReduceOp.SUM), ("max", dist.ReduceOp.MAX), ("min", dist.ReduceOp.MIN)):
            mine, theirs = rows.clone(), rows.clone()
            group.all_reduce(mine, op)
            dist.all_reduce(theirs, python_op)
            results.append((f"all_reduce {op} {dtype}", mine, theirs))
            theirs = torch.empty(2, 4, dtype=dtype)
            dist.reduce_scatter_tensor(theirs, rows, python_op)
            results.append((f"reduce_scatter {op} {dtype}", group.reduce_scatter(rows, op), theirs))
        mine, theirs = rows.clone(), rows.clone()
        group.broadcast(mine, 2)
        dist.broadcast(theirs, 2)
        results.append((f"broadcast {dtype}", mine, theirs))
        theirs = [torch.empty_like(rows) for _ in range(3)]
        dist.all_gather(theirs, rows)
        results += [(f"all_gather {dtype}", *pair) for pair in zip(group.all_gather(rows), theirs, strict=True)]
        theirs = torch.empty_like(rows)
        dist.all_to_all_single(theirs, rows)
        results.append((f"all_to_all {dtype}", group.all_to_all(rows), theirs))
        received, sent = [rank + 1] * 3, [1, 2, 3]
        theirs = torch.empty(3 * (rank + 1), 4, dtype=dtype)
        dist.all_to_all_single(theirs, rows, received, sent)
        results.append((f"all_to_all with sizes {dtype}", group.all_to_all(rows, received, sent), theirs))
    some, python_some = group.new_group([2, 0]), dist.new_group([2, 0], use_local_synchronization=False)
    assert (some is None) == (rank == 1)
    if some:
        assert some.size() == 2
        mine, theirs = torch.full((3,), float(rank)), torch.full((3,), float(rank))
        some.all_reduce(mine)
        dist.all_reduce(theirs, group=python_some)
        results.append(("all_reduce of a subgroup", mine, theirs))
        some.shutdown()
    end(group)
    return [what for what, mine, theirs in results if not (mine.dtype == theirs.dtype and torch.equal(mine, theirs))], len(results)


def test_tensor_collectives_have_the_results_of_python(tmp_path):
    """Bit-identical: both are Gloo's algorithms on the same number of ranks."""
    for rank, (different, count) in enumerate(ranks.run(3, beside_python, tmp_path)):
        assert not different
        assert count == 4 * 12 + (rank != 1)


def break_down(rank, how):
    """Rank 1 breaks `how`; the error of the others is returned, and after how long."""
    group = _mezzo.ProcessGroup(TIMEOUT)
    data = torch.ones(10)
    group.all_reduce(data)
    begin = time.monotonic()
    try:
        if rank == 1:
            if how == "fails":
                group.guard(lambda: int("not a number"))
            os.kill(os.getpid(), dict(killed=signal.SIGKILL, stopped=signal.SIGSTOP)[how])
        group.all_reduce(data)
    except (RuntimeError, ValueError) as error:
        return str(error).splitlines()[0], time.monotonic() - begin
    return "no error"


@pytest.mark.parametrize("lost_rank_hosts_the_store", [False, True])
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_lost_rank_is_named(how, lost_rank_hosts_the_store):
    """With the ranks' numbers swapped, rank 0 of the group is the one that breaks."""
    swap = lambda rank: {"RANK": str(1 - rank)} if lost_rank_hosts_the_store and rank < 2 else {}
    outcomes = ranks.Ranks(3, break_down, how, variables=swap).outcomes(60, without=[1])
    assert set(outcomes) == {0, 2}
    for rank in (0, 2):
        kind, value = outcomes[rank]
        assert kind == "result", value
        message, seconds = value
        lost = "kept by rank 0" if lost_rank_hosts_the_store else "lost rank 1 (process"
        assert lost in message and "killed" in message and "stopped" in message, message
        # The timeout, and the time of the census. A busy machine may need more, but must not hang.
        assert seconds < 20 * TIMEOUT


def test_a_rank_that_fails_by_itself_is_quoted():
    outcomes = ranks.Ranks(3, break_down, "fails").outcomes(60)
    assert "invalid literal" in outcomes[1][1][0]
    for rank in (0, 2):
        assert outcomes[rank][1][0].startswith("rank 1 failed: ValueError: invalid literal"), outcomes[rank]


def lose_a_rank_at_the_end(rank):
    group = _mezzo.ProcessGroup(600)
    if rank == 1:
        group.barrier()  # as shutdown begins
        os.kill(os.getpid(), signal.SIGKILL)
    group.shutdown()


def test_the_rank_that_hosts_the_store_does_not_wait_for_one_that_is_gone():
    outcomes = ranks.Ranks(3, lose_a_rank_at_the_end).outcomes(60, without=[1])  # a tenth of the timeout
    assert outcomes == {0: ("result", None), 2: ("result", None)}


def meet(rank, timeout):
    try:
        _mezzo.ProcessGroup(timeout)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return "no error"


def test_ranks_that_do_not_come_are_named():
    outcomes = ranks.Ranks(4, meet, 2.0, start=[0, 2]).outcomes(60)
    # A rank that started later may find that rank 0, which keeps the store, has given up already.
    came_late = "went away while rank 2 waited"
    assert outcomes[0][1].startswith("ranks 1, 3 of 4 did not come within 2 s"), outcomes
    assert outcomes[2][1].startswith("ranks 1, 3 of 4 did not come within 2 s") or came_late in outcomes[2][1], outcomes


def test_a_store_that_is_not_there_is_named():
    message = ranks.Ranks(2, meet, 1.0, start=[1]).outcomes(60)[1][1]
    assert message.startswith("rank 1 could not reach the ranks' store at 127.0.0.1:"), message
    assert "is rank 0 running" in message


def test_a_port_in_use_is_named():
    import socket
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        outcomes = ranks.Ranks(2, meet, 1.0, start=[0], variables=lambda rank: {"MASTER_PORT": str(port)}).outcomes(60)
    message = outcomes[0][1]
    assert message.startswith(f"rank 0 cannot open the ranks' store at 127.0.0.1:{port}"), message
    assert "set MASTER_PORT" in message


def disagree(rank):
    group = _mezzo.ProcessGroup()
    group.check_same({"the model": "a BERT", "the seed": ""})
    errors = []
    for work in (lambda: group.check_same({"the model": "a BERT", "the seed": "7" if rank < 2 else "8"}),
                 lambda: group.check_same({"the model": "a BERT"} if rank != 1 else {}),
                 lambda: group.all_or_none(lambda: int("1" if rank != 1 else "one"))):
        try:
            work()
        except (RuntimeError, ValueError) as error:
            errors.append(str(error).splitlines()[0])
    group.shutdown()
    return errors


def test_disagreements_are_found_on_every_rank():
    results = ranks.run(3, disagree)
    for rank, (same, there, work) in enumerate(results):
        assert there == "the model differs between ranks: 'a BERT' on rank 0, 'nothing' on rank 1; start all ranks with the same settings"
        assert same == "the seed differs between ranks: '7' on rank 0, '8' on rank 2; start all ranks with the same settings"
        assert work.startswith("invalid literal" if rank == 1 else "rank 1 failed: ValueError: invalid literal")


TORCHRUN = dict(RANK="3", WORLD_SIZE="4", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2", MASTER_ADDR="host", MASTER_PORT="1234")
OPEN_MPI = dict(OMPI_COMM_WORLD_RANK="3", OMPI_COMM_WORLD_SIZE="4", OMPI_COMM_WORLD_LOCAL_RANK="1",
                OMPI_COMM_WORLD_LOCAL_SIZE="2", MASTER_ADDR="host", MASTER_PORT="1234")
MPICH = dict(PMI_RANK="3", PMI_SIZE="4", MPI_LOCALRANKID="1", MPI_LOCALNRANKS="2", MASTER_ADDR="host", MASTER_PORT="1234")
SLURM = dict(SLURM_PROCID="3", SLURM_STEP_NUM_TASKS="4", SLURM_LOCALID="1", SLURM_NODEID="1", SLURM_JOB_ID="77",
             SLURM_STEP_TASKS_PER_NODE="2(x2)", SLURM_STEP_NODELIST="host,other", MASTER_PORT="1234")


@pytest.mark.parametrize("variables", [TORCHRUN, OPEN_MPI, MPICH, SLURM])
def test_launchers_are_understood(variables):
    found = _mezzo.RankEnvironment.detect(variables)
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == (3, 4, 1, 2)
    assert (found.master_addr, found.master_port, found.restart_count) == ("host", 1234, 0)


def without(variables, *names, **changed):
    return {name: value for name, value in {**variables, **changed}.items() if name not in names}


def test_a_meeting_point_is_found_where_there_is_one():
    one_host = without(OPEN_MPI, "MASTER_ADDR", "MASTER_PORT", OMPI_COMM_WORLD_LOCAL_SIZE="4")
    found = _mezzo.RankEnvironment.detect(one_host)
    assert found.master_addr == "127.0.0.1" and found.master_port > 1024
    assert found.master_port == _mezzo.RankEnvironment.detect(one_host).master_port
    steps = [without(SLURM, "MASTER_PORT", SLURM_STEP_ID=str(step)) for step in range(2)]
    assert 20000 <= _mezzo.RankEnvironment.detect(steps[0]).master_port < 30000
    assert len({_mezzo.RankEnvironment.detect(step).master_port for step in steps}) == 2
    uneven = without(SLURM, SLURM_STEP_TASKS_PER_NODE="1,3", SLURM_LOCALID="2")
    assert _mezzo.RankEnvironment.detect(uneven).local_world_size == 3
    kubernetes = _mezzo.RankEnvironment.detect(without(TORCHRUN, "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    assert (kubernetes.local_rank, kubernetes.local_world_size) == (0, 1)


@pytest.mark.parametrize("variables", [{}, dict(WORLD_SIZE="1", RANK="0"), dict(PMI_SIZE="2"), dict(SLURM_JOB_ID="1"),
                                       dict(SLURM_PROCID="0", SLURM_NTASKS="4")])
def test_one_process_is_no_group(variables):
    assert _mezzo.RankEnvironment.detect(variables) is None


@pytest.mark.parametrize("variables, message", [
    (without(TORCHRUN, "MASTER_PORT"), "MASTER_PORT is not set"),
    (without(TORCHRUN, "MASTER_ADDR"), "set MASTER_ADDR"),
    (without(TORCHRUN, "LOCAL_RANK"), "LOCAL_RANK is not set"),
    (without(TORCHRUN, RANK="4"), "RANK is '4', not a whole number from 0 to 3"),
    (without(TORCHRUN, WORLD_SIZE="many"), "WORLD_SIZE is 'many'"),
    (without(TORCHRUN, MASTER_PORT="99999"), "MASTER_PORT is '99999'"),
    (without(OPEN_MPI, "MASTER_ADDR"), "Open MPI started ranks on several hosts"),
    (without(OPEN_MPI, "MASTER_PORT"), "MASTER_PORT is not set"),
    (without(SLURM, SLURM_STEP_TASKS_PER_NODE="4"), "has no entry for node 1"),
])
def test_what_is_wrong_in_the_environment_is_named(variables, message):
    with pytest.raises(ValueError, match=message):
        _mezzo.RankEnvironment.detect(variables)
