"""The checkpoints that a run may resume from, and the files that it leaves alone. It removes only files
that it wrote."""
import json
import os
import re
import shutil
import signal
import subprocess
import time

import _mezzo
import pytest
import tiny_runs
from support import PROGRAM, random_bert, records
from tiny_runs import checkpoints_of, faults, flags, flip_a_byte, logged_calls, losses_of, model_of, run, snapshot, trained


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny_runs.write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    output = tmp_path_factory.mktemp("whole") / "out"
    trained(flags(data, output))
    return output


@pytest.fixture
def finished(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def cut(finished):
    """A run that was killed before its end."""
    for name in "report.html", "checkpoints/step-6":
        path = finished / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    run_json = json.loads((finished / "run.json").read_text())
    (finished / "run.json").write_text(json.dumps({**run_json, "finished": False}))
    return finished


def refused(arguments, folder, status=1, **environment):
    """The message of a refusal that leaves the folder as it was."""
    def contents():
        return {name: content for name, content in snapshot(folder).items() if name != ".run.lock"}  # of a run that was killed

    before = contents()
    done = run(arguments, **environment)
    assert done.returncode == status, done.stderr
    assert contents() == before
    return done.stderr.splitlines()[-1]


def test_a_run_with_no_intact_checkpoint_is_left_alone(data, cut):
    flip_a_byte(cut / "checkpoints/step-4/weights.safetensors")
    shutil.copytree(cut / "checkpoints/step-4", cut / "checkpoints/step-2")
    for more in [], ["--overwrite"]:
        message = refused(flags(data, cut, "--resume", "auto", *more), cut)
        assert re.search(r"no checkpoint in \S+ is intact: \S+step-4/weights.safetensors: is damaged: .*; \S+step-2: is named for step 2", message)
        assert "nothing was changed" in message


@pytest.fixture
def paused(data, tmp_path):
    """A run with checkpoints of steps 2 and 3, of which the later has the best model of the earlier."""
    trained(flags(data, tmp_path / "out", "--save-every", 1, "--pause-at", 0.5))
    return tmp_path / "out"


def unreadable(path):
    return dict(LD_PRELOAD=os.environ["MEZZO_WRITE_FAULTS"], MEZZO_UNREADABLE=path)


@pytest.mark.parametrize("name", ["manifest.json", "state.json", "weights.safetensors", "optimizer.safetensors"])
def test_a_checkpoint_that_the_disk_does_not_give_is_not_passed_over(data, paused, name):
    """The next time it may."""
    checkpoint = paused / "checkpoints/step-3"
    arguments = flags(data, paused, "--resume", "auto")
    message = refused(arguments, paused, **unreadable(f"{checkpoint}/{name}"))
    refusal = f"mezzo train: {checkpoint}/{name}: cannot be read: Input/output error; it may be intact, so nothing was changed"
    assert message == refusal + f"; to resume from an earlier checkpoint, move {checkpoint} away"
    shutil.copytree(checkpoint, checkpoint.parent / "step-4")
    message = refused(arguments, paused, **unreadable(f"{checkpoint}/{name}"))
    assert message.startswith(refusal) and f"; newer than it: {checkpoint.parent}/step-4: is named for step 4" in message
    shutil.rmtree(checkpoint.parent / "step-4")
    shutil.rmtree(checkpoint.parent / "step-2")
    assert refused(arguments, paused, **unreadable(f"{checkpoint}/{name}")) == refusal


def test_a_checkpoint_whose_files_cannot_be_looked_at_is_not_passed_over(data, paused):
    folder = paused / "checkpoints/step-3"
    (folder / "notes.txt").write_text("mine")
    message = refused(flags(data, paused, "--resume", "auto"), paused, **unreadable(f"{folder}/"))
    assert f"{folder}/manifest.json: cannot be read: Input/output error; it may be intact" in message


def test_a_best_model_that_the_disk_does_not_give_is_that_of_the_run(data, whole, paused):
    """As if it were damaged."""
    arguments, best = flags(data, paused, "--resume", "auto"), paused / "checkpoints/step-3/best.safetensors"
    model = paused / "model.safetensors"
    model.rename(paused / "aside")
    assert f"{best}: cannot be read: Input/output error; it may be intact" in refused(arguments, paused, **unreadable(best))
    (paused / "aside").rename(model)
    assert "resumed after step 3" in trained(arguments, **unreadable(best)).stderr
    assert model_of(paused) == model_of(whole)


@pytest.mark.parametrize("version", [5, 7])
def test_a_checkpoint_of_another_version_is_not_passed_over(version, data, paused):
    manifest = paused / "checkpoints/step-3/manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 6', f'"format": {version}'))
    message = refused(flags(data, paused, "--resume", "auto"), paused)
    assert f"step-3/manifest.json: is of format {version}, this mezzo reads format 6; resume with the version that wrote it; it may be intact" in message


def test_a_pretrained_folder_is_never_written_to(data, tmp_path):
    sizes = dict(vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    bert, model = random_bert(tmp_path / "model", **sizes)
    bert.bert.save_pretrained(model)  # the encoder alone, so that the data's labels count
    shutil.copy(data / "vocab.txt", model)
    (tmp_path / "link").symlink_to(model)
    base = ["train", "--model", model, "--train", data / "train.jsonl", "--max-length", 16, "--max-steps", 1]
    for output in model, tmp_path / "link", f"{model}/../model":
        for more in [], ["--overwrite"], ["--resume", "auto"]:
            message = refused([*base, "--output", output, *more], model, status=2)
            assert "is the folder of --model: training would replace the weights it starts from" in message
    _, other = random_bert(tmp_path / "other", seed=1, **sizes)
    for more in [], ["--overwrite"], ["--resume", "auto"]:
        message = refused([*base, "--output", other, *more], other)
        assert "but no run.json of a run of mezzo; pass another folder" in message


def test_a_file_that_the_run_reads_is_never_written_to(data, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    message = refused(flags(folder, folder, "--overwrite"), folder, status=2)
    assert "training would replace vocab.txt there, which --vocab reads" in message or "config.json" in message


def test_files_of_others_survive_an_overwrite(data, finished):
    strangers = ["notes.txt", "tensorboard/notes.txt", "checkpoints/notes.txt", "checkpoints/step-4/notes.txt",
                 "checkpoints/best/model.safetensors"]
    for name in strangers:
        (finished / name).parent.mkdir(exist_ok=True)
        (finished / name).write_text("mine")
    assert "holds a finished run already" in refused(flags(data, finished), finished)
    trained(flags(data, finished, "--overwrite", "--seed", 5, "--save-every", 0))
    assert all((finished / name).read_text() == "mine" for name in strangers)
    assert not list(finished.glob("checkpoints/*/weights.safetensors"))
    assert len(losses_of(finished)) == tiny_runs.STEPS


@pytest.mark.parametrize("change, message", [
    (["--seed", 124], "seed was '2', is now '124'"),
    (["--limit", 20], "limit was '0', is now '20'"),
    (["--dropout", 0.25], "dropout was 'as the model says', is now '0.25'"),
    ({"num_attention_heads": 4}, "num_attention_heads was '2', is now '4'"),
    ({"hidden_act": "relu", "layer_norm_eps": 0.001}, "hidden_act was 'gelu', is now 'relu'; layer_norm_eps was '1e-12', is now '0.001'"),
    ({"attention_probs_dropout_prob": 0.0}, "attention_probs_dropout_prob was '0.1', is now '0.0'"),
    ("train.jsonl", "training data as tokens was '24 texts of hash "),
    ("dev.jsonl", "dev data as tokens was '30 texts of hash "),
])
@pytest.mark.parametrize("resume", ["auto", "checkpoint"])
def test_another_run_is_named_by_what_differs_and_changes_nothing(data, cut, tmp_path, change, message, resume):
    other = tmp_path / "data"
    shutil.copytree(data, other)
    if isinstance(change, dict):
        config = json.loads((other / "config.json").read_text())
        (other / "config.json").write_text(json.dumps({**config, **change}))
    elif isinstance(change, str):
        (other / change).write_text((other / change).read_text().replace("goal", "law", 1))
    more = change if isinstance(change, list) else []
    resume = resume if resume == "auto" else cut / "checkpoints/step-4"
    said = refused(flags(other, cut, *more, "--resume", resume), cut)
    assert f"--resume: the checkpoint is of another run: {message}" in said


def change_state(checkpoint, change):
    """As if a run had written it: the manifest has the hash of the changed file."""
    state = json.loads((checkpoint / "state.json").read_text())
    change(state)
    (checkpoint / "state.json").write_text(json.dumps(state))
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["files"]["state.json"] = dict(bytes=(checkpoint / "state.json").stat().st_size,
                                           hash=_mezzo.hash_of_file(str(checkpoint / "state.json")))
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("key, value, message", [
    ("step", -1, 'state.json: "step" is -1, not a count from 0'),
    ("step", 2**64 - 1, 'state.json: "step" is 18446744073709551615, not a count from 0'),
    ("step", 4.5, 'state.json: "step" is 4.5, not a count from 0'),
    ("step", 10**6, "step-4: is named for step 4 and holds step 1000000; rename it"),
    ("steps_taken", 5, 'state.json: "steps_taken" is 5, not a count from 0 to 4'),
    ("last_eval_step", 5, 'state.json: "last_eval_step" is 5, not a count from 0 to 4'),
    ("samples", -5, 'state.json: "samples" is -5, not a count from 0'),
    ("tokens", 2**60, f'state.json: "tokens" is {2**60}, not a count from 0'),
    ("seconds", -0.5, 'state.json: "seconds" is -0.5, not a time in seconds'),
    ("step_seconds", "1", 'state.json: "step_seconds" is "1", not a time in seconds'),
])
def test_numbers_that_no_run_has_written_are_not_believed(data, cut, key, value, message):
    checkpoint = cut / "checkpoints/step-4"
    change_state(checkpoint, lambda state: state.update({key: value}))
    assert message in refused(flags(data, cut, "--resume", checkpoint), cut)


@pytest.mark.parametrize("folder", ["", "checkpoints", "checkpoints/step-9"])
def test_a_folder_that_is_no_checkpoint_is_answered_with_the_newest(data, cut, folder):
    given = f"{cut}/{folder}"
    message = refused(flags(data, cut, "--resume", given), cut)
    assert f"{given}: is not a checkpoint folder. Pass {cut}/checkpoints/step-4 or --resume auto" in message.replace("//", "/")


def test_a_step_that_the_run_does_not_have_is_not_believed(data, cut):
    change_state(cut / "checkpoints/step-4", lambda state: state.update(step=10**6))
    (cut / "checkpoints/step-4").rename(cut / "checkpoints/step-1000000")
    assert "the checkpoint to resume from has step 1000000, but the run has only " in refused(flags(data, cut, "--resume", "auto"), cut)


@pytest.mark.parametrize("value", ["0", "-8", "8 texts", "9" * 30])
def test_a_batch_size_that_no_run_has_written_is_not_believed(data, cut, value):
    checkpoint = cut / "checkpoints/step-4"
    change_state(checkpoint, lambda state: state["identity"]["flags"].update({"batch-size": value}))
    said = refused(flags(data, cut, "--batch-size", "auto", "--resume", checkpoint), cut)
    assert f"the run to resume has the batch-size '{value}', expected a number from 1" in said


def test_a_best_model_by_another_metric_is_none_to_go_on_with(data, cut):
    checkpoint = cut / "checkpoints/step-4"
    change_state(checkpoint, lambda state: state.update(
        best={"f1" if name == "accuracy" else name: value for name, value in state["best"].items()}))
    said = refused(flags(data, cut, "--resume", "auto"), cut)
    assert "--resume: the checkpoint is of another run: metric of the best model was 'f1', is now 'accuracy'; resume" in said


def test_checkpoints_that_cannot_be_searched_are_not_taken_for_none(data, cut):
    shutil.rmtree(cut / "checkpoints")
    (cut / "checkpoints").write_text("")  # as a folder without permission, or on a disk that fails
    for more in ["--resume", "auto"], ["--overwrite"]:
        message = refused(flags(data, cut, *more), cut)
        assert re.search(r"out/checkpoints: cannot be searched for checkpoints: Not a directory", message)


def left_alone(arguments, folder, rank=""):
    """Ends well, says that the run there has finished, and nothing else, and leaves the folder as it was."""
    before = snapshot(folder)
    done = trained(arguments)
    told = json.loads((folder / "run.json").read_text())
    steps = f"{told['steps']} of {told['total_steps']}" if told["steps"] < told["total_steps"] else told["steps"]
    assert (done.stdout, done.stderr) == ("", f"{rank}already finished after {steps} steps: model and report.html are in {folder}\n")
    assert snapshot(folder) == before


def test_a_finished_run_is_left_as_it_is(data, finished):
    arguments = flags(data, finished, "--resume", "auto")
    left_alone(arguments, finished)
    left_alone(["launch", "--nproc", 2, "--", *arguments], finished, rank="[rank 0] ")
    assert trained([*arguments, "--quiet"]).stderr == ""
    shutil.rmtree(finished / "checkpoints")
    left_alone(arguments, finished)


FILES = ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "report.html"]


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_a_finished_run_without_one_of_its_files_is_not_called_finished(with_checkpoint, data, finished):
    if not with_checkpoint:
        shutil.rmtree(finished / "checkpoints")
    arguments = flags(data, finished, "--resume", "auto")
    model = model_of(finished)
    for name in FILES:
        (finished / name).rename(finished / "aside")
        named = "vocab.txt or tokenizer.json" if name == "tokenizer.json" else name
        assert refused(arguments, finished) == (
            f"mezzo train: --resume: {finished} holds a finished run without {named}. Restore the file, or add --overwrite. The run then starts from "
            "its last checkpoint, if it has one, and writes all files again.")
        (finished / "aside").rename(finished / name)
    left_alone(arguments, finished)
    for name in FILES:
        (finished / name).unlink()
    trained([*arguments, "--overwrite"])
    left_alone(arguments, finished)
    assert model_of(finished) == model


def test_a_finished_run_whose_model_is_damaged_is_not_called_finished(data, finished):
    arguments = flags(data, finished, "--resume", "auto")
    for name, contents, why in (("model.safetensors", (finished / "model.safetensors").read_bytes()[:-8], "The file is cut off"),
                                ("config.json", b"", "config.json")):
        (finished / name).write_bytes(contents)
        said = refused(arguments, finished)
        assert said.startswith(f"mezzo train: --resume: the finished run is damaged: {finished}/{name}:") and why in said, said
        assert said.endswith(". Restore the file, or add --overwrite. The run then starts from its last checkpoint, if it has one, and writes all files "
                             "again.") and ".." not in said, said
        trained([*arguments, "--overwrite"])
        left_alone(arguments, finished)


def test_a_dry_run_of_a_finished_run_says_that_it_has_finished(data, finished):
    left_alone(flags(data, finished, "--resume", "auto", "--dry-run"), finished)
    left_alone(flags(data, finished, "--resume", "auto", "--dry-run", "--max-steps", 4), finished)


def test_fewer_steps_or_less_patience_end_a_run_well(data, tmp_path):
    """As docs/resuming.md has it; the schedule does not depend on the number of steps."""
    trained(flags(data, tmp_path / "paused", "--pause-at", 0.5))  # after step 3; its model is not better than step 2's
    for more, of in (["--max-steps", 3], "3 steps"), (["--patience", 1], "3 of 6 steps"):
        out = tmp_path / more[0]
        shutil.copytree(tmp_path / "paused", out)
        trained(flags(data, out, "--resume", "auto", *more))
        assert f"already finished after {of}: " in trained(flags(data, out, "--resume", "auto", "--max-steps", 2)).stderr
    said = refused(flags(data, tmp_path / "paused", "--resume", "auto", "--max-steps", 2), tmp_path / "paused")
    assert "the checkpoint to resume from has step 3, but the run has only 2; resume from another checkpoint" in said


@pytest.mark.parametrize("more, difference", [
    (["--learning-rate", 0.01], "learning-rate was '0.05', is now '0.01'"), (["--calibrate"], "calibrate was 'false', is now 'true'"),
    (["--metric", "macro_f1"], "metric was '', is now 'macro_f1'")])
def test_a_finished_run_of_other_settings_is_not_taken_for_this_one(more, difference, data, finished):
    said = refused(flags(data, finished, "--resume", "auto", *more), finished)
    assert f"{finished} holds another run: {difference}; resume with the same settings and data, or start afresh" in said


def test_a_finished_run_is_known_by_its_test_texts_and_not_by_their_path(data, finished, tmp_path):
    (tmp_path / "folder").mkdir()
    test, same = tmp_path / "test.jsonl", tmp_path / "folder/../test.jsonl"
    shutil.copy(data / "dev.jsonl", test)
    given = ["--resume", "auto", "--test", test]
    was_none = r"holds another run: test data as tokens was '0 texts of hash \w+', is now '30 texts of hash \w+'; resume"
    assert re.search(was_none, refused(flags(data, finished, *given), finished))
    trained(flags(data, tmp_path / "tested", *given))
    left_alone(flags(data, tmp_path / "tested", "--resume", "auto", "--test", same), tmp_path / "tested")
    test.write_text(test.read_text().replace("goal", "law", 1))
    differs = r"holds another run: test data as tokens was '30 texts of hash (\w+)', is now '30 texts of hash (?!\1)\w+'; resume"
    assert re.search(differs, refused(flags(data, tmp_path / "tested", *given), tmp_path / "tested"))
    file = tmp_path / "tested/run.json"
    file.write_text(json.dumps({key: value for key, value in json.loads(file.read_text()).items() if key != "final_evaluation"}))
    left_alone(flags(data, tmp_path / "tested", *given), tmp_path / "tested")  # of an older mezzo


def test_a_run_that_is_killed_behind_its_last_write_has_finished(data, whole, tmp_path):
    out = tmp_path / "out"
    calls = logged_calls(flags(data, out), out, tmp_path / "log")
    last = max(i for i, (_, path) in enumerate(calls, 1) if "run.json" in path)
    for at in range(last + 1, len(calls) + 1):
        shutil.rmtree(out)
        assert run(flags(data, out), **faults(out, "kill", at)).returncode == -9, calls[at - 1]
        done = trained(flags(data, out, "--resume", "auto"))
        assert "already finished after 6 steps" in done.stderr and model_of(out) == model_of(whole)
    assert last < len(calls), "the lock is removed"


def test_a_paused_run_may_be_paused_there_again(data, tmp_path):
    arguments = flags(data, tmp_path / "out", "--resume", "auto", "--pause-at", 0.5)
    trained(arguments)
    model = model_of(tmp_path / "out")
    assert "go on with --resume auto" in trained(arguments).stderr and model_of(tmp_path / "out") == model


def test_a_finished_run_is_undone_only_when_asked(data, finished, whole):
    message = refused(flags(data, finished, "--resume", finished / "checkpoints/step-4"), finished)
    assert "holds the finished run of this checkpoint already. Pass more --epochs or --max-steps to extend it, --overwrite to go back to step" in message
    done = trained(flags(data, finished, "--resume", finished / "checkpoints/step-4", "--overwrite"))
    assert "resumed after step 4" in done.stderr and model_of(finished) == model_of(whole)


def test_a_stop_before_the_first_step_leaves_a_checkpoint_in_a_new_folder(data, cut, tmp_path):
    new = tmp_path / "new"
    done = run(flags(data, new, "--resume", cut / "checkpoints/step-4"), **faults(new, term_at=3))
    assert done.returncode == 143 and "stopped after step 4; go on with --resume auto" in done.stderr, done.stderr
    assert checkpoints_of(new) == [4]
    shutil.rmtree(cut)
    assert "resumed after step 4" in trained(flags(data, new, "--resume", "auto")).stderr


def test_a_run_killed_while_it_opens_a_new_folder_can_open_it_again(data, cut, whole, tmp_path):
    new = tmp_path / "new"
    arguments = flags(data, new, "--resume", cut / "checkpoints/step-4")
    calls = logged_calls(arguments, new, tmp_path / "log")
    of_metrics = next(i for i, (_, path) in enumerate(calls, 1) if path.endswith("metrics.jsonl"))
    for at in of_metrics, of_metrics + 1:
        shutil.rmtree(new)
        assert run(arguments, **faults(new, "kill", at)).returncode == -9
        done = run(arguments)
        assert done.returncode == 0, (at, calls[at - 1], done.stderr)
    assert model_of(new) == model_of(whole)


def test_a_run_that_fails_while_it_opens_its_folder_says_so_in_run_json(data, cut, tmp_path):
    new = tmp_path / "new"
    arguments = flags(data, new, "--resume", cut / "checkpoints/step-4")
    calls = logged_calls(arguments, new, tmp_path / "log")
    of_vocab = next(i for i, (_, path) in enumerate(calls, 1) if "tokenizer.json" in path)
    shutil.rmtree(new)
    assert run(arguments, **faults(new, "ENOSPC", of_vocab)).returncode == 1
    told = json.loads((new / "run.json").read_text())
    assert told["status"] == "failed" and "tokenizer.json" in told["error"] and (new / "report.html").exists()
    assert run(arguments).returncode == 0


def test_a_run_stopped_in_its_last_evaluation_keeps_the_checkpoint_before_it(data, tmp_path):
    out = tmp_path / "out"
    arguments = flags(data, out, "--eval-every", 100, "--save-every", 6)
    calls = logged_calls(arguments, out, tmp_path / "log")
    last_save = max(i for i, (call, path) in enumerate(calls, 1) if call == "rename" and "step-6" in path)
    of_records = [i for i, (_, path) in enumerate(calls, 1) if i > last_save and path.endswith("metrics.jsonl")]
    stopped = 0
    for at in of_records:
        shutil.rmtree(out)
        stopped += run(arguments, **faults(out, term_at=at)).returncode == 143
        assert json.loads((out / "checkpoints/step-6/state.json").read_text())["best"] is None, calls[at - 1]
    assert stopped > 0


def test_an_overwrite_that_was_killed_leaves_checkpoints_whole_or_none(data, cut, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(cut, copy)
    calls = logged_calls(flags(data, cut, "--overwrite"), cut, tmp_path / "log")
    first_save = next(i for i, (_, path) in enumerate(calls, 1) if "weights.safetensors" in path and "open" == calls[i - 1][0])
    points = [i for i, (call, path) in enumerate(calls[:first_save], 1) if "/checkpoints" in path and call in ("rename", "unlink", "remove", "rmdir")]
    for at in points[:2] + points[3::3]:
        shutil.rmtree(cut)
        shutil.copytree(copy, cut)
        assert run(flags(data, cut, "--overwrite"), **faults(cut, "kill", at)).returncode == -9
        done = run(flags(data, cut, "--resume", "auto"))
        assert done.returncode == 0 and "passed over" not in done.stderr, (at, calls[at - 1], done.stderr)


def test_a_restart_goes_on_from_what_the_run_saved_itself(data, cut, tmp_path):
    new = tmp_path / "new"
    shutil.copytree(cut / "checkpoints/step-4", tmp_path / "step-4")
    arguments = flags(data, new, "--save-every", 1, "--resume", tmp_path / "step-4")
    calls = logged_calls(arguments, new, tmp_path / "log")
    shutil.rmtree(new)
    of_sixth = next(i for i, (_, path) in enumerate(calls, 1) if "step-6" in path)
    done = run(["launch", "--nproc", 1, "--max-restarts", 1, "--", *arguments], **faults(new, "kill", of_sixth))
    assert re.findall(r"resumed after step (\d+)", done.stderr)[:2] == ["4", "5"], done.stderr


def test_one_rank_warns_of_a_damaged_checkpoint(data, cut):
    shutil.copytree(cut / "checkpoints/step-4", cut / "checkpoints/step-6")
    flip_a_byte(cut / "checkpoints/step-6/state.json")
    done = run(["launch", "--nproc", 2, "--", *flags(data, cut, "--resume", "auto")])
    assert done.stderr.count("checkpoint passed over") == 1, done.stderr


def test_a_run_whose_records_are_gone_says_so(data, cut):
    (cut / "metrics.jsonl").unlink()
    done = trained(flags(data, cut, "--resume", "auto"))
    assert f"warning: {cut}/metrics.jsonl is missing: curves and report begin after step 4" in done.stderr
    assert [step for step, _ in tiny_runs.losses_of(cut)] == [5, 6]


def test_evaluations_must_agree_only_where_the_schedule_follows_them(data, tmp_path):
    greedy = ["--schedule", "greedy"]
    trained(flags(data, tmp_path / "greedy", *greedy))
    said = refused(flags(data, tmp_path / "greedy", *greedy, "--eval-every", 2, "--resume", "auto"), tmp_path / "greedy")
    assert "eval-every was '1', is now '2'" in said
    trained(flags(data, tmp_path / "plain"))
    trained(flags(data, tmp_path / "plain", "--eval-every", 2, "--resume", "auto", "--overwrite"))


def test_a_run_goes_on_in_another_folder_with_its_best_model(data, whole, cut, tmp_path):
    """The best weights lie in no other folder than the old one, which is gone."""
    shutil.move(cut / "checkpoints/step-4", tmp_path / "step-4")
    shutil.rmtree(cut)
    resume = ["--resume", tmp_path / "step-4"]
    trained(flags(data, tmp_path / "new", *resume))
    assert model_of(tmp_path / "new") == model_of(whole)
    again = flags(data, tmp_path / "new", *resume)
    assert "holds the finished run of this checkpoint already" in refused(again, tmp_path / "new")
    # Not if the folder has a model already, or another run.
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    shutil.copy(whole / "model.safetensors", foreign)
    assert "holds model.safetensors, but no run.json of a run" in refused(flags(data, foreign, *resume), foreign)
    trained(flags(data, tmp_path / "other", "--seed", 5))
    for more in [], ["--overwrite"]:
        said = refused(flags(data, tmp_path / "other", *resume, *more), tmp_path / "other")
        assert "of another run than the checkpoint of --resume" in said


def test_a_run_that_died_before_its_first_checkpoint_begins_anew_only_as_itself(data, whole, tmp_path):
    output = tmp_path / "out"
    calls = logged_calls(flags(data, output), output, tmp_path / "log")
    first_save = next(i for i, (_, path) in enumerate(calls, 1) if "/checkpoints" in path)
    shutil.rmtree(output)
    run(flags(data, output), **faults(output, "kill", first_save))
    model, losses = model_of(output), losses_of(output)
    assert losses
    assert "holds another run: seed was '2', is now '5'" in refused(flags(data, output, "--seed", 5, "--resume", "auto"), output)
    assert "holds a run already" in refused(flags(data, output), output)
    done = trained(flags(data, output, "--resume", "auto"))
    kept = output / "before-restart-1"
    assert re.search(f"^no checkpoint in .*, starting anew; the earlier files are kept in {kept}$", done.stderr, re.M)
    assert model_of(output) == model_of(whole)
    assert model_of(kept) == model and losses_of(kept) == losses


def start_and_wait(arguments, output):
    """A run that is going on: it is at a step."""
    process = subprocess.Popen([PROGRAM, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "OMP_NUM_THREADS": "1"})
    metrics = output / "metrics.jsonl"
    end = time.monotonic() + 120
    while not (metrics.exists() and metrics.stat().st_size > 0):
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.01)
    return process


@pytest.fixture
def going_on(data, tmp_path):
    output = tmp_path / "out"
    process = start_and_wait(flags(data, output, "--max-steps", 1_000_000, "--eval-every", 0), output)
    yield process, output
    process.kill()
    process.wait()
    process.stderr.close()


def test_two_runs_do_not_share_a_folder(data, going_on):
    process, output = going_on
    for more in [], ["--overwrite"], ["--resume", "auto"]:
        done = run(flags(data, output, *more))
        assert done.returncode == 1
        assert re.search(rf"--output \S+: a run is writing there \(process {process.pid} on \S+\); wait for its end", done.stderr)
    process.send_signal(signal.SIGTERM)
    stderr = process.stderr.read()
    assert process.wait(timeout=120) == 143, stderr
    assert not (output / ".run.lock").exists()


def test_a_run_that_was_killed_leaves_no_lock(data, going_on):
    process, output = going_on
    process.kill()
    process.wait()
    assert (output / ".run.lock").exists()
    trained(flags(data, output, "--overwrite"))
    assert not (output / ".run.lock").exists()


def replace_folder(output):
    output.rename(output.parent / "moved")
    output.mkdir()


@pytest.mark.parametrize("loss", [shutil.rmtree, lambda output: output.rename(output.parent / "moved"), replace_folder,
                                  lambda output: (output / "metrics.jsonl").unlink()], ids=["removed", "moved", "replaced", "metrics"])
def test_a_folder_that_goes_while_the_run_is_going_ends_it(going_on, loss):
    process, output = going_on
    process.send_signal(signal.SIGSTOP)  # lest it makes files while the folder is emptied
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1]), "none of its threads goes on"
    loss(output)
    process.send_signal(signal.SIGCONT)
    stderr = process.stderr.read()
    assert process.wait(timeout=120) == 1, stderr
    assert re.search(r"metrics.jsonl: was removed, moved or replaced while the run was writing it, so the run ends here", stderr)
    saved = any((output / "checkpoints").glob("step-*"))
    assert saved == (output / "run.json").exists(), "unless the whole folder is gone"


