"""On one GPU: mezzo beside its best Python, and an optimizer's step against the GPU's memory. Writes benchmarks/results/gpu.md.

A row is a kind of work: training or prediction of a family, texts of one length, one batch size. Important rows come first. Each
measurement goes to gpu.jsonl at once, and the page is written anew. --minutes stops in time. A later call with the same --results
resumes the measurements. Without a GPU, --device cpu --quick runs all programs on tiny models.
"""
import asyncio
import dataclasses
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import model_families
import products
import serve
import support
import torch

EMOTION = 20  # tokens of a text on average: the emotion data set; another length: texts of that number of tokens each
EPOCH = 9200  # texts of the reference program

CANDIDATES = {  # of the best Python, likely ones first
    "varlen, recorded, compiled": ["--batches", "varlen", "--record", "--compile", "default"],
    "grouped, recorded, compiled": ["--batches", "grouped", "--record", "--compile", "default"],
    "varlen, recorded": ["--batches", "varlen", "--record"],
    "grouped, recorded": ["--batches", "grouped", "--record"],
    "varlen, recorded, max-autotune": ["--batches", "varlen", "--record", "--compile", "max-autotune"],
    "grouped, recorded, max-autotune": ["--batches", "grouped", "--record", "--compile", "max-autotune"],
    "varlen, compiled": ["--batches", "varlen", "--compile", "default"],
    "grouped, max-autotune": ["--batches", "grouped", "--compile", "max-autotune"],
    "grouped": ["--batches", "grouped"],
}

# Dense bf16 without sparsity, from NVIDIA's data sheets, by the beginning of a device's name.
PUBLISHED_TFLOPS = {"NVIDIA H100 PCIe": 756, "NVIDIA H100 NVL": 835, "NVIDIA H100": 989, "NVIDIA H200 NVL": 835, "NVIDIA H200": 989,
                    "NVIDIA GH200": 989, "NVIDIA B200": 2250, "NVIDIA A100": 312, "NVIDIA L40S": 362, "NVIDIA L4": 121,
                    "Tesla T4": 65}

FAMILIES = {
    "BERT-base": support.BASE,
    "MiniLM": support.MINILM,
    "BERT-large": dict(support.BASE, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096),
    "ModernBERT": model_families.FAMILIES["ModernBERT"].model,
    "DeBERTa-v3": dict(model_families.FAMILIES["DeBERTa-v3"].model, vocab_size=128100),
    "RoBERTa": dict(model_families.FAMILIES["RoBERTa"].model, vocab_size=50265),
    "XLM-R": dict(model_families.FAMILIES["RoBERTa"].model, model_type="xlm-roberta", vocab_size=250002),
}


@dataclasses.dataclass(frozen=True)
class Row:
    kind: str
    family: str
    length: int
    batch: int = 32
    precision: str = "bf16"
    goal: float = 0  # texts a second; of serve, milliseconds
    times: float = 1.3  # the best Python
    peak: float = 0  # share of the published one

    @property
    def name(self):
        return f"{self.kind} {self.family}, {self.batch} × {self.length}, {self.precision}"

    @property
    def steps(self):
        return EPOCH // 32 if (self.length, self.batch) == (EMOTION, 32) else max(10, min(100, 2**20 // (self.batch * self.length)))

    @property
    def max_length(self):
        return 128 if self.length == EMOTION else self.length

    def candidates(self):
        return [] if self.kind == "serve" else [name for name in CANDIDATES if self.family != "DeBERTa-v3" or "grouped" in name]


HEADLINES = [
    Row("train", "BERT-base", EMOTION, goal=12_000),
    Row("train", "MiniLM", EMOTION, goal=35_000),
    Row("train", "BERT-large", 512, peak=0.45),
]
ROWS = [
    *HEADLINES,
    *(Row("train", "BERT-base", length) for length in (128, 512, 256, 64)),
    *(Row("train", "ModernBERT", length) for length in (512, 2048)),
    *(Row("train", "DeBERTa-v3", length) for length in (128, 512)),
    Row("train", "RoBERTa", 128), Row("train", "XLM-R", 128),
    Row("predict", "BERT-base", 128, batch=128, goal=2e6 / 128),
    Row("serve", "BERT-base", EMOTION, batch=1, goal=5),
    *(Row("train", "BERT-base", length, batch) for batch in (128, 512) for length in (EMOTION, 128, 512, 64, 256)),
    *(Row("predict", family, 128, batch=128) for family in ("MiniLM", "ModernBERT", "RoBERTa")),
    *(Row("train", family, EMOTION, precision="fp16") for family in ("BERT-base", "MiniLM")),
]
PARTS = {"optimizer_step": ["optimizer_step.py"], "scaler_overhead": []}  # programs of micro/, and peers that add rows


