"""transformers with and without mezzo.optimize, training and predicting, in turn: texts a second and peak memory. Writes
benchmarks/results/optimize.md. The programs are benchmarks/peers/train_step.py and predict_texts.py with the recipe p2, the
fastest Python; with `--optimize` they call mezzo.optimize before the first step, and change nothing else."""
import os
import statistics
import sys
import tempfile
from pathlib import Path

import support

BATCH = 32
PROGRAMS = {"transformers": [], "transformers, torch.compile": ["--compile"], "mezzo.optimize": ["--optimize"]}
MODELS = {"MiniLM": support.MINILM, "BERT-base": support.BASE}
PACKAGE = Path(os.environ.get("MEZZO_PACKAGE", support.ROOT / "build/release/python"))


def run(task, model, program, folder, options):
    flags = ["--recipe", "p2", "--precision", options.precision, *PROGRAMS[program], "--batch-size", BATCH if task == "training" else 64]
    flags += ["--threads", options.threads] if options.threads else []
    if task == "training":
        script, flags = "train_step.py", flags + [
            "--model-config", support.write_config(folder, model), "--vocab", options.vocab, "--train", options.train,
            "--limit", options.limit, "--steps", options.steps, "--warmup", options.warmup]
    else:
        script, flags = "predict_texts.py", flags + [
            "--model", support.fresh_model(folder, model, options.vocab), "--data", options.train, "--limit", options.texts]
    return support.peer(script, *flags, env=dict(PYTHONPATH=str(PACKAGE)))


def measure(task, model, folder, options):
    """Each program in turn, round after round."""
    programs = [name for name in PROGRAMS if options.compile or name != "transformers, torch.compile"]
    runs = {name: [] for name in programs}
    for _ in range(options.rounds):
        for name in programs:
            runs[name].append(run(task, model, name, folder, options))
            print(task, support.name_of(model), name, f"{runs[name][-1]['samples_per_second']:.1f} texts/s", file=sys.stderr, flush=True)
    return runs


def rows_of(task, title, runs):
    medians = {name: statistics.median(run["samples_per_second"] for run in of) for name, of in runs.items()}
    best = max(rate for name, rate in medians.items() if name != "mezzo.optimize")
    for name, of in runs.items():
        rates = support.spread((run["samples_per_second"] for run in of), 1)
        memory = support.spread((run["peak_memory_bytes"] / 1e9 for run in of), 2)
        yield [f"{task}, {title}", name, rates, memory, f"{medians[name] / best:.2f} ×"]


def flags():
    parser = support.parser(__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--tasks", nargs="*", default=["training", "prediction"], choices=["training", "prediction"])
    parser.add_argument("--precision", default="bf16", choices=["fp32", "bf16", "fp16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="measured steps of a run")
    parser.add_argument("--warmup", type=int, default=3, help="steps before them")
    parser.add_argument("--texts", type=int, default=2000, help="to predict")
    parser.add_argument("--limit", type=int, default=4000, help="texts to train on")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="leave out torch.compile")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps, options.warmup, options.texts, options.limit, options.compile = 1, 4, 1, 200, 400, False
    return options


def main():
    options = flags()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for title in options.models:
            for task in options.tasks:
                runs = measure(task, support.TINY if options.quick else MODELS[title], Path(name), options)
                rows += rows_of(task, title, runs)
    about = (
        f"Emotion data set, texts of at most 128 tokens, {options.precision} by autocast, all programs in Python with transformers. Texts are"
        f" tokenized once and batches have similar lengths. Training: batches of {BATCH}, dropout 0.1, fused AdamW at 3e-5, the rate of a"
        f" whole epoch. Prediction: batches of 64, tokenizing included. The compiling of torch.compile is not in its time. Medians (least to most) of"
        f" {options.rounds} runs of each program in turn. Peak memory is the kernel's high-water mark of a process, libraries included.")
    heads = ["task", "program", "texts/s", "peak memory, GB", "of the fastest without mezzo"]
    support.page(options, "optimize", "transformers with and without mezzo.optimize", about, support.table(heads, rows))


if __name__ == "__main__":
    main()