def run_and_damage(commands, output, record, damage, tmp_path):
    """Runs to the `record`-th record of the metrics, does the damage, and lets the run go on. Returns it and its stderr."""
    calls = logged_calls(commands, output, tmp_path / "log")
    of_metrics = [i for i, (call, path) in enumerate(calls, 1) if call == "write" and path.endswith("metrics.jsonl")]
    shutil.rmtree(output)
    process = subprocess.Popen([PROGRAM, *commands], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "OMP_NUM_THREADS": "1", **faults(output, "stop", of_metrics[record])})
    os.waitpid(process.pid, os.WUNTRACED)
    damage()
    process.send_signal(signal.SIGCONT)
    _, stderr = process.communicate(timeout=120)
    return process, stderr


LAST_STEP = 2 * tiny_runs.STEPS - 2  # its record: each step has one, and one of dev


@pytest.mark.parametrize("damage", [flip_a_byte, lambda path: path.unlink()], ids=["flipped", "missing"])
def test_a_best_model_that_is_damaged_meanwhile_comes_back_from_a_checkpoint(data, whole, tmp_path, damage):
    output = tmp_path / "out"
    process, stderr = run_and_damage(flags(data, output), output, LAST_STEP, lambda: damage(output / "model.safetensors"), tmp_path)
    assert process.returncode == 0, stderr
    assert re.search(r"model.safetensors: is (damaged|missing): .*; put back from a checkpoint", stderr)
    assert model_of(output) == model_of(whole)


