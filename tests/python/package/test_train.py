"""mezzo.train: the program's trainer under Python's signals, terminals and notebooks."""
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import mezzo
import numpy as np
import pytest
import ranks
import torch
from mezzo import _train
from sklearn import metrics
from support import PROGRAM

sys.path.append(str(Path(__file__).parents[1] / "program"))
from tiny_runs import LABELS, checkpoints_of, flags, model_of, write_data  # noqa: E402

LIMIT = 120  # seconds after which a hang is one


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


def settings(data, output, **more):
    """Those of tiny_runs.flags()."""
    return dict(recipe="reference", model_config=data / "config.json", vocab=data / "vocab.txt", train=data / "train.jsonl",
                dev=data / "dev.jsonl", output=output, max_length=16, batch_size=4, max_steps=6, eval_every=1, save_every=2,
                learning_rate=0.05, seed=2, threads=1, precision="fp32") | more


def rows_of(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_trains_the_program_s_model_and_measures_as_scikit_learn(data, tmp_path, capfd):
    result = mezzo.train(**settings(data, tmp_path / "ours"))
    said = capfd.readouterr()
    assert "6 steps of 4 texts in fp32 on" in said.err and "\x1b" not in said.err and "\r" not in said.err
    assert "next: mezzo predict" in said.out
    subprocess.run([PROGRAM, *flags(data, tmp_path / "theirs")], check=True, capture_output=True)
    assert model_of(result.folder) == model_of(tmp_path / "theirs")
    assert result.folder == tmp_path / "ours" and result.history == rows_of(tmp_path / "ours/metrics.jsonl")
    assert [record["step"] for record in result.history if record["event"] == "step"] == [*range(1, 7)]

    rows = rows_of(data / "dev.jsonl")
    found = mezzo.Classifier(result.folder, precision="fp32").predict([row["text"] for row in rows])
    expected, predicted = [row["label"] for row in rows], [row["label"] for row in found]
    assert result.metrics["split"] == "dev"
    assert result.metrics["accuracy"] == pytest.approx(metrics.accuracy_score(expected, predicted), abs=1e-12)
    assert result.metrics["macro_f1"] == pytest.approx(metrics.f1_score(expected, predicted, average="macro", labels=LABELS), abs=1e-12)
    scores = [[row["scores"][name] for name in sorted(LABELS)] for row in found]
    assert result.metrics["loss"] == pytest.approx(metrics.log_loss(expected, scores, labels=sorted(LABELS)), abs=1e-6)  # of float32


def test_rows_and_lists_are_settings(data, tmp_path, capfd):
    mezzo.train(**settings(data, tmp_path / "a", train=rows_of(data / "train.jsonl"), dev=[str(data / "dev.jsonl")], quiet=True, limit=None,
                           labels=sorted(LABELS)))
    assert capfd.readouterr() == ("", "")
    mezzo.train(**settings(data, tmp_path / "b"))
    assert model_of(tmp_path / "a") == model_of(tmp_path / "b")
    result = mezzo.train(**settings(data, tmp_path / "c", labels=["x,\"y", *LABELS], max_steps=1))
    assert mezzo.Classifier(result.folder).labels == ["x,\"y", *LABELS]
    numbers = [row | dict(label=np.int64(i % 2)) for i, row in enumerate(rows_of(data / "train.jsonl"))]
    result = mezzo.train(**settings(data, os.fsencode(tmp_path / "f"), train=numbers, dev=None, max_steps=np.int64(1)))
    assert mezzo.Classifier(result.folder).labels == ["0", "1"] and result.folder == tmp_path / "f"
    mezzo.train(help=True)
    assert "Usage: mezzo train" in capfd.readouterr().out
    result = mezzo.train(**settings(data, tmp_path / "d", dry_run=True))
    assert (result.metrics, result.history) == ({}, []) and not (tmp_path / "d").exists()
    result = mezzo.train(**settings(data, tmp_path / "e", dev=None, folds=2, max_steps=1))
    assert result.metrics == json.loads((tmp_path / "e/folds.json").read_text())["mean"] and "accuracy" in result.metrics


def test_labels_with_line_separators_of_unicode_are_read_back(tmp_path):
    metrics = dict(accuracy=0.5, never_predicted=["a\u2028b\x85"])  # which str.splitlines() would split
    (tmp_path / "metrics.jsonl").write_text(json.dumps(metrics | dict(final=True), ensure_ascii=False) + "\n", "utf-8")
    assert _train._result(tmp_path).metrics == metrics


@pytest.mark.parametrize("wrong, error, message", [
    (dict(learning_rat=1), ValueError, r"^--learning-rat is not an option\. Did you mean '--learning-rate'\? See mezzo train --help$"),
    (dict(learning_rate="much"), ValueError, "--learning-rate 'much' is neither 'auto' nor a number"),
    (dict(dev_ratio=2.5), ValueError, "--dev-ratio is 2.5"),
    (dict(lora=True), ValueError, "--lora 'true' is not a whole number"),
    (dict(output=None), ValueError, "--output"),
    (dict(config="x.toml", output=None), ValueError, "^output is missing; pass it beside config$"),
    (dict(train={"text": ["a"]}), TypeError, "^train is a dict, expected a list of files or rows; a DataFrame's rows are"),
    (dict(dev=[dict(text=b"a", label="x")]), TypeError, "^a row has a bytes: b'a'; expected a str, a number, a bool or None$"),
    (dict(labels=["a\0", "b"]), ValueError, r"^labels has 'a\\x00'; a name has a character, and no line break$"),
    (dict(train=[]), ValueError, "^train is empty$"),
    (dict(train=[1]), TypeError, r"^train\[0\] is a int, expected a str or bytes or PathLike$"),
    (dict(train=[dict(text="a", label="x"), 1]), TypeError, r"^train\[1\] is a int, expected a Mapping$"),
    (dict(output=3), TypeError, "^output is a int, expected a str"),
    (dict(model="a\0"), ValueError, r"^model is 'a\\x00'; settings have no null characters$"),
    (dict(model=Path("a\0")), ValueError, r"^model is 'a\\x00'; settings have no null characters$"),
    (dict(train=[b"a\0"]), ValueError, r"^train is 'a\\x00'; settings have no null characters$"),
    (dict(model="a\ud800"), ValueError, r"^model is 'a\\ud800', which is not Unicode text$"),
    (dict(learning_rate=torch.tensor(-1.0)), ValueError, "--learning-rate is -1"),
    (dict(train="nofile.jsonl"), FileNotFoundError, r"^nofile\.jsonl: cannot be read: No such file or directory"),
    (dict(train=[{"text": "a"}]), RuntimeError, r"train\.jsonl"),
    (dict(labels=["sport"]), RuntimeError, "--labels"),
], ids=lambda value: "-".join(value) if isinstance(value, dict) else None)  # fmt: skip
def test_what_is_wrong_is_an_exception_with_the_program_s_message(wrong, error, message, data, tmp_path, capfd):
    with pytest.raises(error, match=message) as raised:
        mezzo.train(**settings(data, tmp_path / "out") | wrong)
    assert "\n" not in str(raised.value) and not str(raised.value).startswith("mezzo train")
    assert str(raised.value) not in capfd.readouterr().err


# --- signals
# -------------------------------------------------------------------------------------------------

def python(code, **more):
    """Another Python that runs the code."""
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **more})


