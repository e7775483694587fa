"""`--data-memory`: texts and token ids beyond it are in a mapped file, and no number changes."""
import json
import os
import random
import re
import signal
import subprocess
import threading
import time

import pytest
from support import PROGRAM
from tiny_runs import WORDS, flags, losses_of, model_of, run, trained, write_data

MAPPED = re.compile(r"of texts and token ids, 0\.00 GB are in memory and \d+\.\d\d GB in a file in (\S+)")


def long_rows(count, seed, pairs):
    """Some of more tokens than a window."""
    rng = random.Random(seed)
    text = lambda: " ".join(rng.choices(WORDS, k=rng.choice([1, 5, 9, 30])))
    return [{"text": text(), **({"text_pair": text()} if pairs else {}), "label": i % 3} for i in range(count)]


def files(folder, pairs=False):
    data = write_data(folder)
    for name, count in (("train", 90), ("dev", 30)):
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in long_rows(count, count, pairs)))
    return data


@pytest.mark.parametrize("more, without_dev, pairs", [
    ([], False, False),
    (["--batching", "grouped"], False, True),
    (["--window", "mean", "--stride", 2], False, False),
    (["--dev-fraction", 0.2, "--class-weights", "balanced"], True, False),
    (["--folds", 3, "--fold", 2, "--batching", "padded"], True, False),
])
def test_training_from_the_mapped_file_is_bit_identical(more, without_dev, pairs, tmp_path):
    data = files(tmp_path / "data", pairs)
    arguments = flags(data, tmp_path / "x", "--schedule", "constant", *more)
    if without_dev:
        at = arguments.index("--dev")
        del arguments[at:at + 2]
    output = arguments.index("--output") + 1
    models, losses, reports = [], [], []
    for name, memory in (("memory", "auto"), ("mapped", 0)):
        arguments[output] = str(tmp_path / "runs" / name)
        done = trained([*arguments, "--data-memory", str(memory)])
        assert bool(MAPPED.search(done.stderr)) == (name == "mapped"), done.stderr
        if name == "mapped":
            assert MAPPED.search(done.stderr)[1] == str(tmp_path / "runs")  # beside --output
        models.append(model_of(tmp_path / "runs" / name))
        losses.append(losses_of(tmp_path / "runs" / name))
        written = json.loads((tmp_path / "runs" / name / "run.json").read_text())
        reports.append((written["best_accuracy"], written["texts"], written["identity"]["data"]))
    assert models[0] == models[1] and losses[0] == losses[1] and reports[0] == reports[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "runs"]  # the file has no name


def test_a_run_goes_on_with_another_data_memory(tmp_path):
    data = files(tmp_path / "data")
    trained(flags(data, tmp_path / "whole"))
    trained(flags(data, tmp_path / "part"))
    trained([*flags(data, tmp_path / "again"), "--resume", str(tmp_path / "part/checkpoints/step-4"), "--data-memory", "0"], TMPDIR=str(data))
    assert model_of(tmp_path / "again") == model_of(tmp_path / "whole")
    done = run([*flags(data, tmp_path / "no"), "--data-memory", "0"], TMPDIR=str(tmp_path / "none"))
    assert done.returncode == 1 and "none: no temporary file can be made here: No such file or directory. Set TMPDIR" in done.stderr


def slow_train_file(path, seconds):
    """Rows that come slowly, through a pipe."""
    os.mkfifo(path)

    def write():
        try:
            with open(path, "w") as pipe:
                for part in range(3):
                    for row in long_rows(5000, part, pairs=False):
                        pipe.write(json.dumps(row) + "\n")
                    pipe.flush()
                    time.sleep(seconds)
        except BrokenPipeError:
            pass

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    return writer


def test_reading_that_takes_long_shows_how_far_it_is(tmp_path):
    data = files(tmp_path / "data")
    (data / "train.jsonl").unlink()
    writer = slow_train_file(data / "train.jsonl", seconds=2)
    done = trained([*flags(data, tmp_path / "out"), "--max-steps", "1"])
    writer.join()
    assert re.search(r"^reading \S+/train\.jsonl 12288 rows  0:0\d elapsed$", done.stderr, re.MULTILINE), done.stderr
    assert "15000 training, 30 dev" in done.stderr
    quiet = trained([*flags(files(tmp_path / "few"), tmp_path / "quiet"), "--max-steps", "1"])
    assert not re.search("^reading ", quiet.stderr, re.MULTILINE)


def test_ctrl_c_ends_reading(tmp_path):
    data = files(tmp_path / "data")
    (data / "train.jsonl").unlink()
    slow_train_file(data / "train.jsonl", seconds=60)
    process = subprocess.Popen([PROGRAM, *flags(data, tmp_path / "out")], stderr=subprocess.PIPE, text=True)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    assert process.wait(timeout=30) == 130 and time.monotonic() - begin < 5
    assert not (tmp_path / "out").exists()