def replace_by_folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [flip_a_byte, lambda path: path.unlink(), replace_by_folder], ids=["flipped", "missing", "folder"])
@pytest.mark.parametrize("step", [5, 6])
def test_a_best_model_without_a_copy_ends_the_run_but_not_its_weights(data, tmp_path, damage, step):
    output = tmp_path / "out"
    more = ["--save-every", 0]
    process, stderr = run_and_damage(flags(data, output, *more), output, 2 * step - 2, lambda: damage(output / "model.safetensors"), tmp_path)
    assert process.returncode == 1, stderr
    assert re.search(r"[^.]\. It held the best weights, and no checkpoint has a copy of them", stderr.splitlines()[-1]), stderr
    assert [path.name for path in (output / "checkpoints").iterdir()] == [f"step-{step}"]
    if (output / "model.safetensors").is_dir():
        (output / "model.safetensors").rmdir()
    trained(flags(data, output, *more, "--resume", "auto"))
    assert json.loads((output / "run.json").read_text())["best_step"] >= step, "the best of those that are left"
    assert [record["step"] for record in records(output, "eval") if "final" not in record] == [1, 2, 3, 4, 5, 6]


def test_a_best_model_without_a_copy_is_found_again_after_an_earlier_checkpoint(data, whole, tmp_path):
    output = tmp_path / "out"
    more = ["--save-every", 3]  # the best model is that of step 4
    process, stderr = run_and_damage(flags(data, output, *more), output, LAST_STEP - 2, (output / "model.safetensors").unlink, tmp_path)
    assert process.returncode == 1 and checkpoints_of(output) == [3], stderr
    trained(flags(data, output, *more, "--resume", "auto"))
    assert model_of(output) == model_of(whole)


