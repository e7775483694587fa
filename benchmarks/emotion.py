"""Trains a fresh BERT on ten thousand texts of the emotion data set with mezzo and with its Python peer, three seeds each,
and writes the table benchmarks/results/emotion.md. Needs emotion's train.json and bert-base-chinese's vocab.txt."""
import json
import random
import statistics
import tempfile
from pathlib import Path

import support

MODEL = dict(model_type="bert", vocab_size=21128, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
             intermediate_size=1024)
RECIPE = ["--epochs", "1", "--learning-rate", "5e-4", "--warmup-ratio", "0.1"]


def prepare(data, folder, count):
    """The reference program's split: the first ten thousand rows, shuffled, 92 % to train on and 8 % to measure on."""
    rows = json.loads(data.read_text(encoding="utf-8"))[:count]
    random.Random(123).shuffle(rows)
    cut = int(len(rows) * 0.92)
    (folder / "train.json").write_text(json.dumps(rows[:cut]), encoding="utf-8")
    (folder / "dev.json").write_text(json.dumps(rows[cut:]), encoding="utf-8")


def run_mezzo(folder, model, vocab, seed):
    out = folder / "out"
    support.run(support.PROGRAM, "train", "--recipe", "reference", "--model-config", model, "--vocab", vocab, "--train", folder / "train.json", "--dev",
                folder / "dev.json", "--output", out, "--overwrite", "--precision", "fp32", "--schedule", "linear",
                "--max-grad-norm", "1", "--seed", seed, "--quiet", *RECIPE)
    best = max((r["accuracy"], r["macro_f1"]) for r in support.records(out, "eval"))
    return dict(accuracy=best[0], macro_f1=best[1])


def run_peer(folder, model, vocab, seed):
    return support.peer("train_classifier.py", "--model-config", model, "--vocab", vocab, "--train", folder / "train.json",
                        "--dev", folder / "dev.json", "--seed", seed, *RECIPE)


def table(results, seeds):
    rows = []
    for name, runs in results.items():
        accuracies = [run["accuracy"] for run in runs]
        rows.append([name, *(f"{a:.4f}" for a in accuracies), f"{statistics.mean(accuracies):.4f}",
                     f"{statistics.stdev(accuracies):.4f}", f"{statistics.mean(r['macro_f1'] for r in runs):.4f}"])
    return support.table(["program", *(f"seed {s}" for s in seeds), "mean", "standard deviation", "macro F1"], rows)


def main():
    options = support.parser(__doc__).parse_args()
    seeds, count = ([1, 2], 200) if options.quick else ([1, 2, 3], 10000)
    results = {"mezzo": [], "transformers, dynamic padding": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(options.train, folder, count)
        model = support.write_config(folder, support.TINY if options.quick else MODEL)
        for seed in seeds:
            results["mezzo"].append(run_mezzo(folder, model, options.vocab, seed))
            results["transformers, dynamic padding"].append(run_peer(folder, model, options.vocab, seed))
            print(seed, {name: runs[-1] for name, runs in results.items()}, flush=True)
    about = (f"float32; 4 layers of 256, 1 epoch over {int(count * 0.92):,} texts, best accuracy on {count - int(count * 0.92):,} dev"
             " texts (majority class: 0.35).")
    support.page(options, "emotion", "A fresh BERT on ten thousand Chinese texts", about, table(results, seeds))


if __name__ == "__main__":
    main()
