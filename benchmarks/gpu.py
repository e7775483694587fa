"""On one GPU, mezzo beside its Python peers, in turn: training of BERT-base and MiniLM, a BERT-large against the GPU's peak, an
optimizer's step against the GPU's memory, what a GradScaler costs. Writes benchmarks/results/gpu.md, anew after each measurement.

Of the best Python (P2) there are several candidates; all are tried once, and the fastest takes part in every round. One that fails,
or takes longer than --timeout, is named with what it said. --device cpu --quick: whether all of it runs, where there is no GPU.
"""
import dataclasses
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import products
import support
import torch

BATCH, EPOCH = 32, 9200  # the reference program trains on 9,200 texts
LARGE = dict(support.BASE, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)

CANDIDATES = {
    "grouped": ["--batches", "grouped"],
    "grouped, torch.compile": ["--batches", "grouped", "--compile", "any"],
    "grouped, CUDA graphs": ["--batches", "grouped", "--compile", "graphs"],
    "varlen": ["--batches", "varlen"],
    "varlen, torch.compile": ["--batches", "varlen", "--compile", "any"],
    "varlen, CUDA graphs": ["--batches", "varlen", "--compile", "graphs"],
}

# Dense bf16 without sparsity, as NVIDIA's data sheets have it; of the first name that a device's name begins with.
PUBLISHED_TFLOPS = {"NVIDIA H100 PCIe": 756, "NVIDIA H100 NVL": 835, "NVIDIA H100": 989, "NVIDIA H200 NVL": 835, "NVIDIA H200": 989,
                    "NVIDIA GH200": 989, "NVIDIA B200": 2250, "NVIDIA A100": 312, "NVIDIA L40S": 362, "NVIDIA L4": 121,
                    "Tesla T4": 65}


@dataclass
class Workload:
    name: str
    title: str
    model: dict
    precision: str
    rate: int = 0  # texts a second to reach
    of_p2: float = 0  # times P2
    of_p1: float = 0
    share_of_peak: float = 0
    max_length: int = 128
    has_long_texts: bool = False


WORKLOADS = [
    Workload("base-bf16", "BERT-base, bf16", support.BASE, "bf16", rate=10_000, of_p2=3, of_p1=10),
    Workload("base-fp16", "BERT-base, fp16", support.BASE, "fp16", rate=10_000, of_p2=3, of_p1=10),
    Workload("minilm-bf16", "MiniLM, bf16", support.MINILM, "bf16", rate=30_000, of_p2=4),
    Workload("minilm-fp16", "MiniLM, fp16", support.MINILM, "fp16", rate=30_000, of_p2=4),
    Workload("large-bf16", "BERT-large, 512 tokens packed, bf16", LARGE, "bf16", share_of_peak=0.4, max_length=512, has_long_texts=True),
]


@dataclass
class Measured:
    """Texts a second of one program's runs, and what one said that failed."""

    rates: list = field(default_factory=list)
    said: str = ""

    def rate(self):
        return statistics.median(self.rates) if self.rates else 0.0

    def add(self, found):
        if "error" in found:
            self.said = found["error"]
        else:
            self.rates.append(found["samples_per_second"])
            self.said = self.said or found.get("said", "")


@dataclass
class Peak:
    measured: float  # operations a second
    published: float


def attempt(run):
    """What a run found, or the last line that it said."""
    try:
        return run()
    except subprocess.TimeoutExpired as error:
        return dict(error=f"nothing within {error.timeout:.0f} s")
    except subprocess.CalledProcessError as error:
        said = [line.strip() for line in error.stderr.splitlines() if line.strip()]
        return dict(error=said[-1][:200] if said else f"ended with status {error.returncode}")


def run(options, *command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=options.timeout,
                          env={**os.environ, "HF_HUB_OFFLINE": "1"})
    done.check_returncode()
    return done.stdout


def steps_of(workload, options):
    """Those measured: an epoch of the texts that are read."""
    return options.large_steps if workload.has_long_texts else options.steps


def data_of(workload, options):
    return ["--vocab", options.vocab, "--train", options.long_texts if workload.has_long_texts else options.train,
            "--limit", BATCH * steps_of(workload, options), "--max-length", workload.max_length, "--batch-size", BATCH,
            "--precision", workload.precision]


def train_with_mezzo(workload, folder, options):
    steps = steps_of(workload, options)
    warmup = min(options.warmup, 3 * steps)
    run(options, support.PROGRAM, "train", "--recipe", "reference", "--output", folder / "out", "--overwrite", "--quiet", "--dev-ratio", 0, "--eval-every", 0,
        "--model-config", support.write_config(folder, workload.model), *data_of(workload, options), "--device", options.device,
        "--max-steps", warmup + steps)
    timed = support.records(folder / "out", "step")[warmup:]
    seconds = sum(record["seconds"] for record in timed)
    return dict(samples_per_second=sum(record["samples"] for record in timed) / seconds)


