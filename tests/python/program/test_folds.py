"""`--folds`: a model for each part of the training texts, and the scores of all models."""
import json
import shutil
import signal
import subprocess

import numpy
import pytest
from support import PROGRAM, mezzo, records
from tiny_runs import flags, model_of, run, snapshot, trained, write_data, write_rows


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = write_data(tmp_path_factory.mktemp("data"))
    write_rows(folder / "train.jsonl", 40, 3)
    return folder


def fold_flags(data, output, *more):
    given = flags(data, output, "--seed", 7, *more)
    at = given.index("--dev")
    return given[:at] + given[at + 2:]


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    output = tmp_path_factory.mktemp("whole") / "out"
    done = trained(fold_flags(data, output, "--folds", 3))
    return output, done


def test_trains_each_fold_and_sums_up(whole):
    output, done = whole
    finals = [next(e for e in records(output / f"fold-{i}", "eval") if e.get("final")) for i in (1, 2, 3)]
    summary = json.loads((output / "folds.json").read_text())
    names = [name for name in finals[0] if name not in ("event", "step", "split", "final", "seconds", "never_predicted", "majority_baseline")]
    assert [list(fold) for fold in summary["folds"]] == [names] * 3 and "accuracy" in names
    for name in names:
        values = [final[name] for final in finals]
        assert [fold[name] for fold in summary["folds"]] == values
        assert summary["mean"][name] == pytest.approx(numpy.mean(values), rel=1e-12)
        assert summary["std"][name] == pytest.approx(numpy.std(values, ddof=1), rel=1e-9, abs=1e-15)
    rows = [line.split() for line in done.stdout.strip().splitlines()[-6:]]
    assert rows[0] == ["fold", *names] and [row[0] for row in rows[1:]] == ["1", "2", "3", "mean", "std"]
    assert [float(cell) for cell in rows[4][1:]] == [round(summary["mean"][name], 4) for name in names]
    texts = [json.loads((output / f"fold-{i}/run.json").read_text())["texts"] for i in (1, 2, 3)]
    assert sum(t["dev"] for t in texts) == 40 and all(t["train"] + t["dev"] == 40 for t in texts)


def test_one_fold_alone_is_the_same_run(data, whole, tmp_path):
    trained(fold_flags(data, tmp_path / "out", "--folds", 3, "--fold", 2))
    assert model_of(tmp_path / "out") == model_of(whole[0] / "fold-2")
    assert model_of(whole[0] / "fold-1") != model_of(whole[0] / "fold-2")


def test_two_ranks_share_each_fold(data, tmp_path):
    more = ["--folds", 3, "--dropout", 0, "--batch-size"]
    trained(fold_flags(data, tmp_path / "one", *more, 4))
    mezzo("launch", "--nproc", 2, "--", *fold_flags(data, tmp_path / "two", *more, 2))
    one, two = (json.loads((tmp_path / name / "folds.json").read_text())["mean"] for name in ("one", "two"))
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-4) and len(one) == len(two)


def test_goes_on_with_the_folds_that_have_not_finished(data, whole, tmp_path):
    output = tmp_path / "out"
    shutil.copytree(whole[0], output)
    shutil.rmtree(output / "fold-3")
    before = (output / "fold-1/run.json").stat().st_mtime_ns
    (output / "folds.json").unlink()
    assert "fold-1: holds a run already" in run(fold_flags(data, output, "--folds", 3)).stderr
    done = trained(fold_flags(data, output, "--folds", 3, "--resume", "auto"))
    assert "fold 3 of 3" in done.stderr and "fold 2 of 3" not in done.stderr
    assert (output / "fold-1/run.json").stat().st_mtime_ns == before
    assert (output / "folds.json").read_text() == (whole[0] / "folds.json").read_text()
    refused = run(fold_flags(data, output, "--folds", 3, "--resume", "auto", "--learning-rate", 0.01))
    assert refused.returncode == 1 and "learning-rate was '0.05', is now '0.01'" in refused.stderr


def test_folds_that_have_all_finished_are_left_as_they_are(data, whole, tmp_path):
    output = tmp_path / "out"
    shutil.copytree(whole[0], output)
    before = snapshot(output)
    arguments = fold_flags(data, output, "--folds", 3, "--resume", "auto")
    table = whole[1].stdout[whole[1].stdout.rindex("\nfold "):]
    for command, rank in (arguments, ""), (["launch", "--nproc", 2, "--", *arguments], "[rank 0] "):
        done = trained(command)
        assert done.stderr == f"{rank}already finished: all 3 folds are in {output}\n" and done.stdout.replace(rank, "") == table
        assert snapshot(output) == before
    quiet = trained([*arguments, "--quiet"])
    assert quiet.stdout == quiet.stderr == ""
    (output / "folds.json").unlink()  # as if it was killed just before
    trained(arguments)
    assert snapshot(output) == before


def test_a_metric_that_a_fold_cannot_tell_is_refused_before_the_first(data, tmp_path):
    rows = [json.dumps({"text": "goal law", "label": "ab"[i % 2]}) for i in range(12)] + ['{"text": "storm", "label": "rare"}']
    (tmp_path / "train.jsonl").write_text("\n".join(rows) + "\n")
    done = run(fold_flags(data, tmp_path / "out", "--folds", 3, "--train", tmp_path / "train.jsonl", "--metric", "roc_auc"))
    assert done.returncode == 1 and not (tmp_path / "out").exists() and done.stderr.count("\n") == 1
    assert "--metric roc_auc is not defined on the dev texts of fold " in done.stderr
    assert ": 1 of 3 labels has no text: 'rare'. Pass another --metric, or fewer --folds" in done.stderr