def endless(data, output, **more):
    """Code that trains for longer than a test may last."""
    given = {name: str(value) if isinstance(value, Path) else value for name, value in settings(data, output, max_steps=1_000_000, **more).items()}
    return f"import mezzo\nmezzo.train(**{given!r})\n"


def wait_for_steps(output, count):
    deadline = time.monotonic() + LIMIT
    while not (output / "metrics.jsonl").exists() or (output / "metrics.jsonl").read_text().count('"event":"step"') < count:
        assert time.monotonic() < deadline, "no progress"
        time.sleep(0.02)


def test_ctrl_c_saves_a_checkpoint_that_the_next_training_goes_on_from(data, tmp_path):
    output = tmp_path / "out"
    started = python(endless(data, output, save_every=0, eval_every=0))
    wait_for_steps(output, 3)
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=LIMIT)
    assert said.rstrip().endswith("KeyboardInterrupt") and "go on with --resume auto" in said
    steps = len([record for record in rows_of(output / "metrics.jsonl") if record["event"] == "step"])
    assert checkpoints_of(output) == [steps]
    # From there, with the same schedule, to the same end as in one go.
    more = dict(max_steps=1_000_000, save_every=0, eval_every=0, pause_at=(steps + 4) / 1_000_000)
    mezzo.train(**settings(data, output, resume="auto", **more))
    mezzo.train(**settings(data, tmp_path / "at once", **more))
    losses = [[record["loss"] for record in rows_of(folder / "metrics.jsonl") if record["event"] == "step"] for folder in (output, tmp_path / "at once")]
    assert losses[0] == losses[1] and len(losses[0]) == steps + 4


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL], ids=lambda sent: sent.name)
def test_a_python_that_is_ended_leaves_a_checkpoint_and_no_process(sent, data, tmp_path):
    output = tmp_path / "out"
    started = python(endless(data, output, save_every=0, eval_every=0))
    wait_for_steps(output, 3)
    started.send_signal(sent)
    started.communicate(timeout=LIMIT)
    assert started.returncode == -sent
    deadline = time.monotonic() + LIMIT
    while json.loads((output / "run.json").read_text())["status"] != "stopped":  # SIGKILL does not wait
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(checkpoints_of(output)) == 1


