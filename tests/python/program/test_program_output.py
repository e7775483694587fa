"""stdin and stdout of the program: nothing is lost in silence, and who asks one question gets one answer."""
import json
import os
import resource
import select
import signal
import subprocess
from pathlib import Path

import pytest
from support import MINILM, PROGRAM, mezzo, random_bert
from transformers import AutoTokenizer

PATIENCE = 60  # seconds after which a test fails rather than waits on


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    random_bert(folder, labels=2, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64)
    AutoTokenizer.from_pretrained(MINILM).save_pretrained(folder)
    rows = [{"text": f"a text with number {i}", "label": f"LABEL_{i % 2}"} for i in range(3000)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:32]))
    (folder / "rows.txt").write_text("".join(row["text"] + "\n" for row in rows))
    return folder


def writers(model, output):
    """A command line of everything that writes to stdout."""
    train = ["train", "--recipe", "reference", "--model", model, "--train", model / "few.jsonl", "--dev", model / "few.jsonl", "--precision", "fp32", "--max-steps", 2]
    return {
        "help": ["--help"], "version": ["--version"], "train help": ["train", "--help"],
        "ops": ["ops"], "ops json": ["ops", "--json"], "doctor": ["doctor"],
        "tokenize": ["tokenize", "--model", model, "--data", model / "rows.txt"],
        "predict": ["predict", "--model", model, "--data", model / "rows.txt"],
        "eval": ["eval", "--model", model, "--data", model / "few.jsonl"],
        "eval json": ["eval", "--model", model, "--data", model / "few.jsonl", "--json"],
        "train": [*train, "--output", output],
        "dry run": [*train, "--dry-run"],
        "launch": ["launch", "--nproc", 1, "--", "ops"],
    }


@pytest.mark.parametrize("name", writers(Path(), Path()))
@pytest.mark.parametrize("stdout, reason", [("full", "No space left on device"), ("closed", "Bad file descriptor")])
def test_output_that_cannot_be_written_is_a_failure_of_one_line(model, tmp_path, name, stdout, reason):
    output = tmp_path / "out"
    command = [PROGRAM, *map(str, writers(model, output)[name])]
    with open("/dev/full", "w") as full:
        closing = dict(preexec_fn=lambda: os.close(1)) if stdout == "closed" else {}
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, **closing)
    complaints = [line for line in done.stderr.splitlines() if "stdout" in line]
    assert done.returncode == 1 and len(complaints) == 1, done.stderr
    assert complaints[0].startswith("mezzo") and "cannot write to stdout" in complaints[0] and complaints[0].endswith(reason)
    if name == "train":  # the run itself is whole, and no report lies in a file that took the place of stdout
        assert all(json.loads(line)["event"] for line in (output / "metrics.jsonl").read_text().splitlines())
        assert json.loads((output / "run.json").read_text())["finished"] is True


def test_stdout_that_is_not_used_may_be_closed(model, tmp_path):
    command = [PROGRAM, "predict", "--model", model, "--text", "a text", "--output", tmp_path / "p.jsonl"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, preexec_fn=lambda: os.close(1))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "p.jsonl").read_text())["text"] == "a text"


def test_a_file_of_predictions_is_whole_or_not_there(model, tmp_path):
    output = tmp_path / "p.jsonl"
    output.write_text("as before")

    def no_large_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

    done = subprocess.run([PROGRAM, "predict", "--model", model, "--data", model / "rows.txt", "--output", output],
                          capture_output=True, text=True, timeout=PATIENCE, preexec_fn=no_large_files)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "p.jsonl: no space left on the disk" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["p.jsonl"] and output.read_text() == "as before"


@pytest.mark.parametrize("at_start", [signal.SIG_DFL, signal.SIG_IGN], ids=["default", "ignored"])
@pytest.mark.parametrize("name", ["predict", "tokenize"])
def test_a_reader_that_goes_away_ends_a_filter_quietly(model, tmp_path, name, at_start):
    process = subprocess.Popen([PROGRAM, *map(str, writers(model, tmp_path)[name])], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               preexec_fn=lambda: signal.signal(signal.SIGPIPE, at_start))
    assert json.loads(process.stdout.readline())
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(PATIENCE) == -signal.SIGPIPE


class Conversation:
    """A filter of which one question is asked at a time."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen([PROGRAM, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def say(self, data):
        self.process.stdin.write(data)

    def answers(self, count):
        lines = b""
        while lines.count(b"\n") < count:
            assert select.select([self.process.stdout], [], [], PATIENCE)[0], f"{count} answers were due, came: {lines}"
            lines += self.process.stdout.read(1 << 16)
        return [json.loads(line) for line in lines.splitlines()]

    def end(self):
        self.process.stdin.close()
        rest = self.process.stdout.read()
        assert self.process.wait(PATIENCE) == 0
        return rest


def test_predict_answers_each_line_of_a_pipe_when_no_more_are_waiting(model):
    filter = Conversation("predict", "--model", model)
    try:
        for text in "the first", "", "the third":
            filter.say(text.encode() + b"\n")
            (answer,) = filter.answers(1)
            assert answer["text"] == text
        filter.say(b"one\r\ntwo\nand a beg")
        assert [answer["text"] for answer in filter.answers(2)] == ["one", "two"]
        filter.say(b"inning\nwithout an end")
        assert [answer["text"] for answer in filter.answers(1)] == ["and a beginning"]
        assert json.loads(filter.end())["text"] == "without an end"
    finally:
        filter.process.kill()


def test_tokenize_answers_each_line_of_a_pipe_and_whole_files_alike(model):
    filter = Conversation("tokenize", "--model", model)
    try:
        filter.say(b"a b\n")
        assert filter.answers(1) == [{"input_ids": [101, 1037, 1038, 102]}]
        assert filter.end() == b""
    finally:
        filter.process.kill()
    texts = (model / "rows.txt").read_text()
    whole = mezzo("tokenize", "--model", model, "--data", model / "rows.txt").stdout
    assert mezzo("tokenize", "--model", model, stdin=texts).stdout == whole  # lines cut in two by the pipe's size included
    with open(model / "rows.txt") as file:
        assert subprocess.run([PROGRAM, "tokenize", "--model", model], stdin=file, capture_output=True, text=True).stdout == whole


def test_stdin_that_cannot_be_read_is_no_empty_file(model, tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    done = subprocess.run([PROGRAM, "tokenize", "--model", model], stdin=folder, capture_output=True, text=True, timeout=PATIENCE)
    os.close(folder)
    assert (done.returncode, done.stderr, done.stdout) == (1, "mezzo tokenize: cannot read stdin: Is a directory\n", "")
    done = subprocess.run([PROGRAM, "predict", "--model", model], capture_output=True, text=True, timeout=PATIENCE,
                          preexec_fn=lambda: os.close(0))
    assert (done.returncode, done.stderr) == (1, "mezzo predict: cannot read stdin: Bad file descriptor\n")
