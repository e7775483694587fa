"""`mezzo launch --min-nnodes`: a launcher per node, as processes of one host, and with network namespaces as hosts."""
import json
import os
import re
import signal
import subprocess
import time
from contextlib import ExitStack

import pytest
from support import PROGRAM, program_arguments, records
from test_launch import LAUNCH, PATIENCE, finish, free_port
from tiny_runs import flags, write_data

SCRIPT = 'echo start $TORCHELASTIC_RESTART_COUNT rank $RANK of $WORLD_SIZE; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || sleep 1000'


def command(node, port, *options, nnodes=3, script=SCRIPT, host="localhost"):
    return [LAUNCH, f"nnodes={nnodes}", f"node_rank={node}", f"master_addr={host}", f"master_port={port}", "max_restarts=2", "node_timeout_seconds=3",
            *options, "--", "sh", "-c", script]


def start(arguments, **more):
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


class Nodes:
    """Launchers that have all started their ranks."""

    def __init__(self, *options, count=3):
        port = free_port()
        self.commands = [command(node, port, *options, nnodes=count) for node in range(count)]
        self.launchers = [start(arguments) for arguments in self.commands]
        for launcher in self.launchers:
            assert "start 0" in launcher.stdout.readline()

    def ends(self):
        """[(exit status, stdout, stderr)]"""
        said = [finish(launcher) for launcher in self.launchers]
        return [(launcher.returncode, *both) for launcher, both in zip(self.launchers, said)]


def test_ranks_start_again_on_the_nodes_that_are_left():
    nodes = Nodes("min_nnodes=2")
    nodes.launchers[1].kill()
    (first, said, told), (lost, _, _), (last, of_last, _) = nodes.ends()
    assert (first, lost, last) == (0, -signal.SIGKILL, 0), told
    assert said == "[rank 0] start 1 rank 0 of 2\n" and of_last == "[rank 1] start 1 rank 1 of 2\n"
    assert re.search(r"^launch: node 1 has not answered for 3 s; 2 of 3 nodes start again, restart 1 of 2$", told, re.M), told


def test_a_node_that_is_stopped_leaves_the_others():
    nodes = Nodes("min_nnodes=2")
    nodes.launchers[2].terminate()
    (first, said, told), (second, _, _), (stopped, _, _) = nodes.ends()
    assert (first, second, stopped) == (0, 0, 128 + signal.SIGTERM), told
    assert said == "[rank 0] start 1 rank 0 of 2\n" and "launch: node 2 has ended; 2 of 3 nodes start again" in told


def test_too_few_nodes_are_the_end():
    nodes = Nodes(count=2)
    nodes.launchers[1].kill()
    (status, _, told), _ = nodes.ends()
    assert status == 1 and told.splitlines()[-1] == "launch: node 1 has not answered for 3 s; 1 of 2 nodes are here, at least 2 are needed"


def test_a_launcher_that_comes_back_before_it_is_missed_joins_the_next_start():
    nodes = Nodes("node_timeout_seconds=1000", count=2)
    nodes.launchers[1].kill()
    finish(nodes.launchers[1])
    nodes.launchers[1] = start(nodes.commands[1])
    (first, said, told), (second, of_second, _) = nodes.ends()
    assert (first, second) == (0, 0), told
    assert (said, of_second) == ("[rank 0] start 1 rank 0 of 2\n", "[rank 1] start 1 rank 1 of 2\n")
    assert told == "launch: the ranks of node 1 have ended; all ranks start again, restart 1 of 2\n"


@pytest.mark.parametrize("how, message", [(signal.SIGKILL, "node 0 does not answer at localhost:"), (signal.SIGTERM, "node 0 has ended")])
def test_the_loss_of_node_0_is_the_end(how, message):
    nodes = Nodes("min_nnodes=1", count=2)
    nodes.launchers[0].send_signal(how)
    _, (status, _, told) = nodes.ends()
    assert status == (1 if how == signal.SIGKILL else 128 + how) and f"launch: {message}" in told, told


def test_a_node_whose_ranks_have_succeeded_starts_again_when_another_fails():
    port = free_port()
    script = 'echo start $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT$GROUP_RANK != 00 ] || { sleep 1; exit 4; }'
    launchers = [start(command(node, port, nnodes=2, script=script)) for node in range(2)]
    said = [*map(finish, launchers)]
    assert [launcher.returncode for launcher in launchers] == [0, 0], said
    assert [stdout.count("start ") for stdout, _ in said] == [2, 2], said
    assert re.search(r"^launch: node 0: rank 0 \(pid \d+\) ended with exit status 4; all ranks start again, restart 1 of 2$", said[1][1], re.M), said


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_signal_ends_a_node_that_waits_for_the_others(tmp_path, stopped):
    """Its ranks have succeeded. Without node 0 the run cannot go on; without node 1 it does."""
    port = free_port()
    script = f'echo start 0; [ $GROUP_RANK = {stopped} ] || until [ -e {tmp_path}/go ]; do sleep 0.1; done'
    launchers = [start(command(node, port, nnodes=2, script=script)) for node in range(2)]
    for launcher in launchers:
        assert "start 0" in launcher.stdout.readline()
    time.sleep(1)
    launchers[stopped].terminate()
    if stopped == 1:
        finish(launchers[1])
        (tmp_path / "go").touch()
    said = [*map(finish, launchers)]
    assert launchers[stopped].returncode == 128 + signal.SIGTERM, said
    assert launchers[1 - stopped].returncode == (0 if stopped == 1 else 128 + signal.SIGTERM), said
    assert said[1][1] == ("" if stopped == 1 else "launch: node 0 has ended\n")


