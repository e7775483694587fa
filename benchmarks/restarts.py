"""The time in which `mezzo launch --min-nproc` goes on after a rank was killed. Measures the time until the others are started
again, until they have loaded model, data and checkpoint, and until the first step is done. Writes
benchmarks/results/restarts.md."""
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import support

MODELS = {"BERT-base": support.BASE, "MiniLM": support.MINILM}


def ranks_of(launcher):
    """Process ids by rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == launcher:
                variables = dict(part.split(b"=", 1) for part in (entry / "environ").read_bytes().split(b"\0") if b"=" in part)
                if b"RANK" in variables:
                    found[int(variables[b"RANK"])] = int(entry.name)
        except (OSError, IndexError):
            continue
    return found


class Said:
    """When a process said what."""

    def __init__(self, process):
        self.lines = []
        threading.Thread(target=self.read, args=[process], daemon=True).start()

    def read(self, process):
        for line in process.stderr:
            self.lines.append((time.perf_counter(), line))

    def wait_for(self, part, after=0.0):
        deadline = time.perf_counter() + 600
        while time.perf_counter() < deadline:
            for at, line in self.lines:
                if part in line and at >= after:
                    return at
            time.sleep(0.005)
        sys.exit(f"restarts: nobody said '{part}': {''.join(line for _, line in self.lines)[-2000:]}")


def measure(model, folder, options):
    """Seconds from the death of the last rank to each of the three."""
    out = folder / "out"
    command = [support.PROGRAM, "launch", "--nproc", options.ranks, "--min-nproc", 1, "--", "train", "--recipe", "reference", "--model-config",
               support.write_config(folder, model), "--vocab", options.vocab, "--train", options.train, "--output", out, "--overwrite",
               "--dev-ratio", 0, "--eval-every", 0, "--save-every", options.save_every, "--precision", options.precision, "--batch-size",
               options.batch, "--max-steps", 10_000]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        said = Said(process)
        while len(list((out / "checkpoints").glob("step-*"))) < 1 or not [r for r in support.records(out, "step") if r["step"] > options.save_every + 1]:
            time.sleep(0.02)
            if process.poll() is not None:
                said.wait_for("started")
        killed = time.perf_counter()
        os.kill(ranks_of(process.pid)[options.ranks - 1], signal.SIGKILL)
        again = said.wait_for("start again", killed)
        loaded = said.wait_for("resumed after step", again)
        stepped = said.wait_for("  loss ", loaded)  # the progress of its first step
        return again - killed, loaded - again, stepped - loaded
    finally:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        process.wait()


def main():
    parser = support.parser(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8, help="texts of a share")
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    models = MODELS
    if options.quick:
        options.rounds, models = 1, {"tiny": support.TINY}
    rows = []
    for name, model in models.items():
        with tempfile.TemporaryDirectory() as folder:
            found = []
            for i in range(options.rounds):  # a folder each: a round must not find the files of an earlier one
                (Path(folder) / str(i)).mkdir()
                found.append(measure(model, Path(folder) / str(i), options))
        rows.append([name, *(support.spread(part) for part in zip(*found)), support.spread(map(sum, found))])
        print(rows[-1], file=sys.stderr, flush=True)
    about = (
        f"{options.ranks} ranks train in {options.precision}. The last rank gets SIGKILL, and the others go on with its share. Before they start"
        " again, the launcher ends them, and waits 0.2 s to find the rank that failed first. Loading: the program, the training texts, their"
        f" tokens, the checkpoint. Figures are seconds, medians (least to most) of {options.rounds} rounds.")
    support.page(options, "restarts", "Going on after the loss of a rank", about, support.table(
        ["model", "until they start again", "loading", "first step", "all of it"], rows))


if __name__ == "__main__":
    main()
