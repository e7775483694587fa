"""Trains tiny models, breaks the runs at random moments in every way known here, and resumes them. Compares weights, optimizer
states and every loss with undisturbed runs, bit for bit. Writes a page.

    python tools/crash_test.py --trials 3000 --jobs 2 --results benchmarks/results

A trial is a run of a random kind that is broken up to three times and then left in peace. Its number determines it:
`--first 217 --trials 1 --keep DIR` is trial 217 again, on a machine that allows the same faults. Only the moments differ: they
depend on the time of a run there. Each life must end in time, with a status of docs/exit_statuses.md, and without signs of a
crash. The last life must have the bits of the undisturbed run, all checkpoints intact, and no leftovers.
"""
import argparse
import collections
import concurrent.futures
import fcntl
import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STEPS, SAVE_EVERY, EVAL_EVERY = 40, 4, 5
LIMIT = 180  # seconds after which a life hangs; many times its duration on a busy machine
TIMEOUT = 5  # of ranks that wait for each other, which a cut link leaves to
STOPPED = {128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
PRECISIONS = {"fp32": [], "bf16": ["--precision", "bf16"], "bf16 masters": ["--precision", "bf16", "--master-weights"],
              "fp16": ["--precision", "fp16", "--init-scale", 1024, "--growth-interval", 7],
              "fp16 masters": ["--precision", "fp16", "--master-weights", "--init-scale", 2**26]}
RANKS = {1: [[]], 2: [[], ["--zero-stage", 1], ["--all-reduce", "backend"]], 3: [[], ["--zero-stage", 1]]}
EXTRAS = {"plain": [], "average": ["--ema-decay", 0.9], "linear": ["--schedule", "linear", "--warmup-ratio", 0.1]}


@dataclass(frozen=True)
class Kind:
    """What is trained."""

    precision: str
    ranks: int
    way: tuple
    extra: str
    fewer: bool  # whether it goes on with those ranks that are left, or any number that gives the same bits

    def command(self, data, output, *more, ranks=None):
        ranks = ranks or self.ranks
        launch = ["launch", "--nproc", ranks, *(["--min-nproc", 1] if self.fewer else []), "--"] if ranks > 1 else []
        given = tiny_runs.flags(data, output, *PRECISIONS[self.precision], *self.way, *EXTRAS[self.extra], "--max-steps", STEPS,
                                "--eval-every", EVAL_EVERY, "--timeout", TIMEOUT, *(["--shares", self.ranks] if self.fewer else []), *more)
        given[given.index("--save-every") + 1] = str(SAVE_EVERY)
        return list(map(str, [*launch, *given]))

    def title(self):
        ranks = f"{self.ranks} ranks" if self.ranks > 1 else "1 rank"
        return " ".join(map(str, [self.precision, ranks, *(["or fewer"] if self.fewer else []), *self.way, self.extra]))


@dataclass
class Whole:
    """A run that was left in peace."""

    weights: str
    losses: list
    last: dict      # of its last checkpoint, by file
    seconds: float
    calls: int      # that write to its folder


@dataclass
class Life:
    """A start of the program, and what befell it."""

    fault: str
    status: int
    stderr: str
    seconds: float
    fell: bool  # whether the fault came before the end
    fewer: bool  # whether ranks went on for others that were lost, or a checkpoint with another number of them


class Inconsistency(Exception):
    pass


def random_kind(chance):
    precision, ranks = chance.choice(list(PRECISIONS)), chance.choice([1, 1, 2, 2, 3])
    way, extra = chance.choice(RANKS[ranks]), chance.choice(list(EXTRAS))
    if extra == "average" and "--zero-stage" in way and "masters" in precision:  # which mezzo refuses
        extra = "plain"
    fewer = ranks > 1 and not way and "masters" not in precision and chance.random() < 0.7
    return Kind(precision, ranks, tuple(way), extra, fewer)


def descendants(pid):
    """The process and all below it, the parents first."""
    parents = collections.defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])].append(int(entry.name))
            except (OSError, IndexError):
                continue  # it has just ended
    found = [pid]
    for one in found:
        found += parents[one]
    return found


def programs(pid):
    """The processes of mezzo among `pid` and its descendants."""
    found = []
    for one in descendants(pid):
        try:
            if Path(os.readlink(f"/proc/{one}/exe")).name not in AROUND:
                found.append(one)
        except OSError:
            continue
    return found