def train_with_peer(script, workload, flags, folder, options):
    output = run(options, sys.executable, support.PEERS / script, "--model-config", support.write_config(folder, workload.model),
                 *data_of(workload, options), "--device", options.device, *flags)
    return json.loads(output.splitlines()[-1])


def train_with_p1(workload, folder, options):
    return train_with_peer("train_step.py", workload, ["--recipe", "p1", "--steps", options.p1_steps, "--warmup", 3], folder, options)


def train_with_p2(workload, candidate, folder, options, *more):
    found = train_with_peer("train_on_gpu.py", workload, [*CANDIDATES[candidate], *more], folder, options)
    shapes = found["shapes"]
    return found | dict(said=f"{shapes} {'shape' if shapes == 1 else 'shapes'}, {found['warmup_seconds']:.0f} s of warm-up")


def measure(workload, folder, options):
    """All programs of a workload: {name: Measured}, mezzo first, and the name of the fastest P2."""
    found = {"mezzo": Measured()}
    tell = lambda name: print(workload.name, name, f"{found[name].rate():.5g} texts/s", found[name].said, file=sys.stderr, flush=True)
    if not workload.has_long_texts:
        found["P1"] = Measured()
    for candidate in options.candidates:
        name = f"P2 {candidate}"
        found[name] = Measured()
        found[name].add(attempt(lambda: train_with_p2(workload, candidate, folder, options)))
        tell(name)
    best = max((name for name in found if name.startswith("P2")), key=lambda name: found[name].rate())
    for round_ in range(options.rounds):
        found["mezzo"].add(attempt(lambda: train_with_mezzo(workload, folder, options)))
        tell("mezzo")
        if "P1" in found:
            found["P1"].add(attempt(lambda: train_with_p1(workload, folder, options)))
            tell("P1")
        if round_ > 0 and found[best].rates:  # the trial was the first
            found[best].add(attempt(lambda: train_with_p2(workload, best.removeprefix("P2 "), folder, options)))
            tell(best)
    return found, best


def flops_of_a_text(workload):
    """Of a training step, the last layer for the first token alone. Attention has two products of forward and four of backward of
    length × length × hidden size in all layers but the last: what is computed again in backward is not counted."""
    model, length = workload.model, workload.max_length
    attention = 12 * length * length * model["hidden_size"] * (model["num_hidden_layers"] - 1)
    return products.flops_of_step(model, BATCH * length, BATCH) / BATCH + attention


def seconds_of(work, options, repeats):
    """Of one of many that are queued, the median of five times."""
    wait = torch.cuda.synchronize if options.device == "cuda" else lambda: None

    def many():
        for _ in range(repeats):
            work()
        wait()

    return products.seconds_of(many) / repeats