@pytest.mark.parametrize("record", [2, 3, 4, LAST_STEP + 2])
def test_metrics_that_somebody_moves_end_the_run_but_lose_no_step(data, whole, tmp_path, record):
    output = tmp_path / "out"
    def move():
        (output / "metrics.jsonl").rename(tmp_path / "moved.jsonl")
        (output / ".run.lock").unlink()

    more = ["--save-every", 0]
    process, stderr = run_and_damage(flags(data, output, *more), output, record, move, tmp_path)
    assert process.returncode == 1
    assert re.search(r"metrics.jsonl: was removed, moved or replaced .*; if it has checkpoints", stderr.splitlines()[-1]), stderr
    assert "resumed after step " in trained(flags(data, output, *more, "--resume", "auto")).stderr
    assert model_of(output) == model_of(whole)


@pytest.mark.parametrize("record", [2, 3, 4])
def test_a_folder_that_takes_the_place_of_the_run_s_is_not_touched(data, tmp_path, record):
    output = tmp_path / "out"
    def replace():
        output.rename(tmp_path / "moved")
        output.mkdir()
        for name in "config.json", "model.safetensors":
            (output / name).write_text("mine")

    process, stderr = run_and_damage(flags(data, output), output, record, replace, tmp_path)
    assert process.returncode == 1, stderr
    assert {path.name: path.read_text() for path in output.iterdir()} == {"config.json": "mine", "model.safetensors": "mine"}


