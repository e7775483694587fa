"""Common parts of the benchmarks: paths, models, runs of mezzo, and the layout of a page of results."""
import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = Path(os.environ.get("MEZZO_PROGRAM", ROOT / "build/release/bin/mezzo"))
PEERS = ROOT / "benchmarks/peers"
SHARED = ROOT.parent / "shared/data"

BASE = dict(model_type="bert", vocab_size=21128, hidden_size=768, num_hidden_layers=12, num_attention_heads=12,
            intermediate_size=3072)
MINILM = dict(BASE, hidden_size=384, num_hidden_layers=6, intermediate_size=1536)
TINY = dict(BASE, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256)


def parser(description):
    """Flags that every benchmark takes; add its own to them."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--train", type=Path, default=SHARED / "emotion/train.json", help="emotion's train.json")
    made.add_argument("--vocab", type=Path, default=SHARED / "bert-base-chinese/vocab.txt", help="bert-base-chinese's vocab.txt")
    made.add_argument("--results", type=Path, default=ROOT / "benchmarks/results", help="folder of the page it writes")
    made.add_argument("--quick", action="store_true", help="tiny models and few steps: whether it runs, not how fast")
    return made


def write_config(folder, model):
    path = Path(folder) / f"config-{name_of(model)}.json"
    path.write_text(json.dumps(model))
    return path


def name_of(model):
    """Of a family and a size, whose fields each family has separate names for."""
    layers, hidden = (model.get(name, model.get(other)) for name, other in [("num_hidden_layers", "n_layers"), ("hidden_size", "dim")])
    return f"{model['model_type']}-{layers}x{hidden}"


def fresh_model(folder, model, vocab, labels=6, seed=0):
    """A Hugging Face folder with fresh weights, for programs that shall start from the same ones."""
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    folder = Path(folder) / f"fresh-{name_of(model)}"
    if not folder.exists():
        torch.manual_seed(seed)
        config = AutoConfig.for_model(**model, num_labels=labels)
        AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
        (folder / "vocab.txt").write_bytes(Path(vocab).read_bytes())
        (folder / "tokenizer_config.json").write_text(json.dumps(dict(tokenizer_class="BertTokenizer")))
    return folder


def run(*command, timeout=None, check=True, env=None):
    """Runs a command and returns the completed process, with its output as text. If it fails, its errors are shown."""
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=timeout, env={**os.environ, "HF_HUB_OFFLINE": "1", **(env or {})})
    if check and done.returncode != 0:
        sys.exit(f"{shlex.join(map(str, command))}\n{done.stderr}\nended with status {done.returncode}")
    return done


# Nothing but steps, by the recipe of the reference program.
TRAIN = ["train", "--recipe", "reference", "--overwrite", "--quiet", "--dev-ratio", "0", "--eval-every", "0"]


def train(out, *flags, env=None):
    """Runs TRAIN and returns the records of its metrics.jsonl."""
    run(PROGRAM, *TRAIN, "--output", out, *flags, env=env)
    return records(out)


def rate(steps):
    """Texts a second of the records of steps."""
    return sum(step["samples"] for step in steps) / sum(step["seconds"] for step in steps)


def records(out, event=None):
    lines = map(json.loads, (Path(out) / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if event in (None, line["event"])]


def peer(script, *flags, timeout=None, env=None):
    """Runs a script of benchmarks/peers and returns the JSON of its last line."""
    return json.loads(run(sys.executable, PEERS / script, *flags, timeout=timeout, env=env).stdout.splitlines()[-1])


def spread(values, digits=2):
    """The median, and the least and the most."""
    values = list(values)
    if not values:
        return ""
    median = f"{statistics.median(values):.{digits}f}"
    return median if len(values) == 1 else f"{median} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def table(heads, rows):
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


FEATURES = ["avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd", "bf16", "sve"]


def processor():
    """Its name, family, model and the instructions that matter for speed, of /proc/cpuinfo; on ARM implementer and part."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    fields = dict(map(str.strip, line.split(":", 1)) for line in reversed(lines) if ":" in line)
    names = [fields.get("model name", platform.processor() or platform.machine())]
    names += [f"{name} {fields[name]}" for name in ("cpu family", "model", "stepping", "CPU implementer", "CPU part") if name in fields]
    has = fields.get("flags", fields.get("Features", "")).split()
    return ", ".join([*names, " ".join(name for name in FEATURES if name in has)]).rstrip(", ")


def usable_processors():
    return os.sched_getaffinity(0)


def machine():
    return f"{processor()}; {len(usable_processors())} processors"


def commit():
    """A bundle has no history, but a file that names the commit."""
    written = ROOT / ".commit"
    if written.exists():
        return written.read_text().strip()
    found = subprocess.run(["git", "describe", "--always", "--dirty", "--exclude", "*"], cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip() or "without git"


def versions():
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "tokenizers"))
    return f"mezzo {commit()}, {packages}"


def command():
    """The command line of this benchmark, as one types it in the root of the repository."""
    script = Path(sys.argv[0]).resolve()
    name = str(script.relative_to(ROOT)) if script.is_relative_to(ROOT) else script.name
    return shlex.join(["python", name, *sys.argv[1:]])


def page(options, name, title, about, *parts, made_by=None, show=True):
    """Writes a page of results: its command, its explanation, then its tables. Also prints it."""
    made = f"`{made_by or command()}`, {date.today()}, {machine()}; {versions()}."
    options.results.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join([f"# {title}", f"{made}\n\n{about}" if about else made, *parts]) + "\n"
    (options.results / f"{name}.md").write_text(text)
    if show:
        print(text)
