"""Events that end `mezzo train`, and others that do not: signals in set-up and in training, readers that go away, a stderr
that cannot be written."""
import errno
import json
import os
import signal
import subprocess
import time

import pytest
from support import MINILM, PROGRAM, last_counts, mezzo, random_bert, records

LIMIT = 120  # seconds after which a hang is one
SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    random_bert(folder, vocab_size=30522, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    rows = [{"text": f"text {i}", "label": str(i % 2)} for i in range(60)]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return folder


def train(small, output, *more):
    return list(map(str, ["train", "--recipe", "reference", "--model-config", small / "config.json", "--vocab", MINILM / "vocab.txt",
                          "--train", small / "train.jsonl", "--output", output, "--max-steps", 20, "--batch-size", 4,
                          "--eval-every", 5, "--precision", "fp32", "--threads", 1, *more]))


def start(arguments, **more):
    return subprocess.Popen([PROGRAM, *map(str, arguments)], **{"stderr": subprocess.PIPE, "text": True, **more})


def end(process):
    """(exit status, text on stderr)"""
    try:
        _, stderr = process.communicate(timeout=LIMIT)
        return process.returncode, stderr
    finally:
        process.kill()


def wait_for_steps(output, count):
    deadline = time.monotonic() + LIMIT
    while not (output / "metrics.jsonl").exists() or len(records(output, "step")) < count:
        assert time.monotonic() < deadline, "no progress"
        time.sleep(0.02)


def open_for_reader(path, process):
    """A descriptor that writes to the pipe, once the program reads from it."""
    deadline = time.monotonic() + LIMIT
    while True:
        try:
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"{path} is not read: {process.communicate()[1]}")
        time.sleep(0.02)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("sent", SIGNALS, ids=lambda s: s.name)
def test_a_signal_ends_set_up_at_once_and_nothing_is_written(small, tmp_path, sent, ranks):
    # Reading from a pipe that nobody fills lasts as long as the test wants.
    texts = [tmp_path / f"{rank}.jsonl" for rank in range(ranks)]
    for path in texts:
        os.mkfifo(path)
    arguments = train(small, tmp_path / "out")
    if ranks == 1:
        process = start(last_counts([*arguments, "--train", texts[0]]))
    else:
        at = arguments.index("--train")
        del arguments[at:at + 2]
        script = f'exec "{PROGRAM}" "$@" --train {tmp_path}/$RANK.jsonl'
        process = subprocess.Popen([os.environ["MEZZO_LAUNCH_PROGRAM"], f"nproc={ranks}", "grace_seconds=1000", "--", "sh", "-c", script,
                                    "sh", *arguments], stderr=subprocess.PIPE, text=True)
    pipes = [open_for_reader(path, process) for path in texts]
    process.send_signal(sent)
    status, stderr = end(process)
    assert status == 128 + sent, stderr
    assert not (tmp_path / "out").exists()
    for pipe in pipes:
        os.close(pipe)


@pytest.mark.parametrize("sent", SIGNALS, ids=lambda s: s.name)
def test_a_signal_in_training_saves_a_checkpoint(small, tmp_path, sent):
    process = start(train(small, tmp_path / "out", "--max-steps", 1000000))
    wait_for_steps(tmp_path / "out", 3)
    process.send_signal(sent)
    status, stderr = end(process)
    assert status == 128 + sent, stderr
    step = records(tmp_path / "out", "step")[-1]["step"]
    assert f"stopped after step {step}; go on with --resume auto\n" in stderr
    assert (tmp_path / f"out/checkpoints/step-{step}/manifest.json").exists()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_terminal_that_is_closed_sends_sighup_twice(small, tmp_path, ranks):
    arguments = train(small, tmp_path / "out", "--max-steps", 1000000)
    process = start(arguments if ranks == 1 else ["launch", "--nproc", ranks, "--", *arguments])
    wait_for_steps(tmp_path / "out", 3)
    for _ in range(2):  # by the shell, and by the kernel when the shell ends
        process.send_signal(signal.SIGHUP)
        time.sleep(0.001)
    status, stderr = end(process)
    assert status == 128 + signal.SIGHUP, stderr
    step = records(tmp_path / "out", "step")[-1]["step"]
    assert (tmp_path / f"out/checkpoints/step-{step}/manifest.json").exists()
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "stopped"


def test_a_run_under_nohup_does_not_heed_the_end_of_its_terminal(small, tmp_path):
    process = start(train(small, tmp_path / "out", "--max-steps", 1000000),
                    preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    wait_for_steps(tmp_path / "out", 3)
    process.send_signal(signal.SIGHUP)
    wait_for_steps(tmp_path / "out", len(records(tmp_path / "out", "step")) + 3)
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == 128 + signal.SIGTERM


def finished(output):
    return json.loads((output / "run.json").read_text())["finished"] and len(records(output, "step")) == 20


@pytest.mark.parametrize("launcher", [[], ["launch", "--nproc", 2, "--"]], ids=["alone", "launched"])
def test_training_goes_on_when_nobody_reads_what_it_says(small, tmp_path, launcher):
    process = start([*launcher, *train(small, tmp_path / "out")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout.readline()
    process.stdout.close()
    process.wait(LIMIT)
    assert finished(tmp_path / "out"), process.returncode


@pytest.mark.parametrize("command", ["train", "dry run"])
@pytest.mark.parametrize("how", ["full", "closed"])
def test_training_goes_on_without_a_stderr(small, tmp_path, how, command):
    arguments = train(small, tmp_path / "out", *(["--dry-run"] if command == "dry run" else []))
    with open("/dev/full", "w") as full:
        done = subprocess.run([PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=full, timeout=LIMIT,
                              preexec_fn=(lambda: os.close(2)) if how == "closed" else None)
    assert done.returncode == 0
    assert command == "dry run" or finished(tmp_path / "out")
    # No file of the run has taken the place of the closed one.
    assert all(json.loads(line) for path in tmp_path.rglob("*.jsonl") for line in path.read_text().splitlines())


def test_an_error_that_cannot_be_said_is_an_exit_status_all_the_same(small, tmp_path):
    (tmp_path / "bad.jsonl").write_text("[")
    with open("/dev/full", "w") as full:
        for arguments, status in (train(small, tmp_path / "out", "--train", tmp_path / "bad.jsonl"), 1), (["train"], 2), (["train", "--nonsense"], 2):
            assert subprocess.run([PROGRAM, *last_counts(arguments)], stderr=full, timeout=LIMIT).returncode == status


@pytest.mark.parametrize("threads", [1025, 100000])
def test_more_threads_than_can_be_meant_are_refused(small, tmp_path, threads):
    for arguments in (train(small, tmp_path / "out"), ["eval", "--model", small, "--data", small / "train.jsonl"],
                      ["predict", "--model", small, "--text", "text"]):
        done = mezzo(*arguments, "--threads", threads, check=False)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert "--threads" in done.stderr and str(threads) in done.stderr and "1024" in done.stderr, done.stderr