def test_a_training_that_is_stopped_or_killed_says_so(data, tmp_path):
    for sent, message in [(signal.SIGTERM, "stopped by SIGTERM, with a checkpoint saved; pass resume=\"auto\" to go on"), (signal.SIGKILL, "killed by SIGKILL")]:
        output = tmp_path / sent.name
        started = python(endless(data, output))
        wait_for_steps(output, 3)
        children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
        os.kill(int(children[0]), sent)
        assert f"RuntimeError: the training was {message}" in started.communicate(timeout=LIMIT)[1]


# --- progress
# -------------------------------------------------------------------------------------------------

BAR = r"100% ━+ 30/30  \d:\d\d elapsed  loss \d\.\d{3}"


def test_a_terminal_shows_the_program_s_bar(data, tmp_path):
    given = {name: str(value) if isinstance(value, Path) else value for name, value in settings(data, tmp_path / "out", max_steps=30, eval_every=15).items()}
    ours, theirs = pty.openpty()
    started = python(f"import mezzo\nmezzo.train(**{given!r})", stderr=theirs, env=os.environ | {"TERM": "xterm", "LC_ALL": "C.UTF-8"})
    os.close(theirs)
    drawn = b""
    try:
        while piece := os.read(ours, 65536):
            drawn += piece
    except OSError:  # the other end is closed
        pass
    assert started.wait(LIMIT) == 0
    lines = re.split(r"\r|\n", drawn.decode().replace("\x1b[K", ""))
    assert any(re.match(BAR, line) for line in lines) and any(line.startswith("step 15: dev loss") for line in lines), lines


FAKE_NOTEBOOK = """
import sys, types
shown = []

class Output:
    def update(self, data, raw):
        shown[-1].append(data["text/plain"])

def display(data, raw, display_id):
    shown.append([data["text/plain"]])
    return Output()

ipython = types.ModuleType("IPython")
ipython.display = types.ModuleType("IPython.display")
ipython.display.display = display
ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
sys.modules |= {"IPython": ipython, "IPython.display": ipython.display}
"""


def test_a_notebook_shows_the_bar_in_an_output_of_its_own_and_lines_beside(data, tmp_path):
    given = {name: str(value) if isinstance(value, Path) else value for name, value in settings(data, tmp_path / "out", max_steps=30, eval_every=15).items()}
    started = python(f"{FAKE_NOTEBOOK}\nimport mezzo, json\nmezzo.train(**{given!r})\nprint(json.dumps(shown))", env=os.environ | {"LC_ALL": "C.UTF-8"})
    out, said = started.communicate(timeout=LIMIT)
    assert started.returncode == 0, said
    outputs = json.loads(out.splitlines()[-1])
    assert len(outputs) == 1 and re.match(BAR, outputs[0][-1]), outputs
    assert not re.search(r"[\r\n\x1b]", "".join(outputs[0]))
    assert "step 15: dev loss" in said and "━" not in said and "\x1b" not in said


# --- ranks
# -------------------------------------------------------------------------------------------------

def test_workers_of_a_process_group_train_together(data, tmp_path):
    """As Ray Train's workers do: torch.distributed has a group already, with its store at MASTER_PORT."""
    given = {name: str(value) if isinstance(value, Path) else value for name, value in settings(data, tmp_path / "out", quiet=True).items()}
    port = str(ranks.free_port())
    code = f"""
        import json, mezzo, torch.distributed
        torch.distributed.init_process_group("gloo")
        first, second = (mezzo.train(**{given!r} | more) for more in ({{}}, dict(output="{tmp_path}/again")))
        total = torch.ones(1); torch.distributed.all_reduce(total)
        print(json.dumps([first.metrics, second.metrics, total.item()]))
        """
    workers = [python(code, env=os.environ | dict(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                                                  MASTER_PORT=port)) for rank in range(2)]
    ends = [worker.communicate(timeout=LIMIT) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], ends
    found = [json.loads(out) for out, _ in ends]
    assert found[0] == found[1] and found[0][2] == 2 and "accuracy" in found[0][0]
    assert {name: value for name, value in found[0][0].items() if name != "seconds"} == {name: value for name, value in found[0][1].items() if name != "seconds"}
    assert [record["ranks"] for record in rows_of(tmp_path / "out/metrics.jsonl") if record["event"] == "communication"] == [2]