class Measured:
    """Every measurement so far: a line each of gpu.jsonl, of this commit and device alone."""

    def __init__(self, options):
        self.path, self.of = options.results / "gpu.jsonl", dict(commit=support.commit(), device=device_name(options))
        options.results.mkdir(parents=True, exist_ok=True)
        lines = map(json.loads, self.path.read_text().splitlines()) if self.path.exists() else ()
        self.all = [line for line in lines if self.of.items() <= line.items()]

    def add(self, row, program, found):
        self.all.append(dict(row=row, program=program, **found, **self.of))
        with self.path.open("a") as file:
            file.write(json.dumps(self.all[-1]) + "\n")
        print(row, program, found.get("error") or f"{found.get('value', 0):.5g}", file=sys.stderr, flush=True)

    def count(self, row, program):
        return len([line for line in self.all if (line["row"], line["program"]) == (row, program)])

    def values(self, row, program):
        return [line["value"] for line in self.all if (line["row"], line["program"]) == (row, program) and "value" in line]

    def said(self, row, program):
        return next((line.get("error", line.get("said", "")) for line in reversed(self.all) if (line["row"], line["program"]) == (row, program)), "")

    def best_python(self, row):
        """(the fastest of all runs of all candidates, its name)."""
        return max(((value, name) for name in CANDIDATES for value in self.values(row, name)), default=(0, ""))


def device_name(options):
    return torch.cuda.get_device_name() if options.device == "cuda" else "CPU"


def attempt(run):
    """The findings of a run, or the last line of its output."""
    try:
        return run()
    except subprocess.TimeoutExpired as error:
        return dict(error=f"nothing within {error.timeout:.0f} s")
    except subprocess.CalledProcessError as error:
        return dict(error=last_line(error.stderr) or f"ended with status {error.returncode}")
    except (SystemExit, OSError) as error:  # of a server that did not start, or went away
        return dict(error=last_line(str(error)) or "no server")


def last_line(text):
    return next((line.strip()[:200] for line in reversed(text.splitlines()) if line.strip()), "")


def run(options, *command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"},
                          timeout=max(1, min(options.timeout, options.until - time.monotonic())))
    done.check_returncode()
    return done.stdout


def model_of(row, options):
    longest = dict(max_position_embeddings=max(514, row.length + 2)) if row.family != "ModernBERT" else {}
    return FAMILIES[row.family] | longest | (model_families.TINY if options.quick else {})


def data_of(length, count, options):
    """Texts of more Chinese characters than `length`, each of which is a token, in emotion's form."""
    if length == EMOTION:
        return options.train
    characters = [line for line in options.vocab.read_text(encoding="utf-8").splitlines() if len(line) == 1 and "\u4e00" <= line <= "\u9fff"]
    rng, path = random.Random(0), options.folder / f"{length}-{count}.json"
    if not path.exists():
        path.write_text(json.dumps([["".join(rng.choices(characters, k=length + 10)), i % 6] for i in range(count)], ensure_ascii=False))
    return path


def flags_of(row, options):
    steps = options.steps or row.steps
    return ["--limit", row.batch * steps, "--max-length", row.max_length, "--batch-size", row.batch, "--precision", row.precision,
            "--device", options.device, "--vocab", options.vocab]


def train_with_mezzo(row, options):
    steps = options.steps or row.steps
    warmup = 2 * steps if row.length == EMOTION else min(10, 2 * steps)  # in which steps are recorded
    run(options, support.PROGRAM, *support.TRAIN, "--output", options.folder / "out", "--model-config",
        support.write_config(options.folder, model_of(row, options)), "--train", data_of(row.length, row.batch * steps, options),
        *flags_of(row, options), "--max-steps", warmup + steps)
    return dict(value=support.rate(support.records(options.folder / "out", "step")[warmup:]))


def predict_with_mezzo(row, options):
    """A run over few texts is taken off, and with it the start and the loading of the model."""
    model = support.fresh_model(options.folder, model_of(row, options), options.vocab)

    def seconds(count):
        begin = time.perf_counter()
        run(options, support.PROGRAM, "predict", "--model", model, "--data", data_of(row.length, count, options), "--output",
            options.folder / "predictions.jsonl", "--max-length", row.max_length, "--precision", row.precision, "--device", options.device)
        return time.perf_counter() - begin

    few, many = (8, 64) if options.quick else (2_048, 65_536)
    return dict(value=(many - few) / max(1e-9, seconds(many) - seconds(few)))


def serve_with_mezzo(row, options):
    """The 99th percentile of milliseconds, one connection, one short text a request."""
    model = support.fresh_model(options.folder, model_of(row, options), options.vocab)
    texts = [text for text, _ in json.loads(options.train.read_text(encoding="utf-8"))[:1000]]
    port = serve.free_port()
    with serve.started([support.PROGRAM, "serve", "--model", model, "--port", port, "--precision", row.precision, "--device", options.device],
                       lambda line: "http://" in line):
        requests = itertools.cycle([serve.request_of({"text": text}) for text in texts])
        found = asyncio.run(serve.ask(port, requests, 1, *((1, 0.5) if options.quick else (10, 3))))
    return dict(error=f"{found.errors} requests failed") if found.errors else dict(value=1e3 * found.percentile(0.99))


