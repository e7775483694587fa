"""Trains BERT-base on this machine's processors as one process with all threads and as one rank a processor, and writes
benchmarks/results/scaling.md. All take the same texts in a step. Needs emotion's train.json and bert-base-chinese's
vocab.txt."""
import os
import statistics
import tempfile
from pathlib import Path

import support

CASES = {
    "one process": [],
    "ranks, shared memory": [],
    "ranks, shared memory, ZeRO-1": ["--zero-stage", "1"],
    "ranks, shared memory, balanced by tokens": ["--balance", "tokens"],
    "ranks, Gloo": ["--all-reduce", "backend"],
    "ranks, Gloo, fp16 compression": ["--gradient-compression", "fp16"],
}


def train(case, folder, options):
    ranks = 1 if case == "one process" else os.cpu_count()
    threads = os.cpu_count() // ranks
    out = folder / "out"
    command = [*support.TRAIN, "--model-config", support.write_config(folder, options.model), "--vocab", options.vocab, "--train",
               options.train, "--limit", 4000, "--output", out, "--precision", "fp32", "--max-steps", options.steps + options.warmup, "--batch-size", options.batch // ranks,
               "--threads", threads, *CASES[case]]
    start = [support.PROGRAM] if ranks == 1 else [support.PROGRAM, "launch", "--nproc", ranks, "--"]
    support.run(*start, *command, env={"OMP_NUM_THREADS": str(threads)})
    records = support.records(out)
    steps = [r for r in records if r["event"] == "step"]
    timed = steps[options.warmup:]
    result = dict(rate=support.rate(timed), losses=[r["loss"] for r in steps],
                  memory=[r for r in records if r["event"] == "end"][0]["peak_memory_bytes"])
    for r in records:
        if r["event"] == "communication":
            result |= {key: r[key] / r["steps"] for key in ("gradient_bytes", "weight_bytes", "seconds", "exposed_seconds")}
    return result


def main():
    parser = support.parser(__doc__)
    parser.add_argument("--batch", type=int, default=64, help="texts of a step, on all ranks together")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    options.model = support.BASE
    if options.quick:
        options.model, options.steps, options.warmup, options.repeats = support.TINY, 2, 1, 1
    runs = {case: [] for case in CASES}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for repeat in range(options.repeats):  # case by case, so that a slow minute hits all of them
            for case in CASES:
                runs[case].append(train(case, folder, options))
                print(repeat, case, f"{runs[case][-1]['rate']:.2f}", flush=True)
    write(runs, options)


def write(runs, options):
    base = statistics.median(run["rate"] for run in runs["one process"])
    rows = []
    for case, results in runs.items():
        rates = [run["rate"] for run in results]
        first = results[0]
        sent = [f"{first[key] / 1e6:.1f}" if key in first else "" for key in ("gradient_bytes", "weight_bytes")]
        seconds = statistics.median(run["seconds"] for run in results) if "seconds" in first else 0
        exposed = statistics.median(run["exposed_seconds"] for run in results) if "seconds" in first else 0
        rows.append([case, support.spread(rates), f"{statistics.median(rates) / base:.3f}", *sent, f"{1000 * seconds:.0f}",
                     f"{1 - exposed / seconds:.0%}" if seconds else "", f"{first['memory'] / 1e9:.2f}"])
    about = (f"Fresh BERT-base, AdamW, float32, dropout 0.1. All ranks together have packed batches of {options.batch} texts of the emotion data set."
             f" Each run measures {options.steps} steps after {options.warmup} of warm-up. Each row has {options.repeats} runs, in turn."
             " One process has all threads, a rank has one.")
    heads = ["", "samples/s, median (least to most)", "of one process", "gradients sent a step, MB", "weights, MB",
             "exchange, ms a step", "of it beside backward", "memory of a process, GB"]
    support.page(options, "scaling", f"BERT-base on {os.cpu_count()} processors: one process or one rank each", about,
                 support.table(heads, rows))


if __name__ == "__main__":
    main()
