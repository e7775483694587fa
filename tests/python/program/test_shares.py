"""Batches are divided into shares, and any number of ranks works on them. Texts, dropout and loss stay the same. Results are
bit-identical if gradients are added up in the same order. Runs go on with fewer ranks, or more, after some were lost."""
import itertools
import os
import re
import signal
import subprocess
import time

import pytest
from support import PROGRAM, records
from tiny_runs import flags, model_of, run, trained, write_data

STEPS = 24
KINDS = {"fp32": [], "bf16": ["--precision", "bf16"], "fp16": ["--precision", "fp16", "--loss-scale", "dynamic:1024", "--growth-interval", 5],
         "masters": ["--precision", "bf16", "--master-weights"], "zero": ["--zero-stage", 1], "tokens": ["--balance", "tokens"],
         "accumulated": ["--grad-accumulation", 2]}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


def command(ranks, data, output, *more):
    launch = ["launch", "--nproc", ranks, "--"] if ranks > 1 else []
    given = flags(data, output, "--dropout", 0.2, "--schedule", "linear", "--max-steps", STEPS, "--batch-size", 3, *more)
    given[given.index("--save-every") + 1] = "4"
    return [*launch, *given]


def curve(output):
    return [(r["step"], r["samples"], r["tokens"], r["loss"]) for r in records(output, "step")]


@pytest.fixture(scope="module")
def of_three(data, tmp_path_factory):
    """By kind, a run of three ranks."""
    folder = tmp_path_factory.mktemp("three")
    for name, kind in KINDS.items():
        trained(command(3, data, folder / name, *kind))
    return {name: folder / name for name in KINDS}


# Two ranks of three: the first adds up two shares, as the sum in the order of ranks does. One rank does the same, with two
# exceptions. Accumulated batches are added up by themselves, (a1 + a2) + (b1 + b2). Masters take the shares in float32, not their
# sum in half precision.
@pytest.mark.parametrize("kind, ranks", itertools.product(KINDS, [1, 2, 4]))
def test_as_many_shares_on_other_ranks_are_the_same_run(kind, ranks, data, of_three, tmp_path):
    out = tmp_path / "out"
    done = trained(command(ranks, data, out, "--shares", 3, *KINDS[kind]))
    assert f"3 shares of each batch on {ranks} rank" in done.stderr
    whole = of_three[kind]
    assert [row[:3] for row in curve(out)] == [row[:3] for row in curve(whole)], "the same texts at each step"
    if ranks == 4 or (kind not in ("masters", "accumulated")):
        assert curve(out) == curve(whole) and model_of(out) == model_of(whole)
    else:
        # Losses near 1. In bf16, rounding changes a weight's half by 2^-9 of it, and also a gradient before the sum.
        tolerance = 2**-8 if kind == "masters" else 1e-6
        assert max(abs(a[3] - b[3]) for a, b in zip(curve(out), curve(whole))) < tolerance


def test_fewer_shares_are_another_run(data, of_three, tmp_path):
    trained(command(2, data, tmp_path / "out"))
    assert curve(tmp_path / "out")[0][1] == 6 and curve(of_three["fp32"])[0][1] == 9


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_checkpoint_of_three_ranks_goes_on_with_others(ranks, data, of_three, tmp_path):
    out = tmp_path / "out"
    trained(command(3, data, out, "--pause-at", 0.4))
    done = trained(command(ranks, data, out, "--resume", "auto"))
    assert f"3 shares of each batch on {ranks} rank" in done.stderr and re.search(r"resumed after step \d+", done.stderr)
    assert curve(out) == curve(of_three["fp32"]) and model_of(out) == model_of(of_three["fp32"])
    other = run(command(ranks, data, tmp_path / "other", "--resume", out / "checkpoints/step-24", "--shares", 2))
    assert other.returncode == 1 and "of another run: shares was '3', is now '2'" in other.stderr


