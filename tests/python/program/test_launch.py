"""`mezzo launch`, and the launcher under it, with real processes: torchrun's environment, output, signals, failures."""
import hashlib
import json
import os
import pty
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import MINILM, PROGRAM, mezzo, random_bert, records

LAUNCH = os.environ["MEZZO_LAUNCH_PROGRAM"]
PATIENCE = 60  # seconds after which a test fails rather than waits on


def command_line(script, *options, again=None):
    more = [] if again is None else ["--", "sh", "-c", again]
    return [LAUNCH, *options, "--", "sh", "-c", script, *more]


def launch(script, *options, again=None, **more):
    """Runs a shell script as every rank."""
    return subprocess.run(command_line(script, *options, again=again), capture_output=True, timeout=PATIENCE, **more)


def start(script, *options, **more):
    return subprocess.Popen(command_line(script, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def finish(process):
    try:
        return process.communicate(timeout=PATIENCE)
    finally:
        process.kill()


def wait_until(what, condition):
    deadline = time.monotonic() + PATIENCE
    while not (result := condition()):
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.01)
    return result


def wait_for_line(stream, text):
    for line in stream:
        if text in line:
            return line
    raise AssertionError(f"never said: {text}")


def state(pid):
    """The letter of /proc/PID/stat, or None if the process does not exist. A zombie that nobody collects is gone."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if letter == "Z" else letter


def pid_in(path):
    return wait_until(path, lambda: path.exists() and path.read_text().strip()) and int(path.read_text())


def free_port():
    """A port outside the range of outgoing connections: one of these could take it while a launcher
    restarts."""
    while True:
        port = random.randrange(20000, 32768)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
                return port
            except OSError:
                pass


# --- environment

def environments(folder):
    return [dict(line.split("=", 1) for line in (folder / str(rank)).read_text().split("\0") if line) for rank in range(2)]


def test_ranks_get_the_environment_that_torchrun_gives(tmp_path):
    script = 'cat /proc/self/environ > "$FOLDER/$RANK"'
    given = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    torchrun = [Path(sys.executable).with_name("torchrun"), "--no-python", "--nproc-per-node", "2"]
    found = {}
    for name, command in ("torchrun", [*torchrun, "sh", "-c", script]), ("mezzo", command_line(script, "nproc=2")):
        (tmp_path / name).mkdir()
        done = subprocess.run(command, env={**given, "FOLDER": str(tmp_path / name)}, capture_output=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        found[name] = environments(tmp_path / name)
    # Of a machine or a run; and files and signals of Python's own agent, which ranks do not need.
    other = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "OMP_NUM_THREADS", "FOLDER", "MEZZO_LAUNCH_ID"}
    python_only = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}
    for rank in range(2):
        theirs, mine = found["torchrun"][rank], found["mezzo"][rank]
        assert set(theirs) - python_only == set(mine) - {"MEZZO_LAUNCH_ID"} and len(mine["MEZZO_LAUNCH_ID"]) > 8
        assert {k: v for k, v in mine.items() if k not in other} == {k: theirs[k] for k in mine if k not in other}
        assert mine["MASTER_ADDR"] == "127.0.0.1" and 0 < int(mine["MASTER_PORT"]) < 65536
        assert int(mine["OMP_NUM_THREADS"]) == max(1, len(os.sched_getaffinity(0)) // 2)
    assert found["mezzo"][0]["MASTER_PORT"] == found["mezzo"][1]["MASTER_PORT"]


def test_what_is_set_already_and_several_nodes(tmp_path):
    script = 'echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $OMP_NUM_THREADS'
    port = free_port()
    nodes = [start(script, "nproc=2", "nnodes=2", f"node_rank={node}", "master_addr=localhost", f"master_port={port}",
                   env={**os.environ, "OMP_NUM_THREADS": "5"}) for node in range(2)]
    said = [sorted(finish(node)[0].splitlines()) for node in nodes]
    assert said == [[f"[rank {rank}] {rank} {rank % 2} 4 2 {node} 2 localhost:{port + 1} 5" for rank in (2 * node, 2 * node + 1)] for node in range(2)]


WORKER = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor(float(dist.get_rank() + 1))
dist.all_reduce(total)
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("sum", total.item(), "attempt", attempt, flush=True)
if attempt == 0 and dist.get_rank() == 1:
    sys.exit(5)
dist.barrier()
dist.destroy_process_group()  # Gloo's threads abort a process that ends before them.
"""


def test_torch_distributed_meets_on_two_nodes_and_again_after_a_restart():
    # Two launchers stand for two nodes. One rank fails; the other, on the
    # other node, loses its peer.
    port = free_port()
    nodes = [subprocess.Popen([LAUNCH, "nnodes=2", f"node_rank={node}", "master_addr=localhost", f"master_port={port}",
                               "max_restarts=1", "--", sys.executable, "-c", WORKER], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) for node in range(2)]
    for node, process in enumerate(nodes):
        stdout, stderr = finish(process)
        assert process.returncode == 0, stderr
        assert stdout == f"[rank {node}] sum 3.0 attempt 0\n[rank {node}] sum 3.0 attempt 1\n"
        assert stderr.count("; all ranks start again, restart 1 of 1\n") == 1


def test_the_port_may_be_taken():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = launch("true", "master_addr=localhost", f"master_port={port}")
    assert done.returncode == 100
    assert done.stderr.decode() == f"Error: port {port} is in use on this machine; choose another\n"


def test_stdin_goes_to_the_first_rank_alone():
    done = launch("cat", "nproc=2", input=b"a\nb\n")
    assert done.stdout == b"[rank 0] a\n[rank 0] b\n"


# --- output

def test_lines_stay_whole_and_on_their_stream():
    script = """for i in $(seq 400); do printf "$RANK-"; printf "$i"; printf " %0300d\\n" $i; echo "$RANK+$i" >&2; done"""
    done = launch(script, "nproc=3")
    for stream, pattern in (done.stdout, r"\[rank (\d)\] (\d)-(\d+) 0*(\d+)"), (done.stderr, r"\[rank (\d)\] (\d)\+(\d+)"):
        seen = {"0": [], "1": [], "2": []}
        for line in stream.decode().splitlines():
            match = re.fullmatch(pattern, line)
            assert match and match[1] == match[2], line
            seen[match[1]].append(int(match[3]))
        assert seen == dict.fromkeys("012", list(range(1, 401)))


def test_long_lines_binary_junk_and_closed_files_pass_through():
    done = launch(f"""{sys.executable} -c 'import os; os.write(1, b"x" * 900000 + b"\\n" + bytes(range(256)) + b"tail")'""")
    assert done.stdout == b"[rank 0] " + b"x" * 900000 + b"\n" + b"".join(
        b"[rank 0] " + line + b"\n" for line in (bytes(range(256)) + b"tail").split(b"\n"))
    done = launch("exec >&-; echo still here >&2; exec 2>&-; sleep 0.1", "nproc=2")
    assert done.returncode == 0 and done.stdout == b""
    assert sorted(done.stderr.decode().splitlines()) == ["[rank 0] still here", "[rank 1] still here"]


def test_a_reader_that_goes_away_ends_ranks_that_write_on(tmp_path):
    process = start('echo $$ > "$FOLDER/$RANK"; while :; do echo line; sleep 0.01; done', "nproc=2",
                    env={**os.environ, "FOLDER": str(tmp_path)})
    assert process.stdout.readline().endswith("line\n")
    process.stdout.close()
    assert process.wait(PATIENCE) == 128 + signal.SIGPIPE, process.stderr.read()
    process.stderr.close()
    assert [state(pid_in(tmp_path / rank)) for rank in "01"] == [None, None]


@pytest.mark.parametrize("stream", [1, 2])
def test_a_reader_that_goes_away_leaves_ranks_alone_that_do_not_mind(tmp_path, stream):
    process = start(f"trap '' PIPE; i=0; while [ $i -lt 50 ]; do echo line >&{stream}; sleep 0.01; i=$((i + 1)); done; > {tmp_path}/$RANK",
                    "nproc=2")
    reader = process.stdout if stream == 1 else process.stderr
    assert reader.readline().endswith("line\n")
    reader.close()
    assert process.wait(PATIENCE) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_a_full_disk_costs_the_output_but_not_the_run():
    with open("/dev/full", "w") as full:
        done = subprocess.run(command_line("echo lost; sleep 0.3; echo kept >&2", "nproc=1"), stdout=full,
                              stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert done.stderr == ("launch: cannot write to stdout, so the output of ranks is lost: No space left on device\n"
                           "[rank 0] kept\n")


def test_a_reader_that_pauses_holds_up_neither_signals_nor_loses_a_line():
    process = start('trap "exit 9" TERM; i=0; while [ $i -lt 60000 ]; do echo a line of rank $RANK, number $i; i=$((i + 1)); done', "nproc=2")
    wait_until("pipes are full", lambda: state(process.pid) == "S" and select.select([process.stdout], [], [], 0)[0])
    time.sleep(0.5)
    stdout, stderr = finish(process)
    assert process.returncode == 0 and stdout.count("\n") == 120000

    process = start("trap 'exit 0' TERM; while :; do echo line; done", "nproc=2", "grace_seconds=1")
    process.stdout.readline()
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)  # ranks hang in write(): only SIGKILL ends ranks that ignore SIGTERM
    wait_for_line(process.stderr, "SIGTERM: passed on")
    finish(process)
    assert process.returncode in (0, 143)


def screen(output):
    """The lines that a terminal shows which knows carriage returns and the erasing of the rest of a line."""
    lines, column = [""], 0
    for token in re.findall(r"\x1b\[K|.", output, re.S):
        if token == "\x1b[K":
            lines[-1] = lines[-1][:column]
        elif token == "\r":
            column = 0
        elif token == "\n":
            lines.append("")
            column = 0  # as a terminal does by default
        else:
            lines[-1] = lines[-1][:column] + token + lines[-1][column + 1:]
            column += 1
    return lines


class Terminal:
    """A launcher on a terminal, with its output."""

    def __init__(self, script, *options, columns=60):
        import fcntl
        import struct
        import termios

        self.reader, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.output = ""
        self.process = subprocess.Popen(command_line(script, *options), stdin=terminal, stdout=terminal, stderr=terminal,
                                        env={**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8"}, start_new_session=True)
        os.close(terminal)

    def read(self):
        if select.select([self.reader], [], [], 0.05)[0]:
            try:
                self.output += os.read(self.reader, 65536).decode()
            except OSError:  # closed at the other side
                pass
        return screen(self.output)

    def wait_for(self, condition):
        wait_until(condition, lambda: condition(self.read()) or self.process.poll() is not None)
        lines = self.read()
        assert condition(lines), lines
        return lines

    def end(self):
        assert self.process.wait(PATIENCE) == 0
        for _ in range(3):
            lines = self.read()
        os.close(self.reader)
        return lines


def test_on_a_terminal_the_first_rank_draws_and_lines_of_others_go_above(tmp_path):
    script = f"""
cd {tmp_path}
until_there() {{ while [ ! -e $1 ]; do sleep 0.02; done; }}
if [ $RANK = 0 ]; then
  test -t 2 && test ! -t 1 && echo columns $(stty size < /proc/self/fd/2) >&2
  printf '\\r10%%\\033[K' >&2; until_there a
  printf '\\r20%%\\033[K' >&2; until_there b
  echo out of rank 0; sleep 0.1
  printf '\\r\\033[Ka note\\n\\r30%%\\033[K' >&2; until_there c
  printf '\\r100%%\\033[K\\n' >&2
else
  until_there d; echo one; echo two >&2; until_there e
  test ! -t 2 && echo three
fi"""
    terminal = Terminal(script, "nproc=2")
    first = ["[rank 0] columns 24 51"]
    assert terminal.wait_for(lambda lines: "[rank 0] 10%" in lines) == [*first, "[rank 0] 10%"]
    (tmp_path / "d").touch()
    lines = terminal.wait_for(lambda lines: "[rank 1] one" in lines and "[rank 1] two" in lines and lines[-1] == "[rank 0] 10%")
    above = [*first, *sorted(lines[1:3])]
    (tmp_path / "a").touch()
    assert terminal.wait_for(lambda lines: lines[-1] == "[rank 0] 20%")[3:] == ["[rank 0] 20%"]
    (tmp_path / "b").touch()
    terminal.wait_for(lambda lines: lines[-1] == "[rank 0] 30%")
    (tmp_path / "e").touch()
    terminal.wait_for(lambda lines: "[rank 1] three" in lines and lines[-1] == "[rank 0] 30%")
    (tmp_path / "c").touch()
    lines = terminal.end()
    assert sorted(lines[:3]) == sorted(above)
    assert lines[3:] == ["[rank 0] out of rank 0", "[rank 0] a note", "[rank 1] three", "[rank 0] 100%", ""]


# --- failures

def test_the_first_failure_decides_the_status_and_a_clean_exit_ends_nobody():
    done = launch("sleep 0.$RANK; exit $RANK", "nproc=2")
    assert done.returncode == 1 and re.fullmatch(rb"launch: rank 1 \(pid \d+\) ended with exit status 1\n", done.stderr)
    done = launch("""if [ $RANK = 0 ]; then sleep 0.3; echo consequence >&2; exit 4; fi
                     echo "the \033[1mreason\033[0m" >&2; exit 3""", "nproc=2", "failure_grace_seconds=20")
    assert done.returncode == 3
    assert re.search(rb"\nlaunch: rank 1 \(pid \d+\) ended with exit status 3; it said: the reason\n$", done.stderr)


def test_a_rank_that_is_killed_is_named_with_its_signal(tmp_path):
    process = start('echo $$ > "$FOLDER/$RANK"; sleep 1000', "nproc=2", env={**os.environ, "FOLDER": str(tmp_path)})
    pids = [pid_in(tmp_path / rank) for rank in "01"]
    os.kill(pids[1], signal.SIGKILL)
    _, stderr = finish(process)
    assert process.returncode == 128 + 9
    assert stderr == f"launch: rank 1 (pid {pids[1]}) was killed by signal 9 (SIGKILL)\n"
    assert state(pids[0]) is None


def test_a_rank_that_does_not_heed_sigterm_is_killed():
    done = launch("""test $RANK = 1 && sleep 0.2 && exit 1; trap '' TERM; while :; do sleep 0.1; done""", "nproc=2", "failure_grace_seconds=0.3")
    assert done.returncode == 1
    assert re.fullmatch(rb"launch: rank 0 \(pid \d+\) did not end by SIGTERM in time, and is killed\n"
                        rb"launch: rank 1 \(pid \d+\) ended with exit status 1\n", done.stderr)


def test_a_rank_that_is_stopped_is_reported_and_may_go_on(tmp_path):
    process = start('echo $$ > "$FOLDER/$RANK"; while [ ! -e "$FOLDER/go" ]; do sleep 0.05; done', "nproc=2",
                    env={**os.environ, "FOLDER": str(tmp_path)})
    pid = pid_in(tmp_path / "1")
    os.kill(pid, signal.SIGSTOP)
    assert wait_for_line(process.stderr, "stopped") == f"launch: rank 1 (pid {pid}) is stopped by SIGSTOP; the others wait for it\n"
    os.kill(pid, signal.SIGCONT)
    assert wait_for_line(process.stderr, "goes") == f"launch: rank 1 (pid {pid}) goes on\n"
    os.kill(pid, signal.SIGSTOP)
    wait_for_line(process.stderr, "stopped")
    process.send_signal(signal.SIGTERM)  # reaches a stopped rank, too
    _, stderr = finish(process)
    assert process.returncode == 143 and state(pid) is None and "is killed" not in stderr


# --- signals

TRAPS = """trap 'echo got TERM; exit 143' TERM; trap 'echo got INT; exit 130' INT; echo ready
           while :; do sleep 0.02; done"""


@pytest.mark.parametrize("sent, passed_on", [("TERM", "TERM"), ("INT", "INT"), ("HUP", "TERM")])
def test_a_signal_is_passed_on_once_and_decides_the_status(sent, passed_on):
    process = start(TRAPS, "nproc=2", "max_restarts=3")
    for _ in range(2):
        wait_for_line(process.stdout, "ready")
    number = getattr(signal, f"SIG{sent}")
    process.send_signal(number)
    stdout, stderr = finish(process)
    assert process.returncode == 128 + number
    assert sorted(stdout.splitlines()) == [f"[rank 0] got {passed_on}", f"[rank 1] got {passed_on}"]
    own = [line for line in stderr.splitlines() if not line.startswith("[rank")]  # shells say what became of `sleep`
    assert own == ["launch: SIGHUP: the ranks get SIGTERM; SIGTERM or SIGINT to the launcher kills them" if sent == "HUP" else
                   f"launch: SIG{sent}: passed on to the ranks; a second one kills them"]


def test_ranks_that_end_well_after_a_signal_make_a_good_run():
    process = start("trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done", "nproc=1")
    wait_for_line(process.stdout, "ready")
    process.send_signal(signal.SIGTERM)
    finish(process)
    assert process.returncode == 0


def test_a_second_signal_or_the_end_of_the_grace_time_kills():
    stubborn = "trap '' INT TERM; echo ready; while :; do sleep 0.1; done"
    for grace, signals in ("grace_seconds=1000", 2), ("grace_seconds=0.3", 1):
        process = start(stubborn, "nproc=2", grace)
        for _ in range(2):
            wait_for_line(process.stdout, "ready")
        process.send_signal(signal.SIGINT)
        wait_for_line(process.stderr, "passed on")
        if signals == 2:
            process.send_signal(signal.SIGINT)
        _, stderr = finish(process)
        assert process.returncode == 130
        assert ("SIGINT again: the ranks are killed" if signals == 2 else "did not end by SIGINT in time, and is killed") in stderr


# --- nothing is left behind

FAMILY = """echo $$ > "$FOLDER/$RANK"; sleep 1000 & echo $! > "$FOLDER/child$RANK"; echo ready; wait"""


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL", "a rank fails"])
def test_no_process_of_a_rank_outlives_the_launcher(tmp_path, how):
    process = start(FAMILY, "nproc=2", env={**os.environ, "FOLDER": str(tmp_path)})
    for _ in range(2):
        wait_for_line(process.stdout, "ready")
    pids = [pid_in(tmp_path / name) for name in ("0", "1", "child0", "child1")]
    assert None not in map(state, pids)
    if how == "a rank fails":
        os.kill(pids[0], signal.SIGKILL)
    else:
        process.send_signal(getattr(signal, how))
    process.stdout.close(), process.stderr.close()
    process.wait(PATIENCE)
    if how == "SIGKILL":
        wait_until("the ranks to end", lambda: set(map(state, pids)) == {None})
    assert set(map(state, pids)) == {None}


def test_a_child_of_a_rank_may_finish_its_work_after_a_signal(tmp_path):
    # The shell ends by SIGTERM at once; the program it runs saves something first.
    script = f"""{sys.executable} -c 'import signal, sys, time
def save(*_):
    time.sleep(1.5); open("{tmp_path}/saved", "w").close(); sys.exit(143)
signal.signal(signal.SIGTERM, save); print("ready", flush=True); time.sleep(1000)'; true"""
    process = start(script, "nproc=1")
    wait_for_line(process.stdout, "ready")
    process.send_signal(signal.SIGTERM)
    finish(process)
    assert process.returncode == 143 and (tmp_path / "saved").exists()


def test_a_waiting_launcher_uses_no_processor_time(tmp_path):
    process = start('echo ready; while [ ! -e "$FOLDER/go" ]; do sleep 0.1; done', "nproc=2",
                    env={**os.environ, "FOLDER": str(tmp_path)})
    for _ in range(2):
        wait_for_line(process.stdout, "ready")
    time.sleep(0.1)

    def wakeups():
        return sum(int(n) for n in re.findall(r"switches:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text()))

    before = wakeups()
    time.sleep(1)
    assert wakeups() - before <= 2, "it polls"
    (tmp_path / "go").touch()
    finish(process)


# --- restarts

def test_restarts_count_up_and_stop():
    done = launch("echo first $TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS; exit 3", "max_restarts=2",
                  again="echo again $TORCHELASTIC_RESTART_COUNT; exit 4")
    assert done.returncode == 4
    assert done.stdout.decode().splitlines() == ["[rank 0] first 0/2", "[rank 0] again 1", "[rank 0] again 2"]
    assert re.fullmatch(r"launch: rank 0 \(pid \d+\) ended with exit status 3; all ranks start again, restart 1 of 2\n"
                        r"launch: rank 0 \(pid \d+\) ended with exit status 4; all ranks start again, restart 2 of 2\n"
                        r"launch: rank 0 \(pid \d+\) ended with exit status 4\n", done.stderr.decode())


# --- the program

def one_line(done, status):
    assert done.returncode == status, (done.returncode, done.stderr)
    assert done.stderr.count("\n") == 1 and done.stdout == "", done
    return done.stderr.strip()


@pytest.mark.parametrize("arguments, message", [
    ("launch", "there is no command to launch. Example: mezzo launch --nproc 2 -- train …"),
    ("launch --nproc 2", "there is no command to launch"),
    ("launch --nproc 2 --", "there is no command to launch"),
    ("launch -- train", "--nproc is required: the ranks on this node"),
    ("launch --nproc 0 -- train", "--nproc is 0, expected 1 to 1024"),
    ("launch -- eval --config nothing.toml", "--nproc is required: the ranks on this node"),
    ("launch --nproc 99999999 -- ops", "--nproc is 99999999, expected 1 to 1024"),
    ("launch --nproc two -- train", "--nproc 'two' is not a whole number"),
    ("launch --nprocs 2 -- train", "--nprocs is not an option of mezzo launch. Did you mean '--nproc'? See mezzo launch --help"),
    ("launch --nproc 2 -- trian", "'trian' is neither a command of mezzo nor a program on PATH. Did you mean 'train'? See mezzo launch --help"),
    ("launch --nproc 2 trian --nproc=", "'trian' is neither a command of mezzo nor a program on PATH. Did you mean 'train'?"),
    ("launch --nproc 2 -- tests", "'tests' is neither a command of mezzo nor a program on PATH. See mezzo launch --help"),
    ("launch --nproc 2 --min-nproc 1 -- eval", "--min-nproc is for mezzo train and for other programs; leave it out"),
    ("launch --nproc 2 -- launch", "'launch' is not a command to launch. See mezzo --help"),
    ("launch --nproc 2 --max-restarts -1 -- train", "--max-restarts is -1, expected at least 0"),
    ("launch --nproc 2 --nnodes 2 -- train", "--nnodes needs --master HOST:PORT: an address of node 0 that every node can reach"),
    ("launch --nproc 2 --nnodes 2 --master node0 -- train", "--master 'node0' is not HOST:PORT, such as node0:29500"),
    ("launch --nproc 2 --nnodes 2 --master ::1:29500 -- train", "--master '::1:29500' is not HOST:PORT"),
    ("launch --nproc 2 --nnodes 2 --master :29500 -- train", "--master ':29500' is not HOST:PORT"),
    ("launch --nproc 2 --nnodes 2 --master a:70000 -- train", "--master 'a:70000' is not HOST:PORT"),
    ("launch --nproc 2 --nnodes 2 --node-rank 2 --master a:29500 -- train", "--node-rank is 2, expected 0 to 1: nnodes is 2"),
    ("launch --nproc 2 --grace-time -1 -- train", "--grace-time is -1 seconds, expected 0 to 1e+06"),
    ("launch --nproc 1 --max-restarts 1 -- train --config nothing.toml", "nothing.toml: "),
])
def test_wrong_usage_is_one_line(arguments, message):
    line = one_line(mezzo(*arguments.split(), check=False), 2)
    assert line.startswith("mezzo launch: ") and message in line, line


def test_the_command_may_follow_with_or_without_dashes():
    expected = mezzo("tokenize", "--vocab", MINILM / "vocab.txt", stdin="a b\n").stdout
    for dashes in [], ["--"]:
        done = mezzo("launch", "--nproc", 2, *dashes, "tokenize", "--vocab", MINILM / "vocab.txt", stdin="a b\n")
        assert done.stdout == "[rank 0] " + expected and done.stderr == ""


def test_wrong_usage_of_the_command_is_not_tried_again():
    done = mezzo("launch", "--nproc", 2, "--max-restarts", 3, "--", "tokenize", "--nonsense", check=False)
    assert done.returncode == 2 and "again" not in done.stderr
    assert re.search(r"\nmezzo launch: rank \d \(pid \d+\) ended with exit status 2; it said: mezzo tokenize: .*\n$", done.stderr)


def write_program(path, script):
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return path


def launch_program(*arguments, **options):
    return subprocess.run([PROGRAM, "launch", *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE, **options)


@pytest.mark.parametrize("dashes", [[], ["--"]])
@pytest.mark.parametrize("name", ["/program", "./program", "program"])
def test_any_program_may_be_launched_with_its_arguments_as_they_are(name, dashes, tmp_path):
    program = write_program(tmp_path / "program", 'echo $RANK $LOCAL_RANK/$WORLD_SIZE $MASTER_ADDR; for argument; do echo "$argument"; done')
    arguments = ["train", "--name=", "--nproc", "3", "--", "--config", "x.toml", "--quiet=maybe", "a b", ""]
    done = launch_program("--nproc", 2, *dashes, program if name == "/program" else name, *arguments, cwd=tmp_path,
                          env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"} if name == "program" else None)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    for rank in range(2):
        said = [line.removeprefix(f"[rank {rank}] ") for line in done.stdout.splitlines() if line.startswith(f"[rank {rank}]")]
        assert said == [f"{rank} {rank}/2 127.0.0.1", *arguments]


def test_a_program_that_cannot_be_run_is_one_line(tmp_path):
    program = write_program(tmp_path / "program", "true")
    program.chmod(0o644)
    (tmp_path / "folder").mkdir()
    scripts = {"lost": "#!/no/such/interpreter -x\n", "dos": "#!/bin/sh\r\n"}
    for name, script in scripts.items():
        (tmp_path / name).write_bytes(script.encode())
        (tmp_path / name).chmod(0o755)
    lost = "its first line names the interpreter /no/such/interpreter: No such file or directory. Install it, or correct the line"
    on_path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for given, why in {"./program": "it is not executable. Run: chmod +x ./program", "./none": "it does not exist. Check the path",
                       "./folder": "it is a folder. Name a program in it", "./lost": lost, "lost": lost,
                       "./dos": "its first line names the interpreter /bin/sh and ends in a carriage return. Save the file with Unix line ends"}.items():
        said = one_line(launch_program("--nproc", 2, "--", given, cwd=tmp_path, env=on_path), 1)
        assert said == f"mezzo launch: cannot run '{given}': {why}"
    assert one_line(launch_program("--nproc", 2, "--", "program", cwd=tmp_path), 2) == (
        "mezzo launch: 'program' is neither a command of mezzo nor a program on PATH. For the file of that name pass ./program. See mezzo launch --help")


def test_a_program_on_a_file_system_without_programs_is_told(tmp_path):
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine allows no private mounts")
    script = 'mount -t tmpfs -o noexec mezzo "$0" && cp /bin/true "$0/program" && exec "$@"'
    program = tmp_path / "program"
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script, tmp_path, PROGRAM, "launch", "--nproc", "1", "--", program], capture_output=True,
                          text=True, timeout=120)
    assert one_line(done, 1) == f"mezzo launch: cannot run '{program}': its file system allows no programs (noexec). Copy it to another file system"


def test_a_program_is_started_again_and_with_fewer_ranks(tmp_path):
    program = write_program(tmp_path / "program", """echo start $TORCHELASTIC_RESTART_COUNT of $WORLD_SIZE "$@"
test $TORCHELASTIC_RESTART_COUNT = 1 || exit 0$STATUS""")
    done = launch_program("--nproc", 1, "--max-restarts", 1, program, "a", env={**os.environ, "STATUS": "2"})
    assert done.returncode == 0 and done.stdout.splitlines() == ["[rank 0] start 0 of 1 a", "[rank 0] start 1 of 1 a"]
    write_program(program, """test $TORCHELASTIC_RESTART_COUNT = 1 && exec echo goes on with $WORLD_SIZE
test $RANK = 1 && kill -KILL $$; sleep 1000""")
    done = launch_program("--nproc", 2, "--min-nproc", 1, "--", program)
    assert done.returncode == 0 and done.stdout == "[rank 0] goes on with 1\n", done.stderr
    assert "was killed by signal 9 (SIGKILL); 1 of 2 ranks start again, restart 1 of 1" in done.stderr


def test_signals_reach_a_program(tmp_path):
    process = subprocess.Popen([PROGRAM, "launch", "--nproc", "2", write_program(tmp_path / "program", TRAPS)], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for _ in range(2):
        wait_for_line(process.stdout, "ready")
    process.send_signal(signal.SIGTERM)
    stdout, _ = finish(process)
    assert process.returncode == 143 and sorted(stdout.splitlines()) == ["[rank 0] got TERM", "[rank 1] got TERM"]


def test_a_program_of_the_library_trains_on_two_ranks():
    done = launch_program("--nproc", 2, "--", Path(os.environ["MEZZO_EXAMPLES"]) / "example_distributed_data_parallel")
    assert done.returncode == 0 and re.search(r"^\[rank 0\] loss \S+ -> \S+$", done.stdout, re.M), done.stderr


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    random_bert(folder, vocab_size=30522, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    rng = random.Random(0)
    rows = [{"text": " ".join(rng.choices("goal team law vote rain storm".split(), k=5)), "label": str(i % 2)} for i in range(120)]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return folder


def train(small, output, *more):
    return ["train", "--recipe", "reference", "--model-config", small / "config.json", "--vocab", MINILM / "vocab.txt", "--train", small / "train.jsonl",
            "--output", output, "--max-steps", 1000, "--batch-size", 4, "--save-every", 30, "--eval-every", 0,
            "--precision", "fp32", *more]


def sha(output):
    return hashlib.sha256((output / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def whole(small, tmp_path_factory):
    output = tmp_path_factory.mktemp("whole") / "out"
    mezzo(*train(small, output))
    return output


def rank_of(launcher):
    return int(wait_until("a rank", lambda: [pid for pid in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
                                             if Path(f"/proc/{pid}/cmdline").read_text().split("\0")[1] == "train"])[0])


def steps_in(output):
    """How many are recorded; none while the run before is being cleared away."""
    try:
        return (output / "metrics.jsonl").read_text().count('"event":"step"')
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize("how", ["flags", "file"])
def test_training_goes_on_from_its_last_checkpoint_when_it_is_killed(small, whole, tmp_path, how):
    cut = tmp_path / "cut"
    shutil.copytree(whole, cut)  # a run that is to be replaced, once
    (cut / "metrics.jsonl").write_text("")
    (tmp_path / "run.toml").write_text("overwrite = true\nquiet = false\n")
    more = ["--overwrite"] if how == "flags" else ["--config", tmp_path / "run.toml"]
    process = subprocess.Popen([PROGRAM, "launch", "--nproc", "1", "--max-restarts", "1", "--", *map(str, train(small, cut, *more))],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until("the run gets on", lambda: steps_in(cut) > 70)
    rank = rank_of(process)
    os.kill(rank, signal.SIGKILL)
    _, stderr = finish(process)
    assert process.returncode == 0, stderr
    assert f"mezzo launch: rank 0 (pid {rank}) was killed by signal 9 (SIGKILL); all ranks start again, restart 1 of 1\n" in stderr
    assert re.search(r"^\[rank 0\] resumed after step [1-9]\d*$", stderr, re.M)
    assert sha(cut) == sha(whole)
    assert [record["step"] for record in records(cut, "step")] == list(range(1, 1001))


def test_a_run_that_went_back_and_is_killed_goes_on_from_what_it_saved_since(small, tmp_path):
    cut = tmp_path / "cut"
    flags = train(small, cut, "--keep", 99)
    mezzo(*flags)
    expected = sha(cut)
    back = [*flags, "--overwrite", "--resume", cut / "checkpoints/step-30"]
    process = subprocess.Popen([PROGRAM, "launch", "--nproc", "1", "--max-restarts", "1", "--", *map(str, back)],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until("the run gets on", lambda: not (cut / "checkpoints/step-960").exists() and 120 < steps_in(cut) < 1000)
    os.kill(rank_of(process), signal.SIGKILL)
    _, stderr = finish(process)
    assert process.returncode == 0, stderr
    first, second = map(int, re.findall(r"^\[rank 0\] resumed after step (\d+)$", stderr, re.M))
    assert first == 30 and second >= 90
    assert sha(cut) == expected
    assert [record["step"] for record in records(cut, "step")] == list(range(1, 1001))


def test_ctrl_c_saves_a_checkpoint_and_resume_stays_as_given(small, tmp_path):
    process = subprocess.Popen([PROGRAM, "launch", "--nproc", "1", "--max-restarts", "1", "--", *map(str, train(small, tmp_path / "out", "--max-steps", 100000))],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until("the run gets on", lambda: steps_in(tmp_path / "out") > 5)
    process.send_signal(signal.SIGINT)
    _, stderr = finish(process)
    assert process.returncode == 130
    stopped = re.search(r"^\[rank 0\] stopped after step (\d+); go on with --resume auto$", stderr, re.M)[1]
    assert (tmp_path / f"out/checkpoints/step-{stopped}/manifest.json").exists()
    done = mezzo("launch", "--nproc", 1, "--max-restarts", 1, "--", *train(small, tmp_path / "new", "--resume", tmp_path / "none"), check=False)
    assert done.returncode == 1 and done.stderr.count("none: ") >= 2, "the restart would have found nothing to resume, and started afresh"


def test_ranks_of_slurm_meet_where_rank_0_is(small, tmp_path):
    """As srun on a login node sets the variables: rank 0 is on the step's first node, and not where srun runs."""
    def variables(rank):
        return dict(SLURM_PROCID=str(rank), SLURM_STEP_NUM_TASKS="2", SLURM_NODEID=str(rank), SLURM_STEP_TASKS_PER_NODE="1(x2)",
                    SLURM_LOCALID="0", SLURM_JOB_ID=str(os.getpid()), SLURM_STEP_ID="0", SLURM_STEP_NODELIST="localhost",
                    SLURM_LAUNCH_NODE_IPADDR="192.0.2.1")

    command = [PROGRAM, *map(str, train(small, tmp_path / "out", "--max-steps", 1, "--timeout", 20))]
    both = [subprocess.Popen(command, env={**os.environ, **variables(rank)}, stderr=subprocess.PIPE, text=True) for rank in range(2)]
    said = [finish(process)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said


@pytest.mark.parametrize("rank", [0, 1])
def test_a_host_of_slurm_that_has_no_address_is_told_at_once(rank, small, tmp_path):
    variables = dict(SLURM_PROCID=str(rank), SLURM_STEP_NUM_TASKS="2", SLURM_NODEID=str(rank), SLURM_STEP_TASKS_PER_NODE="1(x2)", SLURM_LOCALID="0",
                     SLURM_JOB_ID="77", SLURM_STEP_NODELIST="no-such-host.invalid,other")
    done = subprocess.run([PROGRAM, *map(str, train(small, tmp_path / "out"))], env={**os.environ, **variables}, capture_output=True, text=True,
                          timeout=PATIENCE)  # a tenth of --timeout
    assert re.fullmatch(f"mezzo train: rank {rank} cannot resolve the host 'no-such-host.invalid', where rank 0 is: [^.;]+. Set MASTER_ADDR, for "
                        "all ranks, to a name or an address of that host that all hosts can resolve\n", done.stderr), done.stderr
    assert done.returncode == 1


def test_a_machine_without_its_loopback_network_is_told(tmp_path):
    if subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine allows no network of its own")
    done = subprocess.run(["unshare", "-rn", PROGRAM, "launch", "--nproc", "2", "--", "train", "--model", tmp_path, "--train", tmp_path / "x",
                           "--output", tmp_path / "out"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert "mezzo launch: cannot reach itself at 127.0.0.1:" in done.stderr and "ip link set lo up" in done.stderr