def run_python(row, candidate, options):
    output = run(options, sys.executable, support.PEERS / "on_gpu.py", *CANDIDATES[candidate], *(["--predict"] if row.kind == "predict" else []),
                 "--model-config", support.write_config(options.folder, model_of(row, options)), *flags_of(row, options), "--data",
                 data_of(row.length, row.batch * (options.steps or row.steps), options),
                 "--attention", "eager" if row.family == "DeBERTa-v3" else "sdpa")
    found = json.loads(output.splitlines()[-1])
    return dict(value=found["samples_per_second"], said=f"shapes: {found['shapes']}, warm-up: {found['warmup_seconds']:.0f} s")


def run_program(row, program, options):
    if program == "mezzo":
        with_mezzo = dict(train=train_with_mezzo, predict=predict_with_mezzo, serve=serve_with_mezzo)
        return with_mezzo[row.kind](row, options)
    return run_python(row, program, options)


def table_of(part, options):
    commands = [[support.PROGRAM.parent / f"bench_{part}"], *([sys.executable, support.PEERS / peer] for peer in PARTS[part])]
    return "\n".join(run(options, *command, "--device", options.device).strip() for command in commands)


def tasks(rows, measured, options):
    """(row, program), the important ones first: mezzo and the likely candidates, then the other candidates, then the best again."""
    headlines = {row.name for row in HEADLINES}
    chosen = lambda row: [name for name in row.candidates() if name in options.candidates]
    for row in rows:
        of_row = chosen(row)
        for program in ["mezzo", *(of_row if row.name in headlines else of_row[:2])]:
            yield row, program, 0
    for row in rows:
        for program in chosen(row):
            yield row, program, 0
    for round_ in range(1, options.rounds):
        for row in rows:
            for program in filter(None, ["mezzo", measured.best_python(row.name)[1]]):
                yield row, program, round_


def flops_of_a_text(row, options):
    """Of a training step of BERT, the last layer for the first token alone. Attention has two products of forward and four of
    backward of length × length × hidden size in all layers except the last: repeated work of backward is not counted."""
    model = model_of(row, options)
    attention = 12 * row.length**2 * model["hidden_size"] * (model["num_hidden_layers"] - 1)
    return products.flops_of_step(model, row.batch * row.length, row.batch) / row.batch + attention


