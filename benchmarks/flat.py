"""Trains on ever more texts with mezzo, and writes benchmarks/results/flat.md: speed and memory should not depend on them."""
import statistics
import tempfile
from pathlib import Path

import support


def measure(count, folder, model, options):
    records = support.train(folder / "out", "--model-config", support.write_config(folder, model), "--vocab", options.vocab,
                            "--train", options.train, "--limit", count, "--precision", options.precision,
                            "--max-steps", options.warmup + options.steps)
    steps = [r for r in records if r["event"] == "step"][options.warmup :]
    seconds = sum(r["seconds"] for r in steps)
    end = next(r for r in records if r["event"] == "end")
    return dict(texts=sum(r["samples"] for r in steps) / seconds, tokens=sum(r["tokens"] for r in steps) / seconds,
                length=sum(r["tokens"] for r in steps) / sum(r["samples"] for r in steps), memory=end["peak_memory_bytes"] / 1e6)


def main():
    parser = support.parser(__doc__)
    parser.add_argument("--counts", type=int, nargs="*", default=[1000, 10000, 40000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--precision", default="fp32")
    options = parser.parse_args()
    model = support.MINILM
    if options.quick:
        options.counts, options.rounds, options.steps, model = [100, 1000], 1, 4, support.TINY

    runs = {count: [] for count in options.counts}
    with tempfile.TemporaryDirectory() as name:
        for _ in range(options.rounds):  # size by size, so that a slow minute hits all of them
            for count in options.counts:
                runs[count].append(measure(count, Path(name), model, options))
    first = {key: statistics.median(run[key] for run in runs[options.counts[0]]) for key in ("tokens", "memory")}
    rows = []
    for count, found in runs.items():
        column = {key: [run[key] for run in found] for key in found[0]}
        rows.append([f"{count:,}", support.spread(column["texts"], 1), support.spread(column["tokens"], 0),
                     f"{statistics.median(column['tokens']) / first['tokens']:.3f}", f"{column['length'][0]:.2f}",
                     support.spread(column["memory"], 0), f"{statistics.median(column['memory']) / first['memory']:.3f}"])
    about = (f"BERT {model['num_hidden_layers']} × {model['hidden_size']} in {options.precision}, packed batches of 32 texts of the"
             f" emotion data set. Each run measures {options.steps} steps after {options.warmup} of warm-up. Medians"
             f" (least to most) of {options.rounds} runs in turn. Samples differ in the lengths of their texts, so compare tokens a second.")
    support.page(options, "flat", "Speed and memory against the number of texts", about,
                 support.table(["training texts", "texts/s", "tokens/s", "of the first row", "tokens a text", "peak memory, MB",
                                "of the first row"], rows))


if __name__ == "__main__":
    main()
