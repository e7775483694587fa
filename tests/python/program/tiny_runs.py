"""Training runs of a model so small that starting the program takes all the time, and their files."""
import hashlib
import json
import os
import random
import subprocess
from pathlib import Path

from support import PROGRAM, program_arguments, records

WORDS = "goal team law vote rain storm".split()
LABELS = ["sport", "politics", "weather"]
STEPS = 6


def write_rows(path, count, seed):
    rng = random.Random(seed)
    lines = []
    for i in range(count):
        label = i % 3 if i < 3 else rng.randrange(3)
        words = rng.choices(WORDS, weights=[4 if i // 2 == label else 1 for i in range(6)], k=rng.randint(1, 6))
        lines.append(json.dumps({"text": " ".join(words), "label": LABELS[label]}))
    path.write_text("\n".join(lines) + "\n")


def write_data(folder):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(
        model_type="bert", vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=16)))
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    write_rows(folder / "train.jsonl", 24, 0)
    write_rows(folder / "dev.jsonl", 30, 1)
    return folder


def flags(data, output, *more):
    """Evaluates after each step and saves after every second one. Steps 1, 2 and 4 give the best models."""
    return list(map(str, [
        "train", "--recipe", "reference", "--model-config", data / "config.json", "--vocab", data / "vocab.txt", "--train", data / "train.jsonl",
        "--dev", data / "dev.jsonl", "--output", output, "--max-length", 16, "--batch-size", 4, "--max-steps", STEPS,
        "--eval-every", 1, "--save-every", 2, "--learning-rate", 0.05, "--seed", 2, "--threads", 1, "--precision", "fp32", *more]))


def run(arguments, **variables):
    return subprocess.run([PROGRAM, *program_arguments(arguments)], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "OMP_NUM_THREADS": "1", **variables})


def trained(arguments, **variables):
    done = run(arguments, **variables)
    assert done.returncode == 0, done.stderr
    return done


def sha(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def model_of(output):
    return sha(Path(output) / "model.safetensors")


def losses_of(output):
    return [(record["step"], record["loss"]) for record in records(output, "step")]


def snapshot(folder):
    """Every file and folder below, with its contents; of a link, its target."""
    return {str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else sha(path) if path.is_file() else None
            for path in Path(folder).rglob("*")}


def checkpoints_of(output):
    """The steps of a run's checkpoints, oldest first."""
    return sorted(int(path.parent.name.removeprefix("step-")) for path in (Path(output) / "checkpoints").glob("step-*/manifest.json"))


def flip_a_byte(path):
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2] ^= 1
    path.write_bytes(contents)


def faults(output, fault="", at=0, log=None, term_at=0, count=1):
    """The environment in which the program's writes to `output` fail; see write_faults.cpp."""
    return dict(LD_PRELOAD=os.environ["MEZZO_WRITE_FAULTS"], MEZZO_FAULT_FOLDER=str(output), MEZZO_FAULT=fault,
                MEZZO_FAULT_AT=str(at), MEZZO_FAULT_FOR=str(count), MEZZO_TERM_AT=str(term_at), **({"MEZZO_FAULT_LOG": str(log)} if log else {}))


def logged_calls(arguments, output, log, term_at=0):
    """[(call, path)] of a run that goes through, or is stopped at one of them, call by call."""
    done = run(arguments, **faults(output, log=log, term_at=term_at))
    assert done.returncode == (143 if term_at else 0), done.stderr
    lines = [line.split(" ", 2) for line in log.read_text().splitlines()]
    assert [int(number) for number, _, _ in lines] == list(range(1, len(lines) + 1))
    return [(call, path) for _, call, path in lines]
