"""`mezzo train` on several ranks, under every launcher, against one process with the same texts in a step."""
import hashlib
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from families import FAMILIES
from ranks import environment, free_port
from safetensors.torch import load_file
from support import MINILM, PROGRAM, last_counts, mezzo, random_bert, records
from transformers import AutoTokenizer

TEXTS, STEPS, LIMIT = 300, 20, 120  # the last: seconds after which a hang is one
WORDS = "the of war market moon river code proof queen bread engine cat light vote song price stone dream law rain".split()


def write_texts(path, count, seed):
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        label = rng.randrange(3)
        words = rng.choices(WORDS, weights=[5 if i % 3 == label else 1 for i in range(len(WORDS))], k=rng.randint(1, 20))
        rows.append((" ".join(words), label))
    path.write_text(json.dumps(rows))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_texts(folder / "train.json", TEXTS, 0)
    write_texts(folder / "dev.json", 101, 1)
    random_bert(folder / "model", labels=3, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                intermediate_size=64)
    AutoTokenizer.from_pretrained(MINILM).save_pretrained(folder / "model")
    return folder


def flags(data, output, *more):
    return list(map(str, [
        "train", "--recipe", "reference", "--model", data / "model", "--train", data / "train.json", "--dev", data / "dev.json", "--output", output,
        "--precision", "fp32", "--dropout", 0, "--learning-rate", 1e-3, "--max-grad-norm", 1, "--eval-every", 10,
        "--epochs", 2, "--threads", 1, *more]))


def launch(nproc, arguments, *options, check=True, **popen):
    command = [PROGRAM, "launch", "--nproc", str(nproc), *map(str, options), "--", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, **popen)
    if check:
        assert done.returncode == 0, done.stderr
    return done


def weights(output):
    return load_file(Path(output) / "model.safetensors")


def difference(a, b):
    """The largest difference between two runs' losses, and between their weights."""
    losses = [[record["loss"] for record in records(output, "step")] for output in (a, b)]
    assert len(losses[0]) == len(losses[1]) == STEPS
    mine, theirs = weights(a), weights(b)
    return (max(abs(x - y) for x, y in zip(*losses)), max((mine[name] - theirs[name]).abs().max().item() for name in mine))


@pytest.fixture(scope="module")
def one(data, tmp_path_factory):
    """One process, 32 texts a step; an epoch's last has 12."""
    output = tmp_path_factory.mktemp("one") / "out"
    mezzo(*flags(data, output, "--batch-size", 32))
    return output


@pytest.fixture(scope="module")
def two(data, tmp_path_factory):
    """Two ranks, 32 texts a step, and their output."""
    output = tmp_path_factory.mktemp("two") / "out"
    return output, launch(2, flags(data, output, "--batch-size", 16)).stderr


@pytest.mark.parametrize("nproc, more", [
    (2, None),
    (2, ["--batch-size", 16, "--all-reduce", "backend"]),
    (4, ["--batch-size", 8]),
    (2, ["--batch-size", 8, "--grad-accumulation", 2]),
    (2, ["--batch-size", 16, "--balance", "tokens"]),
    (2, ["--batch-size", 16, "--zero-stage", 1]),
    (2, ["--batch-size", 8, "--grad-accumulation", 2, "--zero-stage", 1, "--balance", "tokens"]),
], ids=lambda value: "-".join(map(str, value)) if isinstance(value, list) else str(value))
def test_ranks_follow_one_process(data, one, two, tmp_path, nproc, more):
    output = two[0]
    if more is not None:
        output = tmp_path / "out"
        launch(nproc, flags(data, output, *more))
    losses, tensors = difference(output, one)
    # Sums of 32 texts' gradients in another order, and what twenty steps of Adam make of it.
    assert losses < 1e-5 and tensors < 1e-4, (losses, tensors)
    for mine, theirs in zip(records(output, "step"), records(one, "step"), strict=True):
        assert mine["samples"] == theirs["samples"] and mine["tokens"] == theirs["tokens"]
    for mine, theirs in zip(records(output, "eval"), records(one, "eval"), strict=True):
        # Each text once: a text more, or twice, of 101 would change the accuracy by more.
        assert mine["accuracy"] == pytest.approx(theirs["accuracy"], abs=1e-9) and mine["loss"] == pytest.approx(theirs["loss"], abs=1e-5)