def ranks_of(launcher):
    """Process ids of its ranks by their number."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    variables = dict(part.split(b"=", 1) for part in file.read().split(b"\0") if b"=" in part)
                with open(f"/proc/{entry}/stat") as file:
                    parent = int(file.read().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            if parent == launcher and b"LOCAL_RANK" in variables:
                found[int(variables[b"LOCAL_RANK"])] = int(entry)
    return found


def wait_for(condition):
    for _ in range(6000):
        if found := condition():
            return found
        time.sleep(0.02)
    pytest.fail("it did not come to that")


@pytest.mark.parametrize("saves", [True, False], ids=["from a checkpoint", "from the beginning"])
def test_a_lost_rank_is_done_without(saves, data, tmp_path):
    steps = ["--max-steps", 300, "--eval-every", 0, *([] if saves else ["--save-every", 0, "--save-minutes", 0])]
    whole, out = tmp_path / "whole", tmp_path / "out"
    trained(command(3, data, whole, *steps))
    arguments = command(3, data, out, *steps)
    arguments[arguments.index("--"):arguments.index("--")] = ["--min-nproc", 1]
    process = subprocess.Popen([PROGRAM, *map(str, arguments)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    for left in (3, 2):
        wait_for(lambda: (out / "metrics.jsonl").exists() and len(ranks_of(process.pid)) == left and len(records(out, "step")) > 30 * (4 - left))
        os.kill(ranks_of(process.pid)[left - 1], signal.SIGKILL)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert "2 of 3 ranks start again, restart 1 of 2" in stderr and "1 of 3 ranks start again, restart 2 of 2" in stderr, stderr
    assert curve(out) == curve(whole) and model_of(out) == model_of(whole), "three shares, whoever has them"


@pytest.mark.parametrize("of_old", [["--pause-at", 0.5], [], ["--seed", 9]], ids=["paused", "finished", "another"])
def test_a_rank_lost_before_an_old_run_is_replaced(of_old, data, of_three, tmp_path):
    """The start after it replaces that run, and does not go on with it."""
    out = tmp_path / "out"
    trained(command(2, data, out, *of_old))
    arguments = command(3, data, out, "--overwrite")
    arguments[arguments.index("--"):arguments.index("--")] = ["--min-nproc", 2]
    process = subprocess.Popen([PROGRAM, *map(str, arguments)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    wait_for(lambda: 2 in ranks_of(process.pid))
    os.kill(ranks_of(process.pid)[2], signal.SIGKILL)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0 and "2 of 3 ranks start again" in stderr, stderr
    assert curve(out) == curve(of_three["fp32"]) and model_of(out) == model_of(of_three["fp32"])


def test_a_run_that_is_replaced_decides_no_shares(data, tmp_path):
    trained(command(3, data, tmp_path / "out", "--save-every", 0))
    done = trained(command(1, data, tmp_path / "out", "--save-every", 0, "--resume", "auto", "--overwrite"))
    assert "shares of each batch" not in done.stderr and f"{STEPS} steps of 3 texts" in done.stderr


@pytest.mark.parametrize("given, message", [
    (["--nproc", 2, "--min-nproc", 3, "--", "train"], "--min-nproc is 3, expected 0 to 2, nproc"),
    (["--nproc", 2, "--min-nproc=-1", "--", "train"], "--min-nproc is -1, expected 0 to 2"),
    (["--nproc", 2, "--min-nproc", 1, "--max-restarts", 0, "--", "train"], "--max-restarts is 0, expected 1 or more: only a restart can have fewer than 2 ranks"),
    (["--nproc", 2, "--min-nproc", 1, "--", "predict"], "--min-nproc is for mezzo train"),
    (["--nproc", 2, "--min-nproc", 1, "--nnodes", 2, "--master", "localhost:1", "--", "train"], "--min-nproc is 1, expected 0 for several nodes"),
])
def test_what_cannot_be_meant(given, message):
    done = run(["launch", *given])
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_shares_out_of_range(data, tmp_path):
    done = run(command(1, data, tmp_path / "out", "--shares", -1))
    assert done.returncode == 2 and "--shares is -1, expected at least 0" in done.stderr


def test_a_rank_lost_behind_the_end_leaves_nothing_to_do(data, tmp_path):
    out = tmp_path / "out"
    # As `mezzo launch` starts mezzo train again; rank 1 of the first start is lost once that has ended.
    script = f"""test $TORCHELASTIC_RESTART_COUNT = 0 || set -- "$@" --restarted 2
        "{PROGRAM}" "$@" || exit
        test $RANK$TORCHELASTIC_RESTART_COUNT != 10 || kill -9 $$"""
    done = subprocess.run([os.environ["MEZZO_LAUNCH_PROGRAM"], "nproc=2", "max_restarts=1", "--", "sh", "-c", script, "sh", *flags(data, out)],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "restart" in done.stderr and "already finished after 6 steps" in done.stderr
    trained(flags(data, tmp_path / "whole", "--shares", 2))
    assert model_of(out) == model_of(tmp_path / "whole")
