"""The uses of processor time in mezzo's training steps: samples of perf, sorted into categories by symbol."""
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import support

FREQUENCY = 499

# The first row that matches "symbol (library)" decides.
CATEGORIES = [
    ("kernel: page faults, copies, scheduling", r"\(\[kernel|\(\[guest\.kernel"),
    ("waiting for other threads", r"libgomp|libomp|libiomp|sched_yield|pthread_cond|futex"),
    ("matrix products", r"avx\w*::.*(\btile<|\bpack_|\brows_of|product_rows|transpose_8x8)|compute_packed"),
    ("embeddings: sum, layer norm, dropout", r"embedding|add_rows_at"),
    ("attention", r"attention|attend|softmax|sdpa|Sleef_(finz_)?exp|(baseline|avx\w*)::.*(product_|copy_in|copy_out|transpose|mask_row|"
     r"exponentials|pad_scores)"),
    ("layer norm, with bias, dropout and residual", r"layer_?norm|rowwise_moments|::normalise"),
    ("GELU, with bias", r"gelu|vectorized_erf|Sleef_(erf|tanh)|activation"),
    ("dropout and its random numbers", r"dropout|philox|bernoulli|random_words"),
    ("optimizer", r"adam|kernels::cpu::avx\w*::.*::update<|\blamb(_|\b)|\bsgd|gradient_summary|sum_of_squares|non_finite"),
    ("choosing rows", r"index_select|index_add|index_put|gather|scatter"),
    ("matrix products", r"gemm|mkl_|dnnl|oneapi|addmm|//anon|\(\[anon|perf-\d+\.map"),
    ("casts and copies", r"convert|from_float|to_float|copy_|_copy|memcpy|memmove|half_copy|\bcast"),
    ("sums of rows (bias gradients)", r"\bsum|_sum|reduce_"),
    ("other element-wise kernels", r"vectorized_loop|function_ref|cpu_kernel|fill_|memset"),
    ("memory allocation", r"malloc|_int_free|cfree|\bfree\b|mmap|munmap|memalign|_chunk|operator (new|delete)"),
    ("LibTorch's dispatch and autograd", r"torch::|c10::|at::|__tls_get_addr"),
    ("other", r""),
]


def category(place):
    return next(name for name, pattern in CATEGORIES if re.search(pattern, place, re.IGNORECASE))


def missing():
    """The reason why a profile is impossible here; None if it is possible."""
    if not shutil.which("perf"):
        return "perf is not installed here (Debian's linux-perf), so there is no profile."
    probe = subprocess.run(["perf", "record", "-e", "cpu-clock", "-o", "/dev/null", "true"], capture_output=True, text=True)
    return None if probe.returncode == 0 else "perf may not sample here (kernel.perf_event_paranoid), so there is no profile."


def wait_for_steps(out, count, process):
    while process.poll() is None:
        if (out / "metrics.jsonl").exists() and len(support.records(out, "step")) >= count:
            return
        time.sleep(0.05)
    raise SystemExit(f"profile_step: mezzo ended before its step {count}:\n{process.stderr.read()}")


def profile(folder, flags, warmup, seconds):
    """Samples `seconds` of a run after its first `warmup` steps. Returns (milliseconds a step by place, milliseconds a step)."""
    out, data = Path(folder) / "profiled", Path(folder) / "perf.data"
    shutil.rmtree(out, ignore_errors=True)  # its records could be taken for this run's records
    command = [support.PROGRAM, *support.TRAIN, "--output", out, *flags, "--max-steps", "1000000"]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_for_steps(out, warmup, process)
        before = len(support.records(out, "step"))
        subprocess.run(["perf", "record", "-q", "-e", "cpu-clock", "-F", str(FREQUENCY), "-p", str(process.pid), "-o", data,
                        "--", "sleep", str(seconds)], check=True, capture_output=True)
        steps = support.records(out, "step")[before:]
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    if not steps:
        raise SystemExit(f"profile_step: no step ended within {seconds} s; sample longer")
    a_step = sum(r["seconds"] for r in steps) / len(steps)
    sampled = subprocess.run(["perf", "script", "-F", "ip,sym,dso", "-i", data], check=True, capture_output=True, text=True)
    places = Counter(" ".join(line.split()[1:]) for line in sampled.stdout.splitlines() if line.strip())
    # The sampled steps are not a whole number of them, but the time is known.
    each = 1000 / FREQUENCY * a_step / seconds
    return {place: count * each for place, count in places.items()}, 1000 * a_step


def tables(places, milliseconds, threads):
    """By category, and the places that take most."""
    totals = Counter()
    for place, spent in places.items():
        totals[category(place)] += spent
    whole = threads * milliseconds
    rows = [[name, f"{spent:.1f}", f"{spent / whole:.1%}"] for name, spent in totals.most_common()]
    idle = whole - sum(totals.values())
    rows.append(["idle (asleep, or time that went to other programs)", f"{idle:.1f}", f"{idle / whole:.1%}"])
    rows.append([f"{threads} threads for {milliseconds:.1f} ms", f"{whole:.1f}", ""])
    top = sorted(places.items(), key=lambda item: item[1], reverse=True)[:20]
    return (support.table(["processor time of a step", "ms", "share"], rows),
            support.table(["ms", "category", "symbol (library)"],
                          [[f"{spent:.1f}", category(place), f"`{shorten(place)}`"] for place, spent in top]))


def shorten(place, width=110):
    place = re.sub(r"/\S*/", "", place).replace("|", "\\|").replace("`", "'")
    return place if len(place) <= width else place[: width - 30] + " … " + place[-27:]
