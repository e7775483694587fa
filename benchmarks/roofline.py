"""A training step's percent of the processor's measured peak, and the uses of the remaining time. Writes
benchmarks/results/roofline.md. Takes about 5 minutes on two processors.

`mezzo doctor` measures the peak: multiply-add instructions on registers alone.
"""
import json
import statistics
import sys
import tempfile
from pathlib import Path

import products
import profile_step
import support
import torch

MODELS = {"base": support.BASE, "minilm": support.MINILM}
BATCH = 32


def parameters(model):
    hidden, inner = model["hidden_size"], model["intermediate_size"]
    layer = 4 * (hidden * hidden + hidden) + 2 * hidden * inner + inner + hidden + 4 * hidden
    embeddings = (model["vocab_size"] + 512 + 2) * hidden + 2 * hidden
    return embeddings + model["num_hidden_layers"] * layer + hidden * hidden + hidden


def examine():
    """({precision: operations a second of the peak}, bytes a second that a copy reads and writes). Of a precision without a loop for
    its peak, the rate of a large product."""
    found = json.loads(support.run(support.PROGRAM, "doctor", "--json").stdout)
    return {one["precision"]: one["peak"] or one["operations_per_second"] for one in found["products"]}, found["copied_bytes_per_second"]


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
            "--limit", options.limit, "--precision", precision, "--batch-size", BATCH]


def measure(folder, model, precision, options, limits):
    """Steps and limits in turn. The clock changes, so the best of all runs of `mezzo doctor` counts."""
    steps = []
    for _ in range(options.rounds):
        steps += measured_steps(folder, model, precision, options)
        peaks, copied = examine()
        for name, rate in (*peaks.items(), ("copy", copied)):
            limits[name] = max(limits.get(name, 0), rate)
    return steps


def limit_row(title, steps, length, model, precision, limits):
    """The step against its limits: a row of the first table."""
    # Where products of a precision would run in plain loops, mezzo multiplies in float32.
    computed = "fp32" if products.is_emulated(precision) else precision
    peak = limits[computed]
    seconds = [step["seconds"] for step in steps]
    flops = statistics.mean(products.flops_of_step(model, step["tokens"], BATCH) for step in steps)
    # Forward has two products of L x L x H a text and layer, backward five with the one that it
    # repeats; the last layer has one query a text.
    attention = 14 * BATCH * length * model["hidden_size"] * (model["num_hidden_layers"] - 1)
    optimizer = parameters(model) * (28 + (2 if precision != "fp32" else 0)) / limits["copy"]
    a_step = statistics.mean(seconds)
    share = (flops + attention) / a_step / peak
    if share > 1:
        sys.exit(f"roofline.py: {title} reaches {share:.0%} of the measured peak, so other programs slowed `mezzo doctor`. Run it on an idle machine.")
    milliseconds = [1000 * value for value in (a_step, flops / peak, attention / peak, optimizer)]
    rest = milliseconds[0] - sum(milliseconds[1:])
    return [title, f"{100 * share:.0f} %", *(f"{value:.1f}" for value in milliseconds), f"{rest:.1f}", f"{(flops + attention) / 1e9:.3g}", f"{peak / 1e9:.0f}",
            support.spread([1000 * s for s in seconds], 0), computed]


def main():
    parser = support.parser(__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--precisions", nargs="*", default=["fp32", "bf16"], choices=products.DTYPES)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--limit", type=int, default=4000)
    parser.add_argument("--sample-seconds", type=float, default=30)
    options = parser.parse_args()
    models = {name: MODELS[name] for name in options.models}
    if options.quick:
        options.rounds, options.steps, options.warmup, options.sample_seconds, options.limit = 1, 4, 1, 3, 400
        models = {"tiny": support.TINY}

    measured, limits, sections = [], {}, []
    no_profile = profile_step.missing()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model_name, model in models.items():
            for precision in options.precisions:
                title = f"BERT {model['num_hidden_layers']} × {model['hidden_size']}, {precision}"
                print(title, file=sys.stderr, flush=True)
                steps = measure(folder, model, precision, options, limits)
                measured.append((title, steps, mean_square_length(folder, options), model, precision))
                if not no_profile:
                    places, milliseconds = profile_step.profile(folder, flags_of(folder, model, precision, options),
                                                                options.warmup, options.sample_seconds)
                    sections += [f"## {title}", *profile_step.tables(places, milliseconds, torch.get_num_threads())]
    rows = [limit_row(*each, limits) for each in measured]
    about = (
        f"Emotion data set, packed batches of {BATCH} texts, {options.rounds} × {options.steps} steps after {options.warmup} of"
        f" warm-up; {torch.get_num_threads()} threads.\n\n- Peak: `mezzo doctor`, multiply-add instructions on registers alone, all"
        " threads; the best of all runs.\n- Products: the products of forward and backward, with one row a text in the last layer, at the peak."
        "\n- Attention: 14 L² H operations a text and layer except the last, at the peak.\n- Optimizer: weights and two moments read and"
        " written, gradients read, a half-precision copy written if there is one, at the speed of a copy.\n- Rest: the step without"
        " these limits.\n- Multiplied in: float32 where LibTorch has no products for a precision.")
    heads = ["", "percent of the peak", "step, ms", "products at the peak, ms", "attention at the peak, ms",
             "optimizer at copy speed, ms", "rest, ms", "GFLOP a step", "peak, GFLOP/s", "step, ms: median (least to most)",
             "multiplied in"]
    profiles = [no_profile] if no_profile else [
        "Below is the use of processor time: samples of `perf` in the middle of a run, by symbol. What LibTorch fuses or inlines"
        " goes where its outermost symbol does.", *sections]
    support.page(options, "roofline", "A training step against the processor's peak", about, support.table(heads, rows), *profiles)


if __name__ == "__main__":
    main()