@pytest.mark.parametrize("family", [FAMILIES[name] for name in ("roberta", "distilbert", "electra", "deberta-v3", "modernbert")],
                         ids=lambda family: family.model_type)
def test_ranks_of_every_family_follow_one_process(data, family, tmp_path):
    family.model(tmp_path / "model", vocab_size=30522, pad_token_id=0, num_hidden_layers=2)
    AutoTokenizer.from_pretrained(MINILM).save_pretrained(tmp_path / "model")
    more = ["--model", tmp_path / "model", "--max-length", 64, "--max-steps", 6]
    mezzo(*flags(data, tmp_path / "one", "--batch-size", 32, *more))
    launch(2, flags(data, tmp_path / "two", "--batch-size", 16, "--zero-stage", 1, *more))
    losses = [[record["loss"] for record in records(tmp_path / name, "step")] for name in ("one", "two")]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5) and len(losses[0]) == 6
    mine, theirs, start = (weights(tmp_path / name) for name in ("two", "one", "model"))
    assert mine.keys() == theirs.keys() == start.keys() and all((mine[name] != start[name]).any() for name in mine if "weight" in name)
    # If a gradient is rounding noise, such as a key bias's, Adam may move a weight either way.
    for name in mine:
        assert (mine[name] - theirs[name]).norm() < 1e-3 * theirs[name].norm() + 1e-3, name


@pytest.mark.parametrize("compression, bound", [("fp16", 2**-11), ("bf16", 2**-8)])
def test_compressed_gradients_come_close(data, one, tmp_path, compression, bound):
    launch(2, flags(data, tmp_path / "out", "--batch-size", 16, "--gradient-compression", compression))
    losses, _ = difference(tmp_path / "out", one)
    # Each gradient is rounded twice a step, by `bound` at most; Adam keeps its sign,
    # which is most of its update.
    assert 0 < losses < 20 * bound, losses


def test_half_weights_on_ranks_follow_those_of_one_process(data, tmp_path):
    more = ["--precision", "bf16", "--master-weights"]
    mezzo(*flags(data, tmp_path / "one", "--batch-size", 32, *more))
    for name, extra in ("ddp", []), ("zero", ["--zero-stage", 1]):
        launch(2, flags(data, tmp_path / name, "--batch-size", 16, *more, *extra))
        losses, _ = difference(tmp_path / name, tmp_path / "one")
        assert losses < 8 * 2**-8, "a few roundings of a logit near 1"
    assert digest(tmp_path / "zero") == digest(tmp_path / "ddp"), "who updates a weight does not matter"


def test_overflows_are_skipped_by_all_ranks_alike(data, tmp_path):
    """One process sums the gradients of all texts in float16, and a rank sums the gradients of its texts. So they
    overflow at other scales. But all ranks act in the same way."""
    scaling = ["--precision", "fp16", "--loss-scale", f"dynamic:{2**24}", "--growth-interval", 5, "--batch-size", 16]
    runs = {}
    for name, extra in ("ddp", []), ("zero", ["--zero-stage", 1]):
        launch(2, flags(data, tmp_path / name, *scaling, *extra))
        runs[name] = [(r["skipped"], r["loss_scale"], r["loss"]) for r in records(tmp_path / name, "step")]
    assert runs["ddp"] == runs["zero"] and digest(tmp_path / "ddp") == digest(tmp_path / "zero")
    assert {skipped for skipped, _, _ in runs["ddp"]} == {True, False}
    for (skipped, scale, _), (_, after, _) in zip(runs["ddp"], runs["ddp"][1:]):
        assert after == scale / 2 if skipped else after in (scale, 2 * scale)


def digest(output):
    return hashlib.sha256((Path(output) / "model.safetensors").read_bytes()).hexdigest()


def without_ranks():
    return {name: value for name, value in os.environ.items() if name not in environment(0, 1, 1)}


def test_torchrun_mpirun_and_mezzo_launch_give_the_same_run(data, two, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2", "--master-port",
                str(free_port()), PROGRAM]
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", "-x", f"MASTER_PORT={free_port()}", PROGRAM]
    output, stderr = two
    assert "on 2 ranks" in stderr
    for name, command in ("torchrun", torchrun), ("mpirun", mpirun):
        arguments = flags(data, tmp_path / name, "--batch-size", 16)
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=LIMIT, env=without_ranks())
        assert done.returncode == 0, done.stderr
        assert "on 2 ranks" in done.stderr
        assert digest(tmp_path / name) == digest(output), name


