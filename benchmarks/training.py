"""Trains and predicts with mezzo and with its Python peers in turn, and writes benchmarks/results/training.md: texts a second,
peak memory. The peers are benchmarks/peers/train_step.py and predict_texts.py.

If LibTorch has no native matrix products for a precision, a step of a Python peer takes many minutes. Such a peer is
measured once, on as few texts as the budget allows, and mezzo is compared with the best Python in fp32 as well.
"""
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import products
import support

BATCH = 32


@dataclass
class Workload:
    name: str
    model: dict
    precision: str
    task: str = "train"

    def title(self):
        shape = f"{self.model['num_hidden_layers']} × {self.model['hidden_size']}"
        return f"{'training' if self.task == 'train' else 'prediction'}, BERT {shape}, {self.precision}"


WORKLOADS = [
    Workload("base-bf16", support.BASE, "bf16"),
    Workload("base-fp32", support.BASE, "fp32"),
    Workload("minilm-bf16", support.MINILM, "bf16"),
    Workload("minilm-fp16", support.MINILM, "fp16"),
    Workload("minilm-fp32", support.MINILM, "fp32"),
    Workload("predict-base-bf16", support.BASE, "bf16", "predict"),
    Workload("predict-base-fp32", support.BASE, "fp32", "predict"),
]


