"""What autocast adds to one op call, in C++ and in Python, in one run. Build first:
cmake --preset release -DMEZZO_BUILD_BENCHMARKS=ON && cmake --build --preset release --target bench_autocast_overhead
"""
import json
import statistics
import subprocess
import time
from pathlib import Path

import torch

CALLS, REPEATS = 20000, 15
PROGRAM = Path(__file__).parent.parent / "build/release/bin/bench_autocast_overhead"


def nanoseconds_per_call(call):
    begin = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    return (time.perf_counter_ns() - begin) / CALLS


def rows(region):
    x, weight = torch.ones(4, 4), torch.ones(4, 4, requires_grad=True)
    low = x.bfloat16()
    linear = torch.nn.functional.linear
    for op, call in (
        ("relu, not listed", lambda: x.relu()),
        ("mm of bfloat16, nothing to cast", lambda: low.mm(low)),
        ("linear, input cast, weight kept", lambda: linear(x, weight)),
    ):
        nanoseconds_per_call(call)
        times = [nanoseconds_per_call(call) for _ in range(REPEATS)]
        yield dict(region=region, op=op, median=statistics.median(times), min=min(times), max=max(times))


def main():
    torch.set_num_threads(1)
    table = [json.loads(line) for line in subprocess.run([PROGRAM], capture_output=True, text=True, check=True).stdout.splitlines()]
    table += rows("Python, no autocast")
    with torch.autocast("cpu", torch.bfloat16):
        table += rows("Python, torch.autocast")
    ops = list(dict.fromkeys(row["op"] for row in table))
    print("| nanoseconds a call | " + " | ".join(ops) + " |")
    print("|---" * (len(ops) + 1) + "|")
    for region in dict.fromkeys(row["region"] for row in table):
        cells = [f"{r['median']:.0f} ({r['min']:.0f} to {r['max']:.0f})" for r in table if r["region"] == region]
        print(f"| {region} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