def test_folds_of_other_data_do_not_belong_together(data, whole, tmp_path):
    output = tmp_path / "out"
    shutil.copytree(whole[0], output)
    shutil.rmtree(output / "fold-3")
    lines = (data / "train.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "train.jsonl").write_text("".join(lines[:-1]))
    given = [tmp_path / "train.jsonl" if flag == str(data / "train.jsonl") else flag for flag in fold_flags(data, output, "--folds", 3, "--resume", "auto")]
    done = run(given)
    assert done.returncode == 1 and "fold-1 holds another run: " in done.stderr and not (output / "fold-3").exists()


def test_folds_are_scored_on_the_same_texts(data, whole, tmp_path):
    output = tmp_path / "out"
    shutil.copytree(whole[0], output)
    shutil.rmtree(output / "fold-3")
    done = run(fold_flags(data, output, "--folds", 3, "--resume", "auto", "--test", data / "dev.jsonl"))
    assert done.returncode == 1 and "fold-1 holds another run: test" in done.stderr and not (output / "fold-3").exists()
    trained(fold_flags(data, tmp_path / "tested", "--folds", 2, "--test", data / "dev.jsonl"))
    assert json.loads((tmp_path / "tested/folds.json").read_text())["split"] == "test"


def test_a_fold_of_which_nothing_can_be_read_is_named(data, whole, tmp_path):
    output = tmp_path / "out"
    shutil.copytree(whole[0], output)
    file = output / "fold-1/run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "identity": {"flags": 3}}))
    done = run(fold_flags(data, output, "--folds", 3, "--resume", "auto"))
    assert done.returncode == 1 and f"mezzo train: {file}: is not a run.json of mezzo train; " in done.stderr


def test_all_folders_are_checked_before_the_first_fold(data, whole, tmp_path):
    output = tmp_path / "out"
    shutil.copytree(whole[0], output)
    shutil.rmtree(output / "fold-1")
    for prepare in lambda: None, lambda: [shutil.rmtree(output / "fold-2"), (output / "fold-2").write_text("")]:
        prepare()
        done = run(fold_flags(data, output, "--folds", 3))
        assert done.returncode == 1 and "fold-2: " in done.stderr and not (output / "fold-1").exists()


def test_a_file_of_that_name_that_is_not_mezzos_stays(data, tmp_path):
    (tmp_path / "folds.json").write_text("mine")
    for more in [], ["--overwrite"], ["--resume", "auto"]:
        done = run(fold_flags(data, tmp_path, "--folds", 3, *more))
        assert done.returncode == 1 and "folds.json: does not belong to a cross-validation of mezzo" in done.stderr
        assert (tmp_path / "folds.json").read_text() == "mine" and not (tmp_path / "fold-1").exists()


def test_folds_end_though_nobody_reads_stdout(data, tmp_path):
    arguments = list(map(str, [PROGRAM, *fold_flags(data, tmp_path / "out", "--folds", 3)]))
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    process.stdout.close()
    assert process.wait(timeout=300) == -signal.SIGPIPE and (tmp_path / "out/folds.json").exists()


def test_a_batch_size_that_was_chosen_stays(data, tmp_path):
    more = ["--folds", 2, "--batch-size", "auto"]
    trained(fold_flags(data, tmp_path / "out", *more))
    shutil.rmtree(tmp_path / "out/fold-2")
    trained(fold_flags(data, tmp_path / "out", *more, "--resume", "auto"))
    assert json.loads((tmp_path / "out/folds.json").read_text())["mean"]


def test_each_fold_keeps_the_batch_size_that_it_chose(data, tmp_path):
    """All training texts at once, as they are short; and not all folds have as many."""
    more = ["--folds", 3, "--batch-size", "auto"]
    trained(fold_flags(data, tmp_path / "out", *more))
    chosen = [json.loads((tmp_path / f"out/fold-{fold}/run.json").read_text())["identity"]["flags"]["batch-size"] for fold in range(1, 4)]
    assert len(set(chosen)) > 1
    before = (tmp_path / "out/folds.json").read_text()
    shutil.rmtree(tmp_path / "out/fold-2")
    trained(fold_flags(data, tmp_path / "out", *more, "--resume", "auto"))
    assert (tmp_path / "out/folds.json").read_text() == before


def test_more_epochs_extend_every_fold(data, tmp_path):
    more = ["--folds", 2, "--schedule", "constant", "--save-every", 3]
    trained(fold_flags(data, tmp_path / "out", *more, "--max-steps", 6))
    trained(fold_flags(data, tmp_path / "out", *more, "--max-steps", 9, "--resume", "auto"))
    trained(fold_flags(data, tmp_path / "once", *more, "--max-steps", 9))
    assert (tmp_path / "out/folds.json").read_text() == (tmp_path / "once/folds.json").read_text()


@pytest.mark.parametrize("more, message", [
    (["--folds", 1], "--folds is 1, expected at least 2"),
    (["--fold", 2], "--fold chooses one fold of --folds"),
    (["--folds", 3, "--fold", 4], "--fold is 4, of --folds 3"),
    (["--folds", 3, "--stratify"], "leave --dev and --stratify out"),
    (["--folds", 3, "--resume", "x"], "pass --resume auto, or --fold as well"),
    (["--folds", 3, "--dry-run"], "--dry-run plans one run"),
])  # fmt: skip
def test_refuses_what_cannot_be_meant(more, message, data, tmp_path):
    done = run(fold_flags(data, tmp_path / "out", *more))
    assert done.returncode == 2 and message in done.stderr and not (tmp_path / "out").exists()


def test_refuses_more_folds_than_texts(data, tmp_path):
    done = run(fold_flags(data, tmp_path / "out", "--folds", 41))
    assert done.returncode == 1 and "has 40 texts, too few for --folds 41" in done.stderr
