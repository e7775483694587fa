"""Trains with 1, 2, 4 … threads up to this machine's processors, mezzo and the fastest Python program in turn. Writes
benchmarks/results/threads.md: texts a second, and the part of a step that more threads do not shorten. Also counts the time that
each of up to 64 threads computes, on any number of processors. The busiest thread has the work that is not shared. Then trains
beside another program: a loop that needs one processor, and a program with OpenMP threads on all."""
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import support

WORKLOADS = [("BERT-base", support.BASE, "fp32"), ("BERT-base", support.BASE, "bf16"), ("MiniLM", support.MINILM, "fp32"),
             ("MiniLM", support.MINILM, "bf16")]
PARTS = ["forward", "backward", "update", "batch"]


@dataclass
class Runs:
    mezzo: list = field(default_factory=list)  # texts a second
    step: list = field(default_factory=list)   # seconds of it, by part
    peer: list = field(default_factory=list)


def counts_of(most):
    """1, 2, 4 … and `most`."""
    return [*(2**i for i in range(most.bit_length()) if 2**i < most), most]


def train(model, precision, threads, folder, options, env=None):
    flags = ["--model-config", support.write_config(folder, model), "--vocab", options.vocab, "--train", options.train, "--limit",
             options.limit, "--precision", precision, "--device", "cpu", "--threads", threads]
    steps = support.train(folder / "out", *flags, "--batch-size", options.batch, "--max-steps", options.warmup + options.steps,
                          env={"OMP_NUM_THREADS": str(threads), **(env or {})})
    timed = [record for record in steps if record["event"] == "step"][options.warmup:]
    seconds = sum(record["seconds"] for record in timed)
    parts = {part: sum(record["parts"][part] for record in timed) / len(timed) for part in PARTS}
    parts["all"] = seconds / len(timed)
    return sum(record["samples"] for record in timed) / seconds, parts