@torch.no_grad()
def peak_of(options):
    size = 256 if options.quick else 8192
    left, right = (torch.randn(size, size, device=options.device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(left)
    seconds = seconds_of(lambda: torch.mm(left, right, out=out), options, repeats=10)
    name = torch.cuda.get_device_name() if options.device == "cuda" else ""
    published = next((1e12 * tera for begin, tera in PUBLISHED_TFLOPS.items() if name.startswith(begin)), 0.0)
    return Peak(2 * size**3 / seconds, published)


def write_long_texts(path, vocab, count):
    """Texts of more than 512 Chinese characters, each of which is a token, in the form of emotion's."""
    characters = [line for line in Path(vocab).read_text(encoding="utf-8").splitlines() if len(line) == 1 and "\u4e00" <= line <= "\u9fff"]
    rng = random.Random(0)
    path.write_text(json.dumps([["".join(rng.choices(characters, k=530)), i % 6] for i in range(count)], ensure_ascii=False))
    return path


def times(one, other):
    return one.rate() / other.rate() if one.rate() and other.rate() else 0.0


def verdict(value, target, shown):
    if not value:
        return "not measured"
    return f"{shown}{'' if value >= target else ', short of it'}"


def summary_rows(results, peak):
    rows = []
    for workload, (found, best) in results:
        mezzo = found["mezzo"]
        if workload.rate:
            rows.append([workload.title, f"≥ {workload.rate:,} texts/s", verdict(mezzo.rate(), workload.rate, f"{mezzo.rate():,.0f}")])
        if workload.rate and workload.name.startswith("base"):
            epoch = EPOCH / mezzo.rate() if mezzo.rate() else 0.0
            rows.append([workload.title, f"{EPOCH:,} texts in < 1 s", verdict(epoch and 1 / epoch, 1, f"{epoch:.2f} s")])
        for target, other, name in ((workload.of_p2, found.get(best), best), (workload.of_p1, found.get("P1"), "P1")):
            if target and other:
                value = times(mezzo, other)
                rows.append([workload.title, f"≥ {target:g} × {name}", verdict(value, target, f"{value:.3g} ×")])
        if workload.share_of_peak and peak:
            share = mezzo.rate() * flops_of_a_text(workload) / (peak.published or peak.measured)
            of = "published" if peak.published else "measured"
            rows.append([workload.title, f"≥ {workload.share_of_peak:.0%} of the {of} bf16 peak", verdict(share, workload.share_of_peak, f"{share:.1%}")])
    return rows


def workload_section(workload, found, best, peak):
    rows = []
    for name, measured in found.items():
        shown = support.spread(measured.rates, 0) if measured.rates else "failed"
        row = [f"**{name}**" if name == best else name, shown, f"{times(found['mezzo'], measured):.3g} ×" if name != "mezzo" and measured.rates and found["mezzo"].rates else ""]
        if workload.share_of_peak:
            tera = measured.rate() * flops_of_a_text(workload) / 1e12
            row += [f"{tera:.3g}", f"{tera * 1e12 / peak.measured:.1%}", f"{tera * 1e12 / peak.published:.1%}" if peak.published else ""]
        rows.append([*row, measured.said])
    heads = ["program", "texts/s", "mezzo is as fast"]
    heads += ["TFLOP/s", "of the measured peak", "of the published one"] if workload.share_of_peak else []
    return [f"## Training, {workload.title}", support.table([*heads, "what it said"], rows)]


def cell(table, row, column):
    """Of a Markdown table: the number in the row that begins so."""
    line = next((line for line in table.splitlines() if line.startswith(f"| {row}")), "")
    try:
        return float(line.split("|")[column + 1].strip().rstrip("%"))
    except (IndexError, ValueError):
        return 0.0


def program_table(name, options):
    return run(options, support.PROGRAM.parent / f"bench_{name}", "--device", options.device).strip()


def optimizer_table(options):
    peer = run(options, sys.executable, support.PEERS / "optimizer_step.py", "--device", options.device)
    return program_table("optimizer_step", options) + "\n" + peer.strip()


def scaler_of_python(folder, options, candidate):
    """Median rates of P2 in fp16 with GradScaler and without, in turn."""
    workload = next(w for w in options.all_workloads if w.name == "base-fp16")
    rates = {"with": [], "without": []}
    for _ in range(options.rounds):
        for name, flags in (("with", []), ("without", ["--no-scaler"])):
            rates[name].append(train_with_p2(workload, candidate, folder, options, *flags)["samples_per_second"])
    with_one, without = (statistics.median(rates[name]) for name in ("with", "without"))
    return (f"| Python, P2 {candidate}, {workload.title} | {1e3 * BATCH / without:.3f} | {1e3 * BATCH / with_one:.3f} | "
            f"{100 * (without / with_one - 1):.1f} % |")


def gpu(options):
    if options.device != "cuda":
        return "No GPU: `--device cpu` shows that all of this runs, and nothing else."
    properties = torch.cuda.get_device_properties(0)
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True)
    return (f"{properties.name}, compute capability {properties.major}.{properties.minor}, {properties.multi_processor_count}"
            f" multiprocessors, {properties.total_memory / 2**30:.0f} GiB, driver {driver.stdout.split(chr(10))[0] or 'unknown'}, CUDA"
            f" {torch.version.cuda}.")


def write_page(options, results, peak, parts, show=False):
    about = (
        f"{gpu(options)}\n\nEmotion data set, batches of {BATCH} texts of at most 128 tokens, dropout 0.1, AdamW at 3e-5. mezzo: the whole"
        f" step with data loading, {options.steps} steps after {options.warmup} of warm-up. P1: transformers, every text padded to 128 and"
        f" tokenized in its step, AMP, AdamW as it comes, the loss read in each step. P2: tokenized once, batches in pinned memory before the"
        f" clock starts, fused AdamW, nothing read before the last step; batches of similar length under PyTorch's fused attention, or no"
        f" padding and flash attention of varying lengths; each as it is, with torch.compile, and with its CUDA graphs on few shapes. All"
        f" were tried once; the fastest (bold) ran in all {options.rounds} rounds, in turn with mezzo and P1. Medians (least to most). Compiling"
        f" and recording are in nobody's time.")
    summary = summary_rows(results, peak)
    optimizer, scaler = parts.get("optimizer", ""), parts.get("scaler", "")
    if optimizer:
        share = cell(optimizer, "mezzo, bfloat16 gradients", 4)
        summary.append(["optimizer step, 102 million parameters, copies written", "≥ 80 % of a copy's bandwidth", verdict(share, 80, f"{share:.0f} %")])
    if scaler:
        for line in scaler.splitlines():
            if line.startswith("| BERT-base") and "not clipped" in line:
                name = line.split("|")[1].strip()
                overhead = cell(scaler, name, 3)
                measured = "%" in line
                summary.append([f"GradScaler, {name}", "≤ 2 % of a step", f"{overhead:.1f} %{', more than it' if overhead > 2 else ''}" if measured else "not measured"])
    sections = ["## What is to be reached on one H100", support.table(["work", "to reach", "measured"], summary)] if summary else []
    for workload, (found, best) in results:
        sections += workload_section(workload, found, best, peak)
        if workload.share_of_peak:
            sections.append(
                f"Batches of {BATCH} texts of {workload.max_length} tokens. {flops_of_a_text(workload) / 1e9:,.3g} GFLOP a text: the products of forward and"
                " backward (the last layer for the first token alone, as mezzo computes it) and attention's 12 L² H a layer; what a program"
                f" computes beyond them does not count. Peak: {peak.measured / 1e12:,.3g} TFLOP/s measured by products of 8192 × 8192 × 8192 random"
                f" numbers{f', {peak.published / 1e12:,.0f} published' if peak.published else ''}.")
    if optimizer:
        sections += ["## An optimizer step", "Parameters in BERT-base's shapes; non-finite check, unscale, clipping by the norm, AdamW, and a"
                     " bfloat16 copy of the weights; ten steps are queued before the device is waited for.", optimizer]
    if scaler:
        sections += ["## What a GradScaler costs", scaler]
    support.page(options, "gpu", "mezzo and Python on a GPU", about, *sections, show=show)


def flags():
    parser = support.parser(__doc__)
    names = [w.name for w in WORKLOADS]
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--parts", nargs="*", default=["training", "optimizer", "scaler"], choices=["training", "optimizer", "scaler"])
    parser.add_argument("--workloads", nargs="*", default=names, choices=names)
    parser.add_argument("--candidates", nargs="*", choices=CANDIDATES, help="of P2; all where left out")
    parser.add_argument("--rounds", type=int, help="3 where left out")
    parser.add_argument("--steps", type=int, default=EPOCH // BATCH, help="measured")
    parser.add_argument("--large-steps", type=int, default=20, help="of BERT-large")
    parser.add_argument("--p1-steps", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=2 * (EPOCH // BATCH), help="steps of mezzo before them, in which it records them")
    parser.add_argument("--timeout", type=float, default=400, help="seconds of one run of a program")
    options = parser.parse_args()
    options.candidates = options.candidates or list(CANDIDATES)
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.all_workloads = WORKLOADS
    if options.quick:
        options.steps, options.large_steps, options.p1_steps, options.warmup = 4, 2, 1, 2
        options.candidates = [name for name in options.candidates if "compile" not in name and "graphs" not in name]
        options.all_workloads = [dataclasses.replace(w, model=support.TINY, max_length=min(w.max_length, 128)) for w in WORKLOADS]
    return options


def main():
    options = flags()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("gpu: PyTorch sees no CUDA device here; --device cpu --quick shows whether the benchmark runs")
    results, parts = [], {}
    peak = peak_of(options)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options.long_texts = write_long_texts(folder / "long.json", options.vocab, BATCH * options.large_steps)
        for workload in options.all_workloads if "training" in options.parts else ():
            if workload.name in options.workloads:
                results.append((workload, measure(workload, folder, options)))
                write_page(options, results, peak, parts)
        if "optimizer" in options.parts:
            parts["optimizer"] = text_of(attempt(lambda: optimizer_table(options)))
            write_page(options, results, peak, parts)
        if "scaler" in options.parts:
            best = next((best for workload, (_, best) in results if workload.name == "base-fp16"), f"P2 {options.candidates[-1]}")
            rows = [attempt(lambda: program_table("scaler_overhead", options)),
                    attempt(lambda: scaler_of_python(folder, options, best.removeprefix("P2 ")))]
            parts["scaler"] = "\n".join(map(text_of, rows))
    write_page(options, results, peak, parts, show=True)
    failed = [workload.name for workload, (found, best) in results if not (found["mezzo"].rates and found[best].rates)]
    failed += [name for name, text in parts.items() if "failed: " in text]
    if failed:
        sys.exit(f"gpu: failed: {', '.join(failed)}; the page says what")


def text_of(found):
    return f"\nfailed: {found['error']}" if isinstance(found, dict) else found


if __name__ == "__main__":
    main()