def in_session(session):
    """Processes of it that have not ended, orphans included."""
    alive = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit():
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    alive.append(int(entry.name))
        except (OSError, IndexError):
            continue
    return alive


def send(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


# ---- what befalls a life: each takes (process, trial) at its moment, and returns whether it came in time ----

def kill(process, trial):
    """All of it at once, as in a power failure; or one process of it, the launcher included."""
    pids = programs(process.pid)
    send(pids if trial.chance.random() < 0.5 else [trial.chance.choice(pids)] if pids else [], signal.SIGKILL)
    return bool(pids)


def interrupt(process, trial):
    pids = programs(process.pid)
    if pids:
        send([pids[0] if trial.chance.random() < 0.7 else trial.chance.choice(pids)],
             trial.chance.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP]))
    return bool(pids)


def stop(process, trial):
    """One process or all stand still for a while and go on, or are killed as they stand."""
    pids = programs(process.pid)
    if not pids:
        return False
    pids = pids if trial.chance.random() < 0.3 else [trial.chance.choice(pids)]
    send(pids, signal.SIGSTOP)
    time.sleep(trial.chance.uniform(0.01, 0.6))
    send(pids, signal.SIGKILL if trial.chance.random() < 0.4 else signal.SIGCONT)
    return True


def vanish(process, trial):
    """The folder, or its checkpoints, is taken away; it comes back once the program has ended, or does not."""
    taken = trial.output if trial.chance.random() < 0.5 else trial.output / "checkpoints"
    away = trial.folder / "away"
    try:
        taken.rename(away)
    except OSError:
        return False  # it was not there yet
    trial.comes_back = (taken, away) if trial.chance.random() < 0.5 else None
    if trial.comes_back is None:
        shutil.rmtree(away)
    return bool(programs(process.pid))


def cut(process, trial):
    """The ranks' network goes down, for good or for a moment."""
    names = [f"/proc/{pid}/ns/net" for pid in programs(process.pid)[:1]]
    try:
        with open(names[0]) as theirs:
            set_loopback(theirs.fileno(), up=False)
            if trial.chance.random() < 0.5:
                time.sleep(trial.chance.uniform(0.01, 1))
                set_loopback(theirs.fileno(), up=True)
        return True
    except (OSError, IndexError):
        return False


def set_loopback(namespace, up):
    """In a thread, which alone enters the namespace."""
    problems = []

    def work():
        try:
            os.setns(namespace, 0) if hasattr(os, "setns") else setns(namespace)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
                name, get, set_, is_up = b"lo".ljust(16, b"\0"), 0x8913, 0x8914, 1
                flags, = struct.unpack_from("16xh", fcntl.ioctl(any_socket, get, name + bytes(16)))
                fcntl.ioctl(any_socket, set_, name + struct.pack("h14x", flags | is_up if up else flags & ~is_up))
        except OSError as error:
            problems.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if problems:
        raise problems[0]


def setns(namespace):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")


AROUND = {"sh", "dash", "bash", "unshare", "mount", "ip"}  # what makes the surroundings of a life
MOMENTS = {"SIGKILL": kill, "SIGTERM, SIGINT, SIGHUP": interrupt, "SIGSTOP": stop, "a vanished folder": vanish, "a cut link": cut}
CALLS = ["ENOSPC", "EIO", "short writes and SIGKILL", "SIGKILL before a write"]