LONGER = ["--batch-size", 8, "--dropout", 0.1, "--epochs", 3]  # 57 steps: enough to break into


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """The digest of an unbroken run."""
    output = tmp_path_factory.mktemp("whole") / "out"
    launch(2, flags(data, output, *LONGER))
    return digest(output)


@pytest.mark.parametrize("zero_stage", [0, 1])
def test_a_stopped_run_resumes_to_the_bit(data, whole, tmp_path, zero_stage):
    """As an unbroken run without ZeRO ends: who updates a weight does not matter."""
    arguments = flags(data, tmp_path / "cut", *LONGER, "--zero-stage", zero_stage)
    command = [PROGRAM, "launch", "--nproc", "2", "--", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    wait_for_step(tmp_path / "cut", 5)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=LIMIT)
    assert process.returncode == 143, stderr
    assert re.search(r"stopped after step \d+; go on with --resume auto", stderr), stderr
    launch(2, [*arguments, "--resume", "auto"])
    assert digest(tmp_path / "cut") == whole


def wait_for_step(output, step):
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        if (output / "metrics.jsonl").exists() and len(records(output, "step")) >= step:
            return
        time.sleep(0.02)
    pytest.fail("no progress")


def rank_processes(output):
    """The ranks' process ids, by rank, of the run that writes to `output`."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode().split("\0")
            variables = dict(v.split("=", 1) for v in (folder / "environ").read_bytes().decode().split("\0") if "=" in v)
        except (OSError, UnicodeDecodeError):
            continue
        if str(output) in command and "launch" not in command and "RANK" in variables:
            found[int(variables["RANK"])] = int(folder.name)
    return found


def test_a_killed_rank_is_named_and_the_run_restarts_to_the_same_end(data, whole, tmp_path):
    command = [PROGRAM, "launch", "--nproc", "2", "--max-restarts", "1", "--",
               *flags(data, tmp_path / "cut", *LONGER, "--save-every", 5)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    wait_for_step(tmp_path / "cut", 7)
    os.kill(rank_processes(tmp_path / "cut")[1], signal.SIGKILL)
    _, stderr = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, stderr
    assert re.search(r"rank 1 \(pid \d+\) was killed by signal 9", stderr), stderr
    assert "resumed after step" in stderr
    assert digest(tmp_path / "cut") == whole


class Started:
    """`mezzo train` on two ranks without a launcher that would end the others."""

    def __init__(self, commands, **variables):
        port = free_port()
        self.processes = [
            subprocess.Popen([PROGRAM, *map(str, command)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
                             env={**without_ranks(), **environment(rank, len(commands), port), **variables})
            for rank, command in enumerate(commands)]

    def ends(self):
        """[(exit status, last line of stderr)]"""
        ends = []
        for process in self.processes:
            try:
                _, stderr = process.communicate(timeout=LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            ends.append((process.returncode, (stderr.splitlines() or [""])[-1]))
        return ends


def test_ranks_that_cannot_share_memory_say_so(data, tmp_path):
    without = {**os.environ, "LD_PRELOAD": os.environ["MEZZO_WRITE_FAULTS"], "MEZZO_NO_MEMFD": ""}
    for more, warnings in ([], 1), (["--all-reduce", "backend"], 0):
        done = launch(2, flags(data, tmp_path / str(warnings), "--max-steps", 2, *more), env=without)
        assert done.stderr.count("the ranks are on one host but cannot share memory") == warnings, done.stderr


@pytest.fixture(scope="module")
def survivors(data, tmp_path_factory):
    """{(lost, how, all_reduce): (exit status, stderr) of the rank that was not lost}. While a survivor waits for the one
    that was, the next two start."""
    folder = tmp_path_factory.mktemp("lost")
    cases = list(itertools.product([0, 1], [signal.SIGSTOP, signal.SIGKILL], ["auto", "backend"]))
    started = {}
    try:
        for i, (lost, how, all_reduce) in enumerate(cases):
            arguments = flags(data, folder / str(i), "--batch-size", 8, "--epochs", 100, "--timeout", 5, "--all-reduce", all_reduce)
            run = started[cases[i]] = Started([arguments, arguments])
            wait_for_step(folder / str(i), 3)
            os.kill(run.processes[lost].pid, how)
        ends = {case: run.processes[1 - case[0]].communicate(timeout=LIMIT) for case, run in started.items()}
        return {case: (started[case].processes[1 - case[0]].returncode, stderr) for case, (_, stderr) in ends.items()}
    finally:
        for run in started.values():
            for process in run.processes:
                process.kill()
                process.communicate()


@pytest.mark.parametrize("all_reduce", ["auto", "backend"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_rank_lost_in_mid_epoch_is_named(survivors, how, lost, all_reduce):
    status, stderr = survivors[lost, how, all_reduce]
    message = stderr.splitlines()[-1]
    assert status == 1
    assert ("lost rank 1 (process" if lost == 1 else "kept by rank 0") in message and "stopped" in message, message


def test_a_rank_that_does_not_come_is_named(data, tmp_path):
    arguments = flags(data, tmp_path / "out", "--batch-size", 8, "--timeout", 1)
    started = Started([arguments, ["--version"]])
    (status, message), _ = started.ends()
    assert status == 1 and "rank 1 of 2 did not come within 1 s" in message
    assert not (tmp_path / "out").exists()


def test_ranks_that_differ_are_found_at_start(data, tmp_path):
    write_texts(tmp_path / "other.json", TEXTS, 5)
    base = flags(data, tmp_path / "out", "--batch-size", 8)
    for other, message in [(["--seed", 8], "seed differs between ranks: '123' on rank 0, '8' on rank 1"),
                           (["--train", tmp_path / "other.json"], "training data as tokens differs between ranks"),
                           (["--learning-rate", 1e-4], "learning-rate differs between ranks: '0.001' on rank 0, '0.0001' on rank 1")]:
        for status, last in Started([base, last_counts([*base, *other])]).ends():
            assert status == 1 and message in last, last
    (tmp_path / "gloomy.json").write_text("[")  # no word of it makes this an error of Gloo's
    (status, first), (_, second) = Started([base, last_counts([*base, "--train", tmp_path / "gloomy.json"])]).ends()
    assert status == 1 and "rank 1 failed: " in first and "gloomy.json" in first and "gloomy.json" in second
    assert not (tmp_path / "out").exists(), "nothing written"


def test_ranks_agree_on_the_checkpoint_before_they_act_on_it(data, tmp_path):
    # The other rank looks into a folder that has none, as on a host that
    # does not see the first one's.
    auto = flags(data, tmp_path / "seen", "--batch-size", "auto", "--max-steps", 2)
    mezzo(*auto, "--pause-at", 0.5)
    sizes = [*auto, "--batch-size", 8]
    for commands, message in [
        ([[*auto, "--resume", "auto"], [*auto, "--resume", "auto", "--output", tmp_path / "unseen"]],
         "the checkpoint to resume from, which all hosts must see, differs between ranks: 'step 1 of run "),
        ([[*sizes, "--output", tmp_path / "new", "--test", data / "dev.json"], [*sizes, "--output", tmp_path / "new"]],
         "test data as tokens differs between ranks: '"),
        ([[*auto, "--output", tmp_path / "new"], [*sizes, "--output", tmp_path / "new"]],
         "batch-size differs between ranks: 'auto' on rank 0, '8' on rank 1"),
        ([[*sizes, "--output", tmp_path / "new"], [*sizes, "--output", tmp_path / "new", "--diagnose"]],
         "diagnose differs between ranks: 'false' on rank 0, 'true' on rank 1"),
    ]:
        for status, last in Started([[*command, "--timeout", 20] for command in commands]).ends():
            assert status == 1 and message in last, last
    assert not (tmp_path / "new").exists()


def test_eval_and_predict_share_the_texts(data, one):
    for arguments in (["eval", "--model", one, "--data", data / "dev.json", "--json"],
                      ["predict", "--model", one, "--data", data / "dev.json", "--logits"]):
        alone = mezzo(*arguments, "--precision", "fp32").stdout
        shared = launch(3, [*map(str, arguments), "--precision", "fp32"]).stdout
        assert "".join(line.removeprefix("[rank 0] ") for line in shared.splitlines(True)) == alone
    done = launch(2, ["predict", "--model", str(one)], check=False, input="a text\n")
    assert done.returncode == 2 and "pass them as --data FILE" in done.stderr