@dataclass
class Peer:
    """One Python program of a workload, and how much of it is measured."""

    name: str
    recipe: str
    precision: str
    compiled: bool = False
    texts: int | None = None  # where few: on a machine that multiplies this precision one by one

    def sizes(self, options):
        """(texts a batch, measured batches, batches before them)."""
        if self.texts is None:
            return BATCH, options.steps, options.warmup
        # Batches that differ in length are best sampled by several small ones.
        batches = 1 if self.recipe == "p1" else min(4, self.texts)
        size = min(BATCH, max(1, self.texts // batches))
        return size, min(options.steps, max(1, self.texts // size)), 0


@dataclass
class Runs:
    """The measurements of one program, run by run."""

    rates: list = field(default_factory=list)
    memory: list = field(default_factory=list)  # empty if the batches were not of full size
    measured: str = ""


def encoder_weights(model):
    hidden = model["hidden_size"]
    return model["num_hidden_layers"] * (4 * hidden * hidden + 2 * hidden * model["intermediate_size"])


def affordable_texts(workload, recipe, options):
    """Texts of which a peer is done within the budget, where its products run at the rate of plain loops."""
    flops = (6 if workload.task == "train" else 2) * encoder_weights(workload.model) * (128 if recipe == "p1" else 20)
    return max(1, int(options.budget * products.rate(workload.precision) / flops))


def peers_of(workload, options):
    if not products.is_emulated(workload.precision):
        peers = [Peer("P1", "p1", workload.precision), Peer("P2", "p2", workload.precision)]
        return peers + [Peer("P2, torch.compile", "p2", workload.precision, compiled=True)] * options.compile
    peers = [Peer(recipe.upper(), recipe, workload.precision, texts=affordable_texts(workload, recipe, options))
             for recipe in ("p1", "p2")]
    peers.append(Peer("P2 in fp32", "p2", "fp32"))
    return peers + [Peer("P2 in fp32, torch.compile", "p2", "fp32", compiled=True)] * options.compile


def tokens_of_a_text(options):
    """On average over an epoch: few random batches have some percent more or less."""
    with tempfile.TemporaryDirectory() as name:
        found = support.train(Path(name) / "out", "--model-config", support.write_config(name, support.TINY), "--vocab",
                              options.vocab, "--train", options.train, "--limit", options.limit, "--epochs", 1)
    steps = [r for r in found if r["event"] == "step"]
    return sum(r["tokens"] for r in steps) / sum(r["samples"] for r in steps)


def train_with_mezzo(workload, folder, options):
    steps, warmup = options.mezzo_steps, options.warmup
    records = support.train(folder / "out", "--model-config", support.write_config(folder, workload.model), "--vocab",
                            options.vocab, "--train", options.train, "--limit", options.limit, "--precision",
                            workload.precision, "--max-steps", warmup + steps, *threads(options))
    timed = [r for r in records if r["event"] == "step"][warmup:]
    end = next(r for r in records if r["event"] == "end")
    tokens_per_second = sum(r["tokens"] for r in timed) / sum(r["seconds"] for r in timed)
    return dict(samples_per_second=tokens_per_second / options.tokens_of_a_text,
                peak_memory_bytes=end["peak_memory_bytes"], measured=f"{len(timed)} steps of {BATCH}")


def predict_with_mezzo(workload, folder, options):
    """Subtracts a run over few texts, and so the time to start and to load the model."""
    def seconds(name, count):
        rows = folder / f"{name}.json"
        if not rows.exists():
            rows.write_text(json.dumps(json.loads(options.train.read_text())[:count]))
        begin = time.perf_counter()
        support.run(support.PROGRAM, "predict", "--model", model, "--data", rows, "--output", folder / "predictions.jsonl",
                    "--precision", workload.precision, *threads(options))
        return time.perf_counter() - begin

    model = support.fresh_model(folder, workload.model, options.vocab)
    few, many = min(64, options.texts // 4), options.texts
    start = seconds("few", few)
    return dict(samples_per_second=(many - few) / (seconds("many", many) - start), measured=f"{many - few} texts")


def train_with_peer(workload, peer, folder, options):
    size, steps, warmup = peer.sizes(options)
    found = support.peer("train_step.py", "--recipe", peer.recipe, "--model-config",
                         support.write_config(folder, workload.model), "--vocab", options.vocab, "--train", options.train,
                         "--limit", options.limit, "--precision", peer.precision, "--steps", steps, "--warmup", warmup,
                         "--batch-size", size, "--budget", options.budget, *["--compile"] * peer.compiled, *threads(options),
                         timeout=20 * options.budget + 600)
    found["measured"] = f"{len(found['seconds'])} {'step' if len(found['seconds']) == 1 else 'steps'} of {size}"
    if size != BATCH:
        del found["peak_memory_bytes"]
    return found


def predict_with_peer(workload, peer, folder, options):
    size, batches, warmup = peer.sizes(options)
    cut = [] if peer.texts is None else ["--batch-size", size, "--batches", batches, "--cold"]
    found = support.peer("predict_texts.py", "--recipe", peer.recipe, "--model",
                         support.fresh_model(folder, workload.model, options.vocab), "--data", options.train, "--limit",
                         options.texts, "--precision", peer.precision, "--budget", options.budget,
                         *["--compile"] * peer.compiled, *cut, *threads(options), timeout=20 * options.budget + 600)
    return found | dict(measured=f"{found['texts']} texts")


def threads(options):
    return ["--threads", options.threads] if options.threads else []


def measure(workloads, folder, options):
    """All programs in turn, round after round, so that a slow minute hits all of them. A peer that is of several workloads runs
    once a round."""
    peers = {w.name: peers_of(w, options) for w in workloads}
    results = {w.name: {name: Runs() for name in ["mezzo", *(peer.name for peer in peers[w.name])]} for w in workloads}
    for round_ in range(options.rounds):
        done = {}
        for workload in workloads:
            with_mezzo, with_peer = ((train_with_mezzo, train_with_peer) if workload.task == "train"
                                     else (predict_with_mezzo, predict_with_peer))
            add(results, workload, "mezzo", attempt(lambda: with_mezzo(workload, folder, options)))
            for peer in peers[workload.name]:
                if peer.texts is None or round_ == 0:
                    program = workload.task, tuple(workload.model.items()), peer.recipe, peer.precision, peer.compiled
                    if program not in done:
                        done[program] = attempt(lambda: with_peer(workload, peer, folder, options))
                    add(results, workload, peer.name, done[program])
    return results


def attempt(run):
    try:
        return run()
    except subprocess.TimeoutExpired as error:
        return dict(measured=f"nothing within {error.timeout:.0f} s")


def add(results, workload, name, found):
    runs = results[workload.name][name]
    runs.measured = found["measured"]
    if "samples_per_second" not in found:
        return
    runs.rates.append(found["samples_per_second"])
    if "peak_memory_bytes" in found:
        runs.memory.append(found["peak_memory_bytes"])
    print(workload.name, name, f"{found['samples_per_second']:.3g} texts/s, {found['measured']}", file=sys.stderr, flush=True)


def digits(rate):
    return 1 if rate >= 10 else 2 if rate >= 1 else 4


def times(mezzo, runs):
    return f"{statistics.median(mezzo.rates) / statistics.median(runs.rates):.3g} ×" if mezzo.rates and runs.rates else ""


def workload_table(runs):
    rows = []
    for name, program in runs.items():
        shown = support.spread(program.rates, digits(statistics.median(program.rates))) if program.rates else ""
        memory = f"{statistics.median(program.memory) / 1e9:.2f}" if program.memory else ""
        rows.append([name, shown, program.measured, memory, "" if name == "mezzo" else times(runs["mezzo"], program)])
    return support.table(["program", "texts/s", "measured in a run", "peak memory, GB", "mezzo is as fast"], rows)


def fastest(runs, *names):
    """The fastest of the programs that were measured."""
    measured = [runs[name] for name in names if name in runs and runs[name].rates]
    return max(measured, key=lambda program: statistics.median(program.rates), default=Runs())


def summary_table(workloads, results):
    rows = []
    for workload in workloads:
        runs = results[workload.name]
        best = fastest(runs, "P2", "P2, torch.compile")
        in_fp32 = fastest(runs, "P2 in fp32", "P2 in fp32, torch.compile")
        held = [statistics.median(program.memory) for program in (runs["mezzo"], best if best.memory else in_fp32) if program.memory]
        rows.append([workload.title(), times(runs["mezzo"], runs["P1"]), times(runs["mezzo"], best),
                     times(runs["mezzo"], in_fp32), f"{held[0] / held[1]:.2f} ×" if len(held) == 2 else ""])
    return support.table(["mezzo against", "P1", "P2", "P2 in fp32", "peak memory of P2"], rows)


def flags():
    parser = support.parser(__doc__)
    parser.add_argument("--workloads", nargs="*", default=[w.name for w in WORKLOADS], choices=[w.name for w in WORKLOADS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="measured steps of a peer")
    parser.add_argument("--mezzo-steps", type=int, default=40, help="measured steps of mezzo, whose batches differ at random")
    parser.add_argument("--warmup", type=int, default=3, help="steps before them")
    parser.add_argument("--texts", type=int, default=2000, help="to predict")
    parser.add_argument("--limit", type=int, default=4000, help="texts to train on")
    parser.add_argument("--budget", type=float, default=120, help="seconds after which a peer starts no more measured steps")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="leave out torch.compile")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps, options.mezzo_steps, options.warmup = 1, 4, 4, 1
        options.texts, options.limit, options.budget, options.compile = 200, 400, 5, False
    return options


def main():
    options = flags()
    workloads = [w for w in WORKLOADS if w.name in options.workloads]
    if options.quick:
        workloads = [Workload(w.name, support.TINY, w.precision, w.task) for w in workloads]
    options.tokens_of_a_text = tokens_of_a_text(options)
    with tempfile.TemporaryDirectory() as name:
        results = measure(workloads, Path(name), options)
    about = (
        f"Emotion data set, batches of {BATCH} texts of at most 128 tokens, dropout 0.1, AdamW at 3e-5, the whole step with data loading."
        " P1: transformers pads each text to 128 tokens and tokenizes it in its step; AdamW has its defaults."
        " P2: transformers tokenizes once, uses batches of similar length and fused AdamW. The faster of its runs with and without torch.compile counts."
        " The time of compiling does not count. Rates of P2 and mezzo are scaled to a whole epoch, since a few batches differ from the mean batch."
        " The time of mezzo's prediction is the time of many texts minus the time of a few; this removes the start."
        f" Figures are medians (least to most) of {options.rounds} runs of each program in turn. Programs on fewer texts ran once."
        " Peak memory is the kernel's high-water mark of the process, libraries included."
        " If LibTorch has no products for a precision, its own loops limit the peers. P2 in fp32 is the best Python there.")
    parts = ["## Summary", summary_table(workloads, results)]
    for workload in workloads:
        parts += [f"## {workload.title()[0].upper()}{workload.title()[1:]}", workload_table(results[workload.name])]
    support.page(options, "training", "mezzo and Python, training and predicting", about, *parts)


if __name__ == "__main__":
    main()