class Trial:
    def __init__(self, number, data, folder, options):
        self.chance = random.Random(number)
        self.number, self.data, self.folder, self.options = number, data, folder, options
        self.kind = random_kind(self.chance)
        self.output = folder / "out"
        self.comes_back = None
        self.lives = []

    def fault(self):
        kinds = ["SIGKILL", "SIGKILL", "SIGTERM, SIGINT, SIGHUP", "SIGSTOP", "a vanished folder", *CALLS]
        if self.kind.ranks > 1 and self.options.has_namespaces:
            kinds += ["a cut link", "a full /dev/shm"]
        return self.chance.choice(kinds)

    def run(self, whole):
        for _ in range(self.chance.choice([1, 1, 2, 3])):
            if self.is_over(self.live(self.fault(), whole), whole):
                return
        self.live("", whole)  # of one that was killed behind its end, nothing is left to do
        self.check_end(whole)

    def live(self, fault, whole):
        wrap, variables = [], {"OMP_NUM_THREADS": "1"}
        if fault in CALLS:
            first = self.chance.randrange(1, whole.calls + 1)
            name = {"short writes and SIGKILL": "short", "SIGKILL before a write": "kill"}.get(fault, fault)
            variables |= tiny_runs.faults(self.output, name, first, count=self.chance.choice([1, 1, 3, 20]))
        if fault == "a full /dev/shm":
            size = self.chance.choice(["4k", "64k"])
            wrap = ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o size={size} mezzo /dev/shm; exec "$@"', "sh"]
        if fault == "a cut link":
            wrap = ["unshare", "-rn", "sh", "-c", 'ip link set lo up; exec "$@"', "sh"]
        moment = MOMENTS.get("SIGKILL" if fault == "short writes and SIGKILL" else fault)
        more = ["--resume", "auto"] if self.output.exists() else []
        ranks = self.chance.choice([1, self.kind.ranks - 1, self.kind.ranks]) if more and self.kind.fewer else None
        begin, fell = time.monotonic(), fault not in ["", *MOMENTS]
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen([*wrap, os.environ["MEZZO_PROGRAM"], *self.kind.command(self.data, self.output, *more, ranks=ranks)],
                                       stdout=subprocess.DEVNULL, stderr=said, env={**os.environ, **variables}, start_new_session=True)
            try:
                if moment:
                    self.wait(process, self.chance.uniform(0, 1.1 * whole.seconds))
                    fell = process.poll() is None and moment(process, self)
                status = process.wait(timeout=LIMIT)
            except subprocess.TimeoutExpired:
                raise Inconsistency(f"hangs {LIMIT} s after {fault or 'nothing'}")
            finally:
                if process.poll() is None:
                    send(in_session(process.pid), signal.SIGKILL)
                    process.wait()
            self.wait_for_ranks(process.pid)
            said.seek(0)
            told = said.read()
            fewer = "ranks start again" in told or (ranks not in (None, self.kind.ranks) and "resumed after" in told)
            self.lives.append(Life(fault, status, told, time.monotonic() - begin, fell, fewer))
        for word in ("terminate called", "Segmentation", "Assertion", "std::bad", "what():", "Traceback"):
            if word in told:
                raise Inconsistency(f"says '{word}'")
        return self.lives[-1]

    @staticmethod
    def wait(process, seconds):
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            pass

    @staticmethod
    def wait_for_ranks(session):
        """Of a launcher that was killed: they end by themselves."""
        deadline = time.monotonic() + LIMIT
        while alive := in_session(session):
            if time.monotonic() > deadline:
                send(alive, signal.SIGKILL)
                raise Inconsistency(f"processes {alive} outlive their launcher by {LIMIT} s")
            time.sleep(0.02)

    def is_over(self, life, whole):
        """Whether the run has come to its end. Forbidden behaviour of a life is an inconsistency."""
        if self.comes_back:
            taken, away = self.comes_back
            self.comes_back = None
            if taken.exists() and taken == self.output and life.status not in (0, 3):  # else it had begun there after all
                raise Inconsistency("made its folder again, which was taken away")
            if not taken.exists() and taken.parent.exists():
                away.rename(taken)
            else:
                shutil.rmtree(away)
        if life.status in (0, 3) and life.fault == "a vanished folder" and not (self.output / "model.safetensors").exists():
            return False  # it had come to its end just before
        if life.status in (0, 3):
            self.check_end(whole)
            return True
        killed = {-signal.SIGKILL, 128 + signal.SIGKILL}
        early = {-number for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}  # before the program had begun its work
        stopped = STOPPED | early if life.fault.startswith("SIGTERM") else set()
        if life.status not in {1} | stopped | killed:
            raise Inconsistency(f"status {life.status}")
        if life.status in killed and not ("KILL" in life.fault or life.fault == "SIGSTOP"):
            raise Inconsistency("was killed, and nobody had")
        if life.status == 1 and not life.stderr.strip():
            raise Inconsistency("failed without a word")
        return False

    def check_end(self, whole):
        last = self.lives[-1]
        if not last.fault and last.status != 0:
            raise Inconsistency(f"left in peace, ends with status {last.status}")
        if not last.fault and "passed over" in last.stderr:
            raise Inconsistency("a checkpoint is damaged")
        if tiny_runs.model_of(self.output) != whole.weights:
            raise Inconsistency("other weights")
        if tiny_runs.losses_of(self.output) != whole.losses:
            raise Inconsistency("other losses")
        leftovers = [str(path) for path in self.output.rglob("*") if path.name.startswith(".") and path.name != ".run.lock"]
        if not last.fault and leftovers:
            raise Inconsistency(f"leaves {leftovers}")
        for name, expected in whole.last.items():
            saved = self.output / f"checkpoints/step-{STEPS}" / name
            if saved.exists() and tiny_runs.sha(saved) != expected:
                raise Inconsistency(f"another {name} in its last checkpoint")


