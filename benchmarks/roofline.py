"""How near a training step comes to the machine's limit, and where the rest goes. Writes benchmarks/results/roofline.md.

The limit is the time of the step's bare matrix products: the same shapes in the same order, alone, by LibTorch.
"""
import math
import statistics
import tempfile
from pathlib import Path

import numpy as np
import products
import profile_step
import support
import torch

MODELS = {"base": support.BASE, "minilm": support.MINILM}
BATCH, ROUND_ROWS_TO = 32, 32  # as the batcher rounds


def parameters(model):
    hidden, inner = model["hidden_size"], model["intermediate_size"]
    layer = 4 * (hidden * hidden + hidden) + 2 * hidden * inner + inner + hidden + 4 * hidden
    embeddings = (model["vocab_size"] + 512 + 2) * hidden + 2 * hidden
    return embeddings + model["num_hidden_layers"] * layer + hidden * hidden + hidden


def copy_bandwidth(megabytes):
    """Bytes a second, read and written, of a copy by all threads."""
    source = torch.ones(megabytes * 1_000_000 // 4)
    target = torch.empty_like(source)
    return 2 * source.nbytes / products.seconds_of(lambda: target.copy_(source))


def mean_square_length(folder, options):
    """The mean of the squared lengths of the texts, which attention's work grows with."""
    rows = folder / "lengths.jsonl"
    support.run("bash", "-c", '"$0" tokenize --vocab "$1" --data "$2" | head -n "$3" > "$4"', support.PROGRAM, options.vocab,
                options.train, options.limit, rows, check=False)
    lengths = [min(128, line.count(",") + 1) for line in rows.read_text().splitlines()]
    return statistics.mean(length * length for length in lengths)


def measured_steps(folder, model, precision, options):
    records = support.train(folder / "out", *flags_of(folder, model, precision, options), "--max-steps",
                            options.warmup + options.steps)
    return [r for r in records if r["event"] == "step"][options.warmup :]


def flags_of(folder, model, precision, options):
    return ["--model-config", support.write_config(folder, model), "--vocab", options.vocab, "--train", options.train,
            "--limit", options.limit, "--precision", precision, "--batch-size", BATCH,
            *(["--threads", options.threads] if options.threads else [])]


def rounded(tokens):
    return math.ceil(tokens / ROUND_ROWS_TO) * ROUND_ROWS_TO


def limit_rows(folder, model, precision, options):
    """The step against its limits: rows of the first table."""
    # Where products of a precision would run in plain loops, mezzo multiplies in float32.
    computed = "fp32" if products.is_emulated(precision) else precision
    steps, bare, flops = [], [], []
    for _ in range(options.rounds):  # steps and bare products in turn
        batch = measured_steps(folder, model, precision, options)
        rows = [rounded(step["tokens"]) for step in batch]
        # Of the smallest, the median and the largest batch; between them, the
        # time is as good as linear.
        places = sorted({min(rows), rounded(statistics.median(rows)), max(rows)})
        times = [products.seconds_of_step(model, place, BATCH, products.DTYPES[computed], repeats=3) for place in places]
        steps += [step["seconds"] for step in batch]
        bare += np.interp(rows, places, times).tolist()
        flops += [products.flops_of_step(model, count, BATCH) for count in rows]
    a_step, a_bare = statistics.mean(steps), statistics.mean(bare)
    rate = statistics.mean(flops) / a_bare
    # Forward has two products of L x L x H a text and layer, backward five with the one that it
    # repeats; the last layer has but one query a text.
    attention = 14 * BATCH * mean_square_length(folder, options) * model["hidden_size"] * (model["num_hidden_layers"] - 1)
    moved = parameters(model) * (28 + (2 if precision != "fp32" else 0))
    optimizer = moved / copy_bandwidth(50 if options.quick else 400)
    milliseconds = [1000 * value for value in (a_step, a_bare, attention / rate, optimizer)]
    rest = milliseconds[0] - sum(milliseconds[1:])
    return [f"{a_bare / a_step:.0%}", *(f"{value:.1f}" for value in milliseconds), f"{rest:.1f}",
            f"{statistics.mean(flops) / 1e9:.3g}", f"{rate / 1e9:.0f}", support.spread([1000 * s for s in steps], 0), computed]


def main():
    parser = support.parser(__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--precisions", nargs="*", default=["fp32", "bf16"], choices=products.DTYPES)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--limit", type=int, default=4000)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--sample-seconds", type=float, default=30)
    options = parser.parse_args()
    models = {name: MODELS[name] for name in options.models}
    if options.quick:
        options.rounds, options.steps, options.warmup, options.sample_seconds, options.limit = 1, 4, 1, 3, 400
        models = {"tiny": support.TINY}
    if options.threads:
        torch.set_num_threads(options.threads)

    rows, sections = [], []
    no_profile = profile_step.missing()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model_name, model in models.items():
            for precision in options.precisions:
                title = f"BERT {model['num_hidden_layers']} × {model['hidden_size']}, {precision}"
                rows.append([title, *limit_rows(folder, model, precision, options)])
                print(rows[-1], flush=True)
                if not no_profile:
                    places, milliseconds = profile_step.profile(folder, flags_of(folder, model, precision, options),
                                                                options.warmup, options.sample_seconds)
                    sections += [f"## {title}", *profile_step.tables(places, milliseconds, torch.get_num_threads())]
    about = (
        f"Emotion data set, packed batches of {BATCH} texts, {options.rounds} × {options.steps} steps after {options.warmup} of"
        f" warm-up; {torch.get_num_threads()} threads. Bare products: all products of forward and backward by LibTorch, with the row counts of"
        " the measured batches (interpolated between the smallest, the median and the largest), one after the other into memory"
        " that is there already; queries, keys and values together or apart, whichever is faster; the last layer"
        " with one row a text only. Attention: its operations (14 L² H a text and layer but the last) at the rate"
        " of the products. Optimizer: weights and two moments read and written, gradients read, a half-precision copy written"
        " where there is one, at the speed of a copy. The rest of a step is what no one of these limits explains. Multiplied in:"
        " where LibTorch has no products for a precision, its float32 ones. On AMD's processors, mezzo's products are its own.")
    heads = ["", "bare products ÷ step", "step, ms", "bare products, ms", "attention at that rate, ms",
             "optimizer at copy speed, ms", "rest, ms", "GFLOP of products a step", "GFLOP/s of bare products",
             "step, ms: median (least to most)", "multiplied in"]
    profiles = [no_profile] if no_profile else [
        "Below, where the processor time goes: samples of `perf` in the middle of a run, by symbol. What LibTorch fuses or inlines"
        " goes where its outermost symbol does.", *sections]
    support.page(options, "roofline", "A training step against the machine's limit", about, support.table(heads, rows), *profiles)


if __name__ == "__main__":
    main()