def count(model, precision, threads, folder, options):
    """Milliseconds a step that threads compute, the busiest first, as the kernel counts them. They wait asleep, not spinning."""
    out = folder / f"count-{threads}"
    command = [support.PROGRAM, *support.TRAIN, "--model-config", support.write_config(folder, model), "--vocab", options.vocab, "--train",
               options.train, "--limit", options.limit, "--precision", precision, "--device", "cpu", "--threads", threads, "--batch-size",
               options.batch, "--output", out, "--save-minutes", 0, "--max-steps", 100_000]
    process = subprocess.Popen(list(map(str, command)), env={**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive",
                                                             "GOMP_SPINCOUNT": "0"})

    def steps():
        return len(support.records(out, "step")) if (out / "metrics.jsonl").exists() else 0

    def computed():
        found = {}
        for task in Path(f"/proc/{process.pid}/task").iterdir():
            found[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e6
        return found

    try:
        begin, first = {}, 0
        for least in (options.warmup, options.warmup + options.steps):
            while steps() < least and process.poll() is None:
                time.sleep(0.005)
            if not begin:
                begin, first = computed(), steps()
        end, last = computed(), steps()
    finally:
        process.kill()
        process.wait()
    spent = sorted(((milliseconds - begin.get(task, 0)) / (last - first) for task, milliseconds in end.items()), reverse=True)
    return spent[:threads]


def count_rows(model, precision, folder, options):
    for threads in [2**i for i in range(options.counted.bit_length()) if 2**i <= options.counted]:
        spent = count(model, precision, threads, folder, options)
        mean, busiest = statistics.mean(spent), spent[0]
        yield [threads, f"{sum(spent):.1f}", f"{mean:.2f}", f"{busiest:.2f}", f"{100 * mean / busiest:.0f} %"]
        print(f"{precision}, {threads} threads: busiest {busiest:.2f} ms of {sum(spent):.1f}", file=sys.stderr, flush=True)


def train_with_peer(model, precision, threads, folder, options, env=None):
    found = support.peer("train_step.py", "--recipe", "p2", "--model-config", support.write_config(folder, model), "--vocab",
                         options.vocab, "--train", options.train, "--limit", options.limit, "--precision", precision, "--steps",
                         options.steps, "--warmup", 1, "--batch-size", options.batch, "--threads", threads, env=env)
    return found["samples_per_second"]


OTHER_PROGRAMS = {"nothing": None, "a busy loop": "while True: pass",
                  "an OpenMP program": "import torch; x = torch.randn(512, 512)\nwhile True: x @ x"}


def beside_rows(model, precision, folder, options):
    threads = len(support.usable_processors())
    default, bounded = ({"GOMP_SPINCOUNT": count} for count in ("300000", "1000"))  # libgomp's, and mezzo's
    for name, code in OTHER_PROGRAMS.items():
        rates = {"mezzo": [], "mezzo, default": [], "Python": [], "Python, bounded": [], "one thread": []}
        other = subprocess.Popen([sys.executable, "-c", code]) if code else None
        try:
            for _ in range(options.rounds):
                rates["mezzo"].append(train(model, precision, threads, folder, options)[0])
                rates["mezzo, default"].append(train(model, precision, threads, folder, options, env=default)[0])
                rates["one thread"].append(train(model, precision, 1, folder, options)[0])
                if not options.no_peer:
                    rates["Python"].append(train_with_peer(model, precision, threads, folder, options))
                    rates["Python, bounded"].append(train_with_peer(model, precision, threads, folder, options, env=bounded))
        finally:
            if other:
                other.kill()
                other.wait()
        yield [name, *(support.spread(found, 1) for found in rates.values())]


def measure(workload, counts, folder, options):
    """All counts of threads in turn, round after round, so that a slow minute hits all of them."""
    name, model, precision = workload
    runs = {threads: Runs() for threads in counts}
    for _ in range(options.rounds):
        for threads in reversed(counts):
            rate, parts = train(model, precision, threads, folder, options)
            runs[threads].mezzo.append(rate)
            runs[threads].step.append(parts)
            told = f"{name}, {precision}, {threads} threads: {rate:.4g} texts/s"
            if not options.no_peer:
                runs[threads].peer.append(train_with_peer(model, precision, threads, folder, options))
                told += f", Python {runs[threads].peer[-1]:.4g}"
            print(told, file=sys.stderr, flush=True)
    return runs


def rows_of(runs):
    def part(threads, name):
        return statistics.median(parts[name] for parts in runs[threads].step)

    def times(rates, of):
        return f"{statistics.median(rates) / statistics.median(of):.2f}" if rates else ""

    for threads, of in runs.items():
        serial = (threads * part(threads, "all") - part(1, "all")) / (threads - 1) if threads > 1 else None
        yield [threads, support.spread(of.mezzo, 1), times(of.mezzo, runs[1].mezzo),
               *(f"{1e3 * part(threads, name):.1f}" for name in PARTS), "" if serial is None else f"{max(0, 1e3 * serial):.1f}",
               support.spread(of.peer, 1), times(of.peer, runs[1].peer), times(of.mezzo, of.peer) if of.peer else ""]


def main():
    parser = support.parser(__doc__)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--limit", type=int, default=4000, help="texts to read")
    parser.add_argument("--counted", type=int, default=64, help="most threads whose time is counted; 0: none")
    parser.add_argument("--no-beside", dest="beside", action="store_false", help="without other programs beside")
    parser.add_argument("--no-peer", action="store_true", help="without the Python program")
    parser.add_argument("--workloads", nargs="+", default=["base-fp32", "base-bf16", "minilm-fp32", "minilm-bf16"])
    options = parser.parse_args()
    by_name = dict(zip(parser.get_default("workloads"), WORKLOADS))
    workloads = [by_name[name] for name in options.workloads]
    if options.quick:
        options.steps, options.warmup, options.rounds, options.counted = 2, 1, 1, 2
        workloads = [("tiny", support.TINY, "fp32")]
    counts = counts_of(len(support.usable_processors()))
    tables = []
    for workload in workloads:
        with tempfile.TemporaryDirectory() as folder:
            runs = measure(workload, counts, Path(folder), options)
            counted = list(count_rows(*workload[1:], Path(folder), options)) if options.counted else []
        tables += [f"## {workload[0]}, {workload[2]}", support.table(
            ["threads", "mezzo, texts/s", "times one thread", *(f"{name}, ms" for name in PARTS), "not shared, ms a step",
             "Python, texts/s", "times one thread", "mezzo to Python"], rows_of(runs))]
        if counted:
            tables.append(support.table(["threads", "computed by all, ms a step", "by each, on average", "by the busiest", "shared"], counted))
    if options.beside:
        name, model, precision = workloads[-1]
        with tempfile.TemporaryDirectory() as folder:
            tables += [f"## {name}, {precision}, beside another program", support.table(
                ["beside", "mezzo, texts/s", "mezzo, libgomp's default spinning", "Python", "Python, GOMP_SPINCOUNT=1000", "mezzo, one thread"],
                beside_rows(model, precision, Path(folder), options))]
    about = (
        f"Training on the emotion data set, batches of {options.batch} texts, dropout 0.1; {options.steps} steps, rounds in turn: {options.rounds}. Figures are medians (least to most)."
        " Python: transformers, batches of similar length, fused AdamW."
        " Not shared: the part of a step that more threads do not shorten. It assumes that the rest falls in proportion to the threads."
        " It contains serial work, waiting, and the limit of memory bandwidth."
        " The second tables show the processor time of each thread in a step, as the kernel counts it, also with more threads than processors."
        " The busiest thread also does the serial work. Threads that share a processor disturb each other; this is counted, too.")
    support.page(options, "threads", "Training with more threads", about, *tables)


if __name__ == "__main__":
    main()
