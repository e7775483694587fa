"""Runs a function on several ranks, each a separate process, as torchrun would start them."""
import functools
import multiprocessing
import os
import queue
import socket
import time
import traceback


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(rank, world_size, port):
    return dict(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world_size),
                MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))


def _work(function, arguments, variables, rank, results):
    os.environ.update(variables)
    try:
        import torch
        torch.set_num_threads(1)
        results.put((rank, "result", function(rank, *arguments)))
    except BaseException as error:  # the parent is to see it, whatever it is
        results.put((rank, "error", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))


@functools.cache
def _server():
    """Forks ranks off a process that has loaded the libraries, which takes seconds, and done nothing else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "_mezzo", "pytest"])
    return context


class Ranks:
    """`world_size` processes that run `function(rank, *arguments)`, which must stand at the top of its file. Arguments
    and results are pickled."""

    def __init__(self, world_size, function, *arguments, variables=lambda rank: {}, start=None):
        context = _server()
        self.results = context.Queue()
        port = free_port()
        self.processes = {}
        for rank in range(world_size) if start is None else start:
            env = {**environment(rank, world_size, port), "OMP_NUM_THREADS": "1", **variables(rank)}
            self.processes[rank] = context.Process(target=_work, args=(function, arguments, env, rank, self.results))
            self.processes[rank].start()

    def outcomes(self, timeout=180, without=()):
        """{rank: ("result", value) or ("error", text)}, of the ranks that ended by themselves within the timeout (in
        seconds). The other ranks are killed. Ranks of `without` are killed when all others have ended."""
        outcomes = {}
        end = time.monotonic() + timeout
        try:
            while time.monotonic() < end and any(r not in outcomes and r not in without and p.is_alive() for r, p in self.processes.items()):
                try:
                    rank, kind, value = self.results.get(timeout=0.2)
                    outcomes[rank] = (kind, value)
                except queue.Empty:
                    pass
            for rank, process in self.processes.items():
                if rank not in without:
                    process.join(max(0.0, min(10.0, end - time.monotonic())))
            while True:
                try:
                    rank, kind, value = self.results.get(timeout=0.2)
                    outcomes[rank] = (kind, value)
                except queue.Empty:
                    return outcomes
        finally:
            for process in self.processes.values():
                if process.is_alive():
                    process.kill()
                process.join()


def run(world_size, function, *arguments, **options):
    """The results of all ranks, by rank. Fails if a rank failed or did not end."""
    ranks = Ranks(world_size, function, *arguments, **options)
    outcomes = ranks.outcomes()
    for rank in range(world_size):
        kind, value = outcomes.get(rank, ("error", f"did not end, or was killed: exit code {ranks.processes[rank].exitcode}"))
        assert kind == "result", f"rank {rank}: {value}"
    return [outcomes[rank][1] for rank in range(world_size)]