@pytest.mark.parametrize("resume", [[], ["--resume", "auto"]], ids=["new", "resumed"])
def test_a_folder_that_is_taken_away_at_the_start_is_not_made_again(data, tmp_path, resume):
    output = tmp_path / "out"
    if resume:
        trained(flags(data, output, "--pause-at", 0.5))
        shutil.copytree(output, tmp_path / "copy")
    calls = logged_calls(flags(data, output, *resume), output, tmp_path / "log")
    first_step = next(i for i, (call, path) in enumerate(calls, 1) if call == "write" and path.endswith("metrics.jsonl"))
    begin = next(i for i, (_, path) in enumerate(calls, 1) if path.endswith(".run.lock")) + 1
    for call in range(begin, first_step, 4):
        shutil.rmtree(output)
        if resume:
            shutil.copytree(tmp_path / "copy", output)
        process = subprocess.Popen([PROGRAM, *flags(data, output, *resume)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, "OMP_NUM_THREADS": "1", **faults(output, "stop", call)})
        os.waitpid(process.pid, os.WUNTRACED)
        output.rename(tmp_path / "moved")
        process.send_signal(signal.SIGCONT)
        _, stderr = process.communicate(timeout=120)
        assert process.returncode == 1 and not output.exists(), (calls[call - 1], stderr)
        (tmp_path / "moved").rename(output)


