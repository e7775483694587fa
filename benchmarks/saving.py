"""The cost of checkpoints in a training run: the same steps with checkpoints by time, and without, in turn. Also the time of
`torch.save` of the same state, for which a training loop in Python waits. Writes benchmarks/results/saving.md."""
import statistics
import sys
import tempfile
import time
from pathlib import Path

import support


def measure(folder, model, steps, options):
    """Seconds of training without checkpoints and with them, of a median step, and of torch.save."""
    config = support.write_config(folder, model)
    flags = ["--model-config", config, "--vocab", options.vocab, "--train", options.train, "--batch-size", 32,
             "--max-length", 128, "--precision", options.precision, "--device", options.device, "--max-steps", steps,
             "--keep", 1000]
    found, step, saves = {0: [], options.seconds / 60: []}, [], []
    for _ in range(options.rounds):
        for minutes, seconds in found.items():
            begin = time.perf_counter()
            done = support.train(folder / "out", *flags, "--save-minutes", minutes)
            seconds.append(time.perf_counter() - begin)
            if minutes == 0:
                step.append(statistics.median(record["seconds"] for record in done if record["event"] == "step"))
            else:
                written = list((folder / "out/checkpoints").glob("step-*"))
                saves.append(len(written))
                if not written:
                    sys.exit(f"saving: no checkpoint within {options.seconds} s; give more --steps")
    files = [path.stat().st_size for path in written[0].iterdir()]
    peer = support.peer("save_state.py", "--model-config", config, "--folder", folder)
    return found, statistics.median(step), statistics.mean(saves), sum(files), peer


def main():
    parser = support.parser(__doc__)
    parser.add_argument("--steps", type=int, default=150, help="of BERT-base")
    parser.add_argument("--seconds", type=float, default=15, help="between checkpoints")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", help="where checkpoints are written; a temporary one where it is left out")
    options = parser.parse_args()
    models = {"BERT-base": (support.BASE, options.steps), "MiniLM": (support.MINILM, 7 * options.steps)}  # about as long
    if options.quick:
        options.seconds, options.rounds, models = 1e-3, 1, {"tiny": (support.TINY, 6)}
    rows = []
    for name, (model, steps) in models.items():
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            found, step, saves, size, peer = measure(Path(folder), model, steps, options)
        without, with_them = (statistics.median(seconds) for seconds in found.values())
        cost = (with_them - without) / saves
        rows.append([name, f"{size / 1e9:.2f} GB", f"{1e3 * step:.0f} ms", *map(support.spread, found.values()), f"{saves:.3g}",
                     f"{cost:.2f} s; {100 * cost / 600:.3f} % of ten minutes", f"{support.spread(peer['seconds'])} s"])
        print(rows[-1], file=sys.stderr, flush=True)
    about = (
        f"`mezzo train`, emotion data set, batches of 32, {options.precision}, on {options.device}. The same steps run without checkpoints, and with"
        f" one every {options.seconds:g} seconds. Figures are medians (least to most) of {options.rounds} rounds in turn. Training waits while a checkpoint"
        " is copied. A thread of low priority writes, flushes and hashes the copy beside training. If training keeps all processors busy, this"
        " thread slows it down. In a process without training, `torch.save` saves the same weights and AdamW states, and flushes them. A loop in"
        " Python waits for all of it.")
    support.page(options, "saving", "What a checkpoint costs", about, support.table(
        ["model", "a checkpoint", "a step", "a run without, s", "with them, s", "of them", "what one costs", "`torch.save`"], rows))


if __name__ == "__main__":
    main()