def train_in_peace(kind, data, folder):
    output = folder / "whole"
    calls = len(tiny_runs.logged_calls(kind.command(data, output), output, folder / "log"))
    shutil.rmtree(output)
    begin = time.monotonic()
    tiny_runs.trained(kind.command(data, output))
    seconds = time.monotonic() - begin
    last = {name: tiny_runs.sha(output / f"checkpoints/step-{STEPS}" / name)
            for name in ("weights.safetensors", "optimizer.safetensors")}
    return Whole(tiny_runs.model_of(output), tiny_runs.losses_of(output), last, seconds, calls)


class CrashTest:
    def __init__(self, data, options):
        self.data, self.options = data, options
        self.wholes, self.lock = {}, threading.Lock()
        self.begun = time.monotonic()
        self.results = []

    def whole(self, kind):
        with self.lock:
            if kind not in self.wholes:
                with tempfile.TemporaryDirectory(dir=self.options.folder) as folder:
                    self.wholes[kind] = train_in_peace(kind, self.data, Path(folder))
            return self.wholes[kind]

    def trial(self, number):
        if self.options.seconds and time.monotonic() - self.begun > self.options.seconds:
            return None
        folder = Path(tempfile.mkdtemp(prefix=f"trial-{number}-", dir=self.options.folder))
        trial, problem = Trial(number, self.data, folder, self.options), ""
        try:
            trial.run(self.whole(trial.kind))
        except Inconsistency as found:
            problem = str(found)
        except Exception:  # of this program
            problem = traceback.format_exc()
        if problem and self.options.keep:
            kept = Path(self.options.keep) / f"trial-{number}"
            shutil.copytree(folder, kept, dirs_exist_ok=True)
            for i, life in enumerate(trial.lives):
                (kept / f"life-{i}.txt").write_text(f"{life.fault}\nstatus {life.status}, {life.seconds:.1f} s\n{life.stderr}")
        shutil.rmtree(folder, ignore_errors=True)
        told = dict(trial=number, kind=trial.kind.title(), precision=trial.kind.precision.split()[0], ranks=trial.kind.ranks,
                    commit=self.options.commit, lives=[dict(fault=life.fault, status=life.status, fell=life.fell, fewer=life.fewer, seconds=round(life.seconds, 2),
                                resumed="resumed after" in life.stderr) for life in trial.lives], problem=problem)
        if problem:
            print(f"trial {number}, {told['kind']}, {[(life.fault, life.status) for life in trial.lives]}: {problem}", flush=True)
        return told

    def read_log(self):
        """The results of earlier calls. A trial that failed stays on the page, even if it passes later."""
        if self.options.log and Path(self.options.log).exists():
            self.results = list(map(json.loads, Path(self.options.log).read_text().splitlines()))

    def run(self):
        self.read_log()
        done = {result["trial"] for result in self.results}
        numbers = [number for number in range(self.options.first, self.options.first + self.options.trials) if number not in done]
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            for told in pool.map(self.trial, numbers):
                if told is None:
                    continue
                self.results.append(told)
                if self.options.log:
                    with open(self.options.log, "a") as log:
                        log.write(json.dumps(told) + "\n")
                if len(self.results) % 50 == 0:
                    found = sum(bool(result["problem"]) for result in self.results)
                    print(f"{len(self.results)} trials, {found} inconsistencies, {time.monotonic() - self.begun:.0f} s", flush=True)
        return self.results