@torch.no_grad()
def measured_peak(options):
    """Operations a second of a large product in bf16."""
    size, repeats = (256, 2) if options.quick else (8192, 10)
    left, right = (torch.randn(size, size, device=options.device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(left)

    def many():
        for _ in range(repeats):
            torch.mm(left, right, out=out)
        if options.device == "cuda":
            torch.cuda.synchronize()

    return 2 * size**3 * repeats / products.seconds_of(many)


def verdict(row, mezzo, python, share):
    """The goals of the row, and whether it reaches them."""
    goals = []
    if row.kind == "serve":
        goals.append((f"≤ {row.goal:g} ms", mezzo <= row.goal))
    elif row.goal:
        goals.append((f"≥ {row.goal:,.0f}", mezzo >= row.goal))
    if row.peak:
        goals.append((f"≥ {row.peak:.0%} of the peak", share >= row.peak))
    if python:
        goals.append((f"≥ {row.times:g} ×", mezzo >= row.times * python))
    return ", ".join(f"{goal} {'yes' if reached else 'no'}" for goal, reached in goals) if mezzo else ""


def summary(rows, measured, peak, options):
    found = []
    for row in rows:
        values = measured.values(row.name, "mezzo")
        best, name = measured.best_python(row.name)
        if not values and not best and not measured.said(row.name, "mezzo"):
            continue
        mezzo = statistics.median(values) if values else 0
        is_bert = row.kind == "train" and row.family in ("BERT-base", "BERT-large", "MiniLM", "RoBERTa", "XLM-R") and row.length != EMOTION
        share = mezzo * flops_of_a_text(row, options) / peak if is_bert else 0
        found.append([row.name, support.spread(values, 2 if row.kind == "serve" else 0) or measured.said(row.name, "mezzo"),
                      f"{best:,.0f}" if best else "", name, f"{mezzo / best:.2f} ×" if mezzo and best else "", f"{share:.0%}" if share else "",
                      verdict(row, mezzo, best, share)])
    return support.table(["work, batch × tokens", "mezzo, texts/s; of serve ms", "best Python, texts/s", "of", "mezzo is as fast",
                          "of the peak", "to reach"], found)


def details(rows, measured):
    found = [[row.name, name, support.spread(measured.values(row.name, name), 0) or "failed", measured.said(row.name, name)]
             for row in rows for name in CANDIDATES if measured.count(row.name, name)]
    return support.table(["work, batch × tokens", "Python", "texts/s", "it said"], found)


def gpu(options):
    if options.device != "cuda":
        return "No GPU: `--device cpu` shows that all of this runs, and nothing else."
    properties = torch.cuda.get_device_properties(0)
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True)
    return (f"{properties.name}, compute capability {properties.major}.{properties.minor}, {properties.multi_processor_count}"
            f" multiprocessors, {properties.total_memory / 2**30:.0f} GiB, driver {driver.stdout.split(chr(10))[0] or 'unknown'}, CUDA"
            f" {torch.version.cuda}.")


def write_page(rows, measured, peak, options, show=False):
    published = next((1e12 * tera for begin, tera in PUBLISHED_TFLOPS.items() if measured.of["device"].startswith(begin)), 0)
    about = (
        f"{gpu(options)} Peak: {peak / 1e12:,.3g} TFLOP/s measured by products of random bf16 numbers"
        f"{f', {published / 1e12:,.0f} published, which shares refer to' if published else ''}.\n\n"
        f"{EMOTION} tokens: the emotion data set, of {EMOTION} tokens on average; other lengths: texts of so many tokens each. Dropout 0.1,"
        " AdamW at 3e-5. mezzo: medians (least to most) of whole steps with data loading; predictions with reading, tokenizing and writing.\n\n"
        "Python: transformers. Its texts are tokenized and its batches pinned before the clock starts; nothing waits for the device before the"
        " last step. Its best is the fastest of all runs of all candidates.\n\n"
        "- grouped: batches of similar length under a mask. varlen: no padding, flash attention of varying lengths; BERT, RoBERTa and XLM-R"
        " compute only first tokens in the last layer.\n"
        "- recorded: the whole step is one CUDA graph, with capturable AdamW. compiled: `torch.compile` of model and optimizer."
        " max-autotune: its mode.\n"
        "- In the other cases mezzo saves all but the first tokens of the last layer: 1 / layers of the products, about.\n"
        "- Compiling and recording are in nobody's time.")
    parts = [part for name in PARTS for text in [measured.said(name, "mezzo")] if text for part in (f"## {name.replace('_', ' ').capitalize()}", text)]
    support.page(options, "gpu", "mezzo and Python on a GPU", about, summary(rows, measured, published or peak, options),
                 "## Every candidate", details(rows, measured), *parts, show=show)


def flags():
    parser = support.parser(__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--rows", default="", help="regular expression of the rows to measure; all if left out")
    parser.add_argument("--candidates", nargs="*", choices=CANDIDATES, default=list(CANDIDATES), help="of the best Python")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS), help="programs of micro/, after the rows")
    parser.add_argument("--rounds", type=int, default=3, help="runs of mezzo and of the fastest candidate")
    parser.add_argument("--steps", type=int, default=0, help="measured; 0: by row")
    parser.add_argument("--timeout", type=float, default=150, help="seconds of one run of a program")
    parser.add_argument("--minutes", type=float, default=60 * 24, help="starts nothing after them, and ends what runs")
    options = parser.parse_args()
    options.until = time.monotonic() + 60 * options.minutes
    if options.quick:
        options.steps, options.rounds = 2, 1
    return options


def main():
    options = flags()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("gpu: PyTorch sees no CUDA device here; --device cpu --quick shows whether the benchmark runs")
    small = lambda row: dataclasses.replace(row, batch=min(row.batch, 4), length=min(row.length, 128)) if options.quick else row
    rows = list(dict.fromkeys(small(row) for row in ROWS if re.search(options.rows, row.name)))
    measured, peak = Measured(options), measured_peak(options)
    with tempfile.TemporaryDirectory() as name:
        options.folder = Path(name)
        for row, program, round_ in tasks(rows, measured, options):
            if measured.count(row.name, program) <= round_ and time.monotonic() < options.until:
                found = attempt(lambda: run_program(row, program, options))
                if "error" in found and time.monotonic() >= options.until:
                    break  # the time was up, not the program wrong
                measured.add(row.name, program, found)
                write_page(rows, measured, peak, options)
        for name in options.parts:
            if not measured.count(name, "mezzo") and time.monotonic() < options.until:
                found = attempt(lambda: dict(said=table_of(name, options)))
                if "error" not in found or time.monotonic() < options.until:
                    measured.add(name, "mezzo", found)
    write_page(rows, measured, peak, options, show=True)
    failed = [f"{line['row']}, {line['program']}: {line['error']}" for line in measured.all if "error" in line]
    if failed:
        sys.exit("gpu: failed:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
