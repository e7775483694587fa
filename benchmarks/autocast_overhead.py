"""What autocast adds to one op call, in C++ and in Python, in one run. Build first:
cmake --preset release -DMEZZO_BUILD_BENCHMARKS=ON && cmake --build --preset release --target bench_autocast_overhead
"""
import json
import statistics
import time

import support
import torch

CALLS, REPEATS = 20000, 15


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
    options = support.parser(__doc__).parse_args()
    torch.set_num_threads(1)
    program = support.run(support.ROOT / "build/release/bin/bench_autocast_overhead")
    measured = [json.loads(line) for line in program.stdout.splitlines()]
    measured += rows("Python, no autocast")
    with torch.autocast("cpu", torch.bfloat16):
        measured += rows("Python, torch.autocast")
    ops = list(dict.fromkeys(row["op"] for row in measured))
    lines = []
    for region in dict.fromkeys(row["region"] for row in measured):
        cells = [f"{r['median']:.0f} ({r['min']:.0f} to {r['max']:.0f})" for r in measured if r["region"] == region]
        lines.append([region, *cells])
    about = (f"One thread: nanoseconds a call on 4 x 4 tensors, median of {REPEATS} (fastest to slowest). A region without policy or"
             " log runs PyTorch's own kernels at their cost.")
    support.page(options, "autocast_overhead", "What autocast adds to an op call", about,
                 support.table(["nanoseconds a call", *ops], lines))


if __name__ == "__main__":
    main()