@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_cannot_run_the_command_tells_the_others(node):
    port = free_port()
    commands = [command(one, port, "node_timeout_seconds=1000", nnodes=2, script="sleep 1000") for one in range(2)]
    commands[node][-3:] = ["/no/such/program"]
    launchers = [start(arguments) for arguments in commands]
    said = [*map(finish, launchers)]
    assert (launchers[node].returncode, launchers[1 - node].returncode) == (100, 1), said
    reason = "cannot run '/no/such/program': it does not exist. Check the path"
    assert said[node][1] == f"Error: {reason}\n"
    assert f"launch: node {node}: {reason}" in said[1 - node][1].splitlines()[-1], said


def test_a_node_names_its_own_failure_when_node_0_does_not_answer_any_more(tmp_path):
    error = tmp_path / "error.json"
    port = free_port()
    script = f'echo start 0; [ $GROUP_RANK = 0 ] && sleep 1000; until [ -e {tmp_path}/go ]; do sleep 0.1; done; echo it is broken >&2; exit 4'
    launchers = [start(command(node, port, nnodes=2, script=script), env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(error)}) for node in range(2)]
    for launcher in launchers:
        assert "start 0" in launcher.stdout.readline()
    launchers[0].send_signal(signal.SIGSTOP)
    (tmp_path / "go").touch()
    said = finish(launchers[1])[1]
    launchers[0].kill()
    assert launchers[1].returncode == 4, said
    *_, before, last = said.splitlines()
    assert re.fullmatch(r"launch: rank 1 \(pid \d+\) ended with exit status 4; it said: it is broken", last), said
    assert before == f"launch: node 0 does not answer at localhost:{port}"
    assert json.loads(error.read_text())["message"]["message"] == last
    finish(launchers[0])


# --- hosts

@pytest.fixture
def hosts():
    """Three network namespaces, with separate host names, at a bridge: 10.83.0.1 to 10.83.0.3. Yields a function that runs a
    command in one of them."""
    names = [f"mezzo-{os.getpid()}-{node}" for node in range(3)]
    bridge = f"mz{os.getpid() % 100000}"

    def ip(*arguments, check=True):
        return subprocess.run(["ip", *arguments], check=check, capture_output=True, text=True)

    with ExitStack() as stack:
        try:
            for name in names:
                ip("netns", "add", name)
                stack.callback(ip, "netns", "del", name, check=False)
            ip("link", "add", bridge, "type", "bridge")
            stack.callback(ip, "link", "del", bridge, check=False)
            ip("link", "add", f"{bridge}v0", "type", "veth", "peer", "name", "eth0", "netns", names[0])
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"this machine allows no network namespaces, bridges or veths: {getattr(error, 'stderr', error)}")
        ip("link", "set", bridge, "up")
        for node, name in enumerate(names):
            if node > 0:
                ip("link", "add", f"{bridge}v{node}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"{bridge}v{node}", "master", bridge, "up")
            for arguments in ["addr add 10.83.0.%d/24 dev eth0" % (node + 1), "link set eth0 up", "link set lo up"]:
                ip("-n", name, *arguments.split())

        def run_on(node, arguments):
            own = f"hostname host{node}; exec \"$0\" \"$@\""
            return start(["ip", "netns", "exec", names[node], "unshare", "--uts", "sh", "-c", own, *map(str, arguments)],
                         env={**os.environ, "GLOO_SOCKET_IFNAME": "eth0"})

        run_on.unplug = lambda node: ip("link", "set", f"{bridge}v{node}", "down")
        yield run_on


@pytest.mark.slow
def test_training_goes_on_when_a_host_loses_its_network(hosts, tmp_path):
    """Each sample once: the losses equal the losses of an undisturbed run."""
    data = write_data(tmp_path / "data")
    steps = 150

    def train(output):
        return program_arguments(flags(data, output, "--max-steps", steps, "--save-every", 20, "--eval-every", 0, "--timeout", 600, "--learning-rate", 1e-4))

    whole = tmp_path / "whole"
    done = subprocess.run([PROGRAM, "launch", "--nproc", "3", "--", *map(str, train(whole))], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    output = tmp_path / "out"
    again = [*train(output), "--restarted", "3"]
    launchers = [hosts(node, [*command(node, 29500, "min_nnodes=2", "failure_grace_seconds=1", host="10.83.0.1")[:-3], PROGRAM, *train(output),
                              "--", PROGRAM, *again]) for node in range(3)]
    deadline = time.monotonic() + PATIENCE
    while not (output / "checkpoints/step-40").exists():
        assert time.monotonic() < deadline and launchers[0].poll() is None, finish(launchers[0])
        time.sleep(0.02)
    hosts.unplug(2)
    said = [finish(launcher)[1] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0, 1], said
    assert "launch: node 2 has not answered for 3 s; 2 of 3 nodes start again, restart 1 of 2\n" in said[0]
    assert "launch: node 0 does not answer at 10.83.0.1:29500\n" in said[2]
    assert int(re.search(r"resumed after step (\d+)$", said[0], re.M)[1]) >= 40
    expected, found = ([(record["step"], record["samples"]) for record in records(folder, "step")] for folder in (whole, output))
    assert found == expected and len(found) == steps
    losses = [[record["loss"] for record in records(folder, "step")] for folder in (whole, output)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-3), "gradients are added up in another order"
    assert json.loads((output / "run.json").read_text())["finished"]
