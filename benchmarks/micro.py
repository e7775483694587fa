"""Runs the programs of benchmarks/micro, one kernel or mechanism each, and writes a page for each in benchmarks/results.

Each prints its tables itself. Build them first: cmake --preset release -DMEZZO_BUILD_BENCHMARKS=ON && cmake --build --preset release
"""
import sys

import support

PROGRAMS = support.PROGRAM.parent
APART = {"autocast_overhead"}  # has a script that runs Python beside it
QUICK = {"bert_blocks", "finite_tracer", "matrix_products", "optimizer_step", "scaler_overhead"}
PEERS = {"optimizer_step": "optimizer_step.py"}  # prints more rows for the table

PAGES = {
    "bert_blocks": ("The fused parts of a BERT layer",
                    "Forward and backward over the rows of 32 texts of 8 to 31 tokens. ATen: the same of LibTorch's operations, with the"
                    " same dropout masks. LibTorch's products: the block's matrix products without the other operations."),
    "finite_tracer": ("What FiniteTracer costs",
                      "One thread. Forward and backward of eight layers of 512 units, batches of 256, float32."),
    "half_compute": ("Half precision on a CPU without instructions for it",
                     "One thread, milliseconds. With `CpuHalfCompute` half precision takes what float32 takes, conversions aside:"
                     " that is the bound. How much faster than LibTorch that is depends on which of LibTorch's fallbacks an op"
                     " meets: a plain loop, or one that is vectorised in part."),
    "matrix_products": ("Matrix products of a BERT layer",
                        "640 rows. mezzo computes independent products together, LibTorch one after the other. LibTorch uses"
                        " `CpuHalfCompute` for half precision."),
    "scaler_overhead": ("What a GradScaler costs",
                        "A training step in fp16 with a GradScaler and without, in turn, on a tiny BERT; on a GPU, `gpu.py` runs it on"
                        " MiniLM and BERT-base."),
    "optimizer_step": ("Optimizer steps",
                       "First, updates alone. Then a whole step on BERT-base: non-finite check, unscale, clipping by the norm,"
                       " AdamW, and a bfloat16 copy of the weights."),
}


def main():
    parser = support.parser(__doc__)
    parser.add_argument("names", nargs="*", help="programs without bench_; all when left out")
    options = parser.parse_args()
    built = sorted(path.name.removeprefix("bench_") for path in PROGRAMS.glob("bench_*"))
    names = options.names or [name for name in built if name not in APART and (name in QUICK or not options.quick)]
    if not names or set(names) - set(built):
        sys.exit(f"micro: {', '.join(set(names) - set(built)) or 'nothing'} is not built in {PROGRAMS}; build with"
                 " -DMEZZO_BUILD_BENCHMARKS=ON")
    for name in names:
        output = support.run(PROGRAMS / f"bench_{name}").stdout.strip()
        made_by = f"build/release/bin/bench_{name}"
        if name in PEERS:
            output += "\n" + support.run(sys.executable, support.PEERS / PEERS[name]).stdout.strip()
            made_by += f"; python benchmarks/peers/{PEERS[name]}"
        title, about = PAGES.get(name, (name.replace("_", " ").capitalize(), ""))
        support.page(options, name, title, about, output, made_by=made_by)


if __name__ == "__main__":
    main()