def benchmarks_support():
    """benchmarks/support.py; the tests have one of that name, too."""
    spec = importlib.util.spec_from_file_location("benchmarks_support", ROOT / "benchmarks/support.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tables(benchmarks, results):
    faults = collections.defaultdict(lambda: collections.Counter())
    cells = collections.Counter()
    for result in results:
        cells[result["precision"], result["ranks"]] += 1
        for i, life in enumerate(result["lives"]):
            if life["fault"]:
                row = faults[life["fault"]]
                row["lives"] += 1
                row["fell"] += life["fell"]
                row["ended"] += life["status"] not in (0, 3)
                row["resumed"] += life["status"] not in (0, 3) and result["lives"][i + 1]["resumed"] if i + 1 < len(result["lives"]) else 0
    by_fault = benchmarks.table(["what befell", "lives", "of them in time", "that ended the run", "resumed from a checkpoint"],
                                [[name, *(row[key] for key in ("lives", "fell", "ended", "resumed"))] for name, row in sorted(faults.items())])
    ranks = sorted({number for _, number in cells})
    by_kind = benchmarks.table(["trials", *(f"{number} rank{'s' * (number > 1)}" for number in ranks)],
                               [[name, *(cells[name, number] for number in ranks)] for name in ("fp32", "bf16", "fp16")])
    return by_kind, by_fault


def write_page(results, options):
    benchmarks = benchmarks_support()
    found = [result for result in results if result["problem"]]
    lives = sum(len(result["lives"]) for result in results)
    about = (f"**{len(results):,} trials, {lives:,} starts of the program, {len(found)} inconsistencies**, of mezzo"
             f" {', '.join(sorted({result['commit'] for result in results}))}."
             f" A trial is a run of {STEPS} steps with a checkpoint every {SAVE_EVERY}, written beside training, broken up to three times at"
             " random moments, resumed each time, and then left to end: its weights, and those and the optimizer's states of its last"
             " checkpoint, have the sha256, and its records the losses, of a run that nobody touched. "
             f"{sum(life['fewer'] for result in results for life in result['lives']):,} times it went on with fewer ranks than it had begun with, by"
             " itself (`mezzo launch --min-nproc`) or as it was resumed. [What each is](../../tools/crash_test.py).")
    problems = [f"- trial {result['trial']}, {result['kind']}: {result['problem']}" for result in found]
    benchmarks.page(options, "crash_test", "Runs that were broken off", about, *tables(benchmarks, results), *(["\n".join(problems)] if problems else []))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=3000)
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--seconds", type=float, help="begin no trial after so many")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="trials side by side")
    parser.add_argument("--folder", help="where runs are written; a temporary folder where it is left out")
    parser.add_argument("--keep", help="folder that gets what a trial with an inconsistency left")
    parser.add_argument("--log", help="file that gets a line of JSON for each trial; those that it has already are not run again")
    parser.add_argument("--results", type=Path, help="folder of the page; none is written where it is left out")
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    options = parser.parse_args()
    for name, value in dict(MEZZO_PROGRAM=options.build / "bin/mezzo", MEZZO_SHARED=ROOT.parent / "shared",
                            MEZZO_WRITE_FAULTS=options.build / "python/libwrite_faults.so").items():
        os.environ.setdefault(name, str(value))
    sys.path[:0] = [str(ROOT / "tests/python"), str(ROOT / "tests/python/program")]
    global tiny_runs
    import tiny_runs
    options.has_namespaces = os.geteuid() == 0 and subprocess.run(["unshare", "-rmn", "true"], capture_output=True).returncode == 0
    if not options.has_namespaces:
        print("crash_test: no namespaces, which root alone may enter: no cut link, no full /dev/shm", flush=True)
    options.commit = benchmarks_support().commit()
    with tempfile.TemporaryDirectory() as folder:
        test = CrashTest(tiny_runs.write_data(Path(folder) / "data"), options)
        results = test.run()
    found = sum(bool(result["problem"]) for result in results)
    print(f"{len(results)} trials, {sum(len(result['lives']) for result in results)} starts, {found} inconsistencies,"
          f" {time.monotonic() - test.begun:.0f} s")
    if options.results:
        write_page(results, options)
    sys.exit(found > 0)


if __name__ == "__main__":
    main()