def test_a_folder_of_checkpoints_that_is_away_is_not_taken_for_none(data, cut, tmp_path):
    (cut / "checkpoints").rename(tmp_path / "disk")
    (cut / "checkpoints").symlink_to(tmp_path / "away")
    assert "checkpoints: cannot be searched for checkpoints: No such file or directory" in refused(flags(data, cut, "--resume", "auto"), cut)
    (tmp_path / "disk").rename(tmp_path / "away")
    assert "resumed after step 4" in trained(flags(data, cut, "--resume", "auto")).stderr


def test_what_was_being_kept_when_a_run_was_killed_is_kept_whatever_comes_next(data, finished):
    (finished / ".before-restart").mkdir()
    (finished / ".before-restart/model.safetensors").write_text("of an earlier run")
    trained(flags(data, finished, "--overwrite"))
    assert (finished / "before-restart-1/model.safetensors").read_text() == "of an earlier run"


def test_a_run_that_has_gone_on_elsewhere_is_not_taken_back_unasked(data, whole, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(whole, old)
    again = flags(data, new, "--resume", old / "checkpoints/step-4", "--save-every", 1)
    shutil.copytree(old, new)
    (new / "run.json").write_text(json.dumps({**json.loads((new / "run.json").read_text()), "finished": False}))
    assert f"--resume: {new} continued from this checkpoint to step 6; pass --resume auto" in refused(again, new)
    done = trained([*again, "--overwrite"])
    assert "checkpoints of later steps were removed: 6\n" in done.stderr
    assert model_of(new) == model_of(whole)


def test_what_a_killed_run_left_half_written_is_removed(data, cut, whole):
    for name in ".model.safetensors.123.4.tmp", ".run.json.1.0.tmp":
        (cut / name).write_text("half")
    for name in "checkpoints/.step-5.tmp", "checkpoints/.step-4.replaced":
        shutil.copytree(cut / "checkpoints/step-4", cut / name)
    (cut / ".mine.1.0.tmp").write_text("mine")
    trained(flags(data, cut, "--resume", "auto"))
    assert sorted(path.name for path in cut.rglob(".*")) == [".mine.1.0.tmp"]
    assert model_of(cut) == model_of(whole)


def test_a_checkpoint_that_was_being_replaced_is_found(data, cut, whole):
    (cut / "checkpoints/step-4").rename(cut / "checkpoints/.step-4.replaced")
    shutil.rmtree(cut / "checkpoints/step-2", ignore_errors=True)
    assert "resumed after step 4" in trained(flags(data, cut, "--resume", "auto")).stderr
    assert model_of(cut) == model_of(whole)


def test_going_back_to_an_earlier_checkpoint_leaves_the_later_ones_behind(data, whole, tmp_path):
    output = tmp_path / "out"
    shutil.copytree(whole, output)
    trained(flags(data, output, "--save-every", 5, "--keep", 9, "--resume", output / "checkpoints/step-4", "--overwrite"))
    assert checkpoints_of(output) == [4, 5, 6]
    assert model_of(output) == model_of(whole) and losses_of(output) == losses_of(whole)


LENGTHS = [["--schedule", "constant"], ["--schedule", "reduce_lr_on_plateau", "--lr-patience", 0], ["--schedule", "inverse_sqrt"]]


@pytest.mark.parametrize("eval_every", [2, 4])
@pytest.mark.parametrize("schedule", LENGTHS, ids=lambda schedule: schedule[1])
def test_a_finished_run_is_extended_as_if_it_had_been_planned_so(schedule, eval_every, data, tmp_path):
    more = [*schedule, "--eval-every", eval_every, "--save-every", 4]
    trained(flags(data, tmp_path / "planned", "--max-steps", 14, *more))
    trained(flags(data, tmp_path / "out", "--max-steps", 10, *more))
    assert checkpoints_of(tmp_path / "out")[-1] == 10, "the last step is saved, too"
    done = trained(flags(data, tmp_path / "out", "--max-steps", 14, *more, "--resume", "auto"))
    assert "resumed after step 10" in done.stderr
    assert model_of(tmp_path / "out") == model_of(tmp_path / "planned")
    for kind in "step", "eval":
        both = [[{**r, "seconds": 0, "parts": 0} for r in records(tmp_path / name, kind)] for name in ("planned", "out")]
        assert both[0] == both[1]


def test_a_run_is_extended_only_where_its_schedule_does_not_know_its_end(data, tmp_path):
    more = ["--save-every", 4, "--schedule", "linear"]
    trained(flags(data, tmp_path / "out", "--max-steps", 8, *more))
    assert "max-steps was '8', is now '12', which changes the schedule's learning rates" in refused(flags(data, tmp_path / "out", "--max-steps", 12, *more, "--resume", "auto"), tmp_path / "out")
    more = ["--save-every", 4, "--schedule", "constant", "--warmup-ratio", 0.5]
    trained(flags(data, tmp_path / "warm", "--max-steps", 8, *more))
    assert "max-steps was '8', is now '12', which changes the schedule's learning rates" in refused(flags(data, tmp_path / "warm", "--max-steps", 12, *more, "--resume", "auto"), tmp_path / "warm")


def test_a_finished_run_without_more_steps_or_checkpoints_says_so(data, tmp_path):
    more = ["--schedule", "constant", "--save-every", 4]
    trained(flags(data, tmp_path / "out", "--max-steps", 8, *more))
    for steps in 8, 6:
        left_alone(flags(data, tmp_path / "out", "--max-steps", steps, *more, "--resume", "auto"), tmp_path / "out")
    shutil.rmtree(tmp_path / "out/checkpoints")
    message = refused(flags(data, tmp_path / "out", "--max-steps", 12, *more, "--resume", "auto"), tmp_path / "out")
    assert "holds a finished run without a checkpoint" in message


def test_a_finished_run_is_extended_from_its_end_alone(data, tmp_path):
    more = ["--schedule", "constant", "--save-every", 4]
    trained(flags(data, tmp_path / "out", "--max-steps", 8, *more))
    earlier = tmp_path / "out/checkpoints/step-4"
    assert "--overwrite to go back to step 4" in refused(flags(data, tmp_path / "out", "--max-steps", 12, *more, "--resume", earlier), tmp_path / "out")
    trained(flags(data, tmp_path / "out", "--max-steps", 12, *more, "--resume", tmp_path / "out/checkpoints/step-8"))
    assert losses_of(tmp_path / "out")[-1][0] == 12


def test_a_run_that_lost_patience_is_finished(data, tmp_path):
    more = ["--schedule", "constant", "--save-every", 50, "--patience", 2, "--max-steps", 40]
    trained(flags(data, tmp_path / "out", *more))
    steps = json.loads((tmp_path / "out/run.json").read_text())["steps"]
    assert steps < 40 and tiny_runs.checkpoints_of(tmp_path / "out") == [steps], "the end is kept, as it is after the last step"
    left_alone(flags(data, tmp_path / "out", *more, "--resume", "auto"), tmp_path / "out")
