"""Times of an older mezzo beside today's: training steps, prediction in int8, one text. Writes benchmarks/results/regression.md.

    python benchmarks/regression.py                             # the newest tag
    python benchmarks/regression.py REVISION                    # builds REVISION below build/old, which takes half an hour
    python benchmarks/regression.py REVISION --old DIR/mezzo    # REVISION is built already

The measurements take about 8 minutes on two processors. Both programs get flags that the first version has.
"""
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import support
import training
from training import BATCH, Workload

WORKLOADS = [Workload("base-bf16", support.BASE, "bf16"), Workload("base-fp32", support.BASE, "fp32"), Workload("minilm-bf16", support.MINILM, "bf16"),
             Workload("minilm-fp32", support.MINILM, "fp32"), Workload("int8", support.MINILM, "int8", "predict"), Workload("one", support.MINILM, "fp32", "one")]
TITLES = {"train": "a training step", "predict": f"prediction of {BATCH} texts", "one": "`mezzo predict --text`, from start to end"}


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=support.ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def built(commit):
    """The program of a commit, built in a work tree below build/old against today's LibTorch."""
    tree = support.ROOT / "build/old" / commit
    if not tree.exists() and git("worktree", "add", "--force", "--detach", tree, commit) is None:
        sys.exit(f"regression.py: git cannot check out {commit} in {tree}")
    program = tree / "build/release/bin/mezzo"
    if not program.exists():
        print(f"regression.py: building {commit} in {tree}", file=sys.stderr, flush=True)
        for command in ["--preset", "release", "-DMEZZO_BUILD_TESTS=OFF", f"-DMEZZO_VENV={sys.prefix}"], ["--build", "build/release"]:
            if subprocess.run(["cmake", *command], cwd=tree, stdout=sys.stderr).returncode:
                sys.exit(f"regression.py: {commit} does not build. Build it yourself, and pass its program with --old")
    return program


def milliseconds(program, workload, folder, options):
    support.PROGRAM = program  # the functions of training.py start it
    if workload.task == "one":
        model = support.fresh_model(folder, workload.model, options.vocab)
        begin = time.perf_counter()
        support.run(program, "predict", "--model", model, "--text", "这部电影很好看", "--precision", workload.precision)
        return 1000 * (time.perf_counter() - begin)
    measure = training.train_with_mezzo if workload.task == "train" else training.predict_with_mezzo
    return 1000 * BATCH / measure(workload, folder, options)["samples_per_second"]


def flags():
    parser = support.parser(__doc__.splitlines()[0])
    parser.add_argument("revision", nargs="?", help="of the older program; the newest tag if left out")
    parser.add_argument("--old", type=Path, metavar="PROGRAM", help="REVISION's mezzo, which is built already")
    parser.add_argument("--rounds", type=int, default=5)
    parser.set_defaults(mezzo_steps=20, warmup=4, texts=1000, limit=2000, threads=0)  # of training.py
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.mezzo_steps, options.warmup, options.texts, options.limit = 2, 4, 1, 200, 400
    options.revision = options.revision or git("describe", "--tags", "--abbrev=0")
    if not options.revision:
        sys.exit("regression.py: this repository has no tag. Name a REVISION to compare with")
    options.commit = git("rev-parse", "--short=8", "--verify", f"{options.revision}^{{commit}}")
    if not options.commit:
        sys.exit(f"regression.py: {options.revision} is no revision of this repository")
    if options.old and not os.access(options.old, os.X_OK):
        sys.exit(f"regression.py: --old: {options.old} is no program")
    return options


def main():
    options = flags()
    programs = [options.old.resolve() if options.old else built(options.commit), support.PROGRAM]
    options.tokens_of_a_text = training.tokens_of_a_text(options)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for workload in WORKLOADS:
            if options.quick:
                workload.model = support.TINY
            old, new = taken = [], []
            for round_ in range(options.rounds):
                for which in (0, 1) if round_ % 2 else (1, 0):  # who is first changes
                    taken[which].append(milliseconds(programs[which], workload, Path(name), options))
            rows.append([TITLES[workload.task], support.name_of(workload.model), workload.precision, support.spread(old, 1), support.spread(new, 1),
                         f"{statistics.median(old) / statistics.median(new):.2f}"])
            print(*rows[-1], sep=", ", file=sys.stderr, flush=True)
    about = (f"Milliseconds, medians (least to most) of {options.rounds} rounds in turn. Fresh weights. A training step has {BATCH} texts of the emotion data set,"
             f" dropout 0.1 and AdamW; a round is the mean of {options.mezzo_steps} steps after {options.warmup}. Prediction labels {options.texts} texts, tokenizing"
             " included, start and loading not. The ratio is the old time over the new time: above 1, the new program is faster.")
    support.page(options, "regression", f"mezzo {options.commit} and today's mezzo", about,
                 support.table(["task", "model", "precision", f"{options.commit}, ms", "today, ms", "ratio"], rows))


if __name__ == "__main__":
    main()
