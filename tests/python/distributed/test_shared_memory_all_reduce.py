"""Sums through shared memory against sums in PyTorch."""
import os
import signal
import time
from pathlib import Path

import _mezzo
import pytest
import ranks
import torch

TIMEOUT = 4.0  # of the group whose rank is meant to be lost, in seconds
# Around the length of a chunk, 131072, and of a rank's part of it.
SIZES = [0, 1, 2, 3, 7, 1000, 131071, 131072, 131073, 262144, 300001, 1_000_003]


DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def inputs(rank, size, dtype):
    values = torch.randn(size, generator=torch.Generator().manual_seed(size * 10 + rank)) * 10.0 ** (rank - 1)
    return values.to(dtype)


def cases():
    return [(size, dtype) for dtype in DTYPES for size in SIZES + SIZES[::-1]]


def sums(rank):
    group = _mezzo.ProcessGroup()
    reduce = _mezzo.SharedMemoryAllReduce.create(group)
    results = []
    for case in cases():
        tensor = inputs(rank, *case)
        reduce.sum(group, tensor)
        results.append(tensor)
    poisoned = torch.tensor([float("inf") if rank == 1 else 1.0, 1.0, float("nan") if rank == 0 else 0.0])
    reduce.sum(group, poisoned)
    group.shutdown()
    return [tensor.float().numpy() for tensor in results], poisoned.tolist()


def check(world_size):
    outcomes = ranks.run(world_size, sums)
    for i, case in enumerate(cases()):
        expected = inputs(0, *case).float()
        for rank in range(1, world_size):
            expected += inputs(rank, *case).float()
        expected = expected.to(case[1]).float()
        for results, _ in outcomes:
            assert torch.equal(torch.from_numpy(results[i]), expected), case  # sums are of the same order
    for _, poisoned in outcomes:
        assert poisoned[0] == float("inf") and poisoned[1] == world_size and poisoned[2] != poisoned[2]


def test_two_ranks_add_up_to_the_bit():
    check(2)


def test_three_ranks_add_up_to_the_bit():
    check(3)


def lose_a_rank(rank, how):
    group = _mezzo.ProcessGroup(TIMEOUT)
    reduce = _mezzo.SharedMemoryAllReduce.create(group)
    reduce.sum(group, torch.ones(1000))
    if rank == 1:
        os.kill(os.getpid(), how)
    try:
        reduce.sum(group, torch.ones(1000))
    except RuntimeError as error:
        return str(error).splitlines()[0]


def test_a_killed_or_stopped_rank_is_named():
    for how in (signal.SIGKILL, signal.SIGSTOP):
        outcomes = ranks.Ranks(3, lose_a_rank, how).outcomes(60, without=[1])
        assert {rank: "lost rank 1 (process" in value for rank, (_, value) in outcomes.items()} == {0: True, 2: True}, outcomes


def segments():
    return {name for name in os.listdir("/dev/shm") if name.startswith("mezzo-")}


def has_memory(pid):
    names = Path(f"/proc/{pid}/maps").read_text()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            names += os.readlink(link)
        except FileNotFoundError:  # closed meanwhile
            pass
    return "mezzo-" in names


def share_memory(rank, late):
    group = _mezzo.ProcessGroup()
    if rank == late:  # so that the others wait in the midst of create()
        group.any(False)
        group.all_gather("")
        time.sleep(60)
    reduce = _mezzo.SharedMemoryAllReduce.create(group)
    reduce.sum(group, torch.ones(1000))
    time.sleep(60)


@pytest.mark.parametrize("late", [None, 2])
@pytest.mark.parametrize("killed", [0, 1])
def test_nothing_stays_behind_when_a_rank_is_killed(killed, late):
    before = segments()
    started = ranks.Ranks(3, share_memory, late)
    pids = {rank: process.pid for rank, process in started.processes.items()}
    while not all(has_memory(pids[rank]) for rank in ([0] if late else [0, 1, 2])):
        assert all(process.is_alive() for process in started.processes.values())
        time.sleep(0.01)
    for pid in [pids[killed], *pids.values()]:
        os.kill(pid, signal.SIGKILL)
    for process in started.processes.values():
        process.join()
    assert not segments() - before
