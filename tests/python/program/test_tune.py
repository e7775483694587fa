"""mezzo tune: a search gives the results of its trials trained one by one. A stopped search resumes at the same
point."""
import json
import resource
import shutil
import signal
import subprocess
import time

import pytest
from support import PROGRAM, records
from tiny_runs import flags, model_of, run, sha, snapshot, trained, write_data

# Evaluated after each step: a pause is not an evaluation that the run would not have had.
TRAIN = {"recipe": "reference", "max-length": 16, "batch-size": 4, "max-steps": 8, "eval-every": 1, "precision": "fp32", "threads": 1}
SEARCH = ("learning-rate = {min = 1e-3, max = 0.3, log = true}", "weight-decay = [0.0, 0.5]", "seed = {min = 1, max = 100}")
FLAGS = ["--trials", 4, "--halving", 2, "--least-share", 0.25]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("tune") / "data")


def write_search(data, file, search=SEARCH, more=(), **train):
    settings = {"model-config": data / "config.json", "vocab": data / "vocab.txt", "train": data / "train.jsonl", "dev": data / "dev.jsonl",
                **TRAIN, **{name.replace("_", "-"): value for name, value in train.items()}}
    lines = [f"{name} = {json.dumps(value if isinstance(value, (int, float)) else str(value))}" for name, value in settings.items() if value is not None]
    file.write_text("\n".join([*more, "[train]", *lines, "[search]", *search]) + "\n")
    return file


def tune(config, output, *more):
    return run(list(map(str, ["tune", "--config", config, "--output", output, *FLAGS, *more])))


@pytest.fixture(scope="module")
def found(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("found")
    done = tune(write_search(data, folder / "search.toml"), folder / "out")
    assert done.returncode == 0, done.stderr
    return folder, done, json.loads((folder / "out" / "results.json").read_text())


def stripped(results):
    """Without times."""
    return {**results, "trials": [{**trial, "scores": [{name: value for name, value in score.items() if name != "seconds"}
                                                       for score in trial["scores"]]} for trial in results["trials"]]}


def test_trials_go_as_far_as_successive_halving_has_them(found):
    _, done, results = found
    assert results["finished"] and results["metric"] == "accuracy"
    assert [len(trial["scores"]) for trial in results["trials"]] == [3, 2, 1, 1]
    assert [trial["state"] for trial in results["trials"]] == ["finished", "dropped", "dropped", "dropped"]
    assert [(score["share"], score["step"]) for score in results["trials"][0]["scores"]] == [(0.25, 2), (0.5, 4), (1.0, 8)]
    after_first = {trial["trial"]: (-trial["scores"][0]["accuracy"], trial["scores"][0]["loss"]) for trial in results["trials"]}
    went_on = [trial["trial"] for trial in results["trials"] if len(trial["scores"]) > 1]
    assert max(after_first[number] for number in went_on) < min(key for number, key in after_first.items() if number not in went_on)
    assert f"best: trial {results['trials'][0]['trial']}, accuracy" in done.stdout and done.stdout.count("\ntrial") + done.stdout.startswith("trial") == 7


def test_a_trial_that_paused_is_the_run_that_did_not(found, data, tmp_path):
    folder, _, results = found
    best = results["trials"][0]
    settings = [word for name, value in best["settings"].items() for word in ("--" + name, value)]
    trained(["train", "--config", write_train(data, tmp_path / "train.toml"), *settings, "--output", tmp_path / "run"])
    paused = folder / "out" / "trials" / str(best["trial"])
    assert model_of(paused) == model_of(tmp_path / "run")
    losses = [[(record["step"], record["loss"]) for record in records(run, "step")] for run in (paused, tmp_path / "run")]
    assert losses[0] == losses[1] and len(losses[0]) == 8
    evaluations = [record["accuracy"] for record in records(tmp_path / "run", "eval") if not record.get("final")]
    assert best["scores"][-1]["accuracy"] == max(evaluations) and best["scores"][0]["accuracy"] == max(evaluations[:2])


def write_train(data, file):
    write_search(data, file)
    file.write_text(file.read_text().split("[train]\n")[1].split("[search]")[0])
    return file


def test_models_of_others_are_removed_and_their_records_stay(found):
    folder, _, results = found
    for place, trial in enumerate(results["trials"]):
        run_folder = folder / "out" / "trials" / str(trial["trial"])
        assert (run_folder / "model.safetensors").exists() == (place == 0)
        assert (run_folder / "report.html").exists() and len(records(run_folder, "step")) == trial["scores"][-1]["step"]
    best = folder / "out" / "trials" / str(results["trials"][0]["trial"])
    trained(["eval", "--model", best, "--data", json.loads((best / "run.json").read_text())["settings"]["dev"]])


@pytest.mark.parametrize(("change", "message"), [
    (lambda results: results.pop("metric"), "is not a record of a search: "),
    (lambda results: results["trials"].pop(), "has other settings than this search draws"),
    (lambda results: results["trials"][0].update(state="done"), "has an unknown state"),
    (lambda results: results["trials"][0]["scores"][0].pop("step"), "is not a record of a search: "),
    (lambda results: results["trials"][0]["scores"][0].update(accuracy="high"), "is not a record of a search: "),
    (lambda results: results["recipe"].update(seed="1"), "the search began with seed '1', which is now '0'"),
])
def test_results_that_lack_a_part_are_refused(found, tmp_path, change, message):
    folder, _, results = found
    shutil.copytree(folder / "out", tmp_path / "out")
    changed = json.loads(json.dumps(results))
    change(changed)
    (tmp_path / "out" / "results.json").write_text(json.dumps(changed))
    done = tune(folder / "search.toml", tmp_path / "out")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and "results.json: " in line and message in line


def test_what_cannot_be_written_is_told_with_its_cause(data, tmp_path):
    config = write_search(data, tmp_path / "search.toml")
    run(list(map(str, ["tune", "--config", config, "--output", tmp_path / "out", *FLAGS])), MEZZO_CPU_CAPABILITY="nonsense")
    done = subprocess.run(list(map(str, [PROGRAM, "tune", "--config", config, "--output", tmp_path / "out", *FLAGS])), capture_output=True,
                          text=True, timeout=120, restore_signals=False,  # Python ignores SIGXFSZ
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048)))
    assert done.returncode == 1 and "no space left on the disk, or above the file size limit" in done.stderr


def test_a_finished_search_whose_best_trial_is_gone_says_so(found, tmp_path):
    folder, _, results = found
    shutil.copytree(folder / "out", tmp_path / "out")
    best = tmp_path / "out" / "trials" / str(results["trials"][0]["trial"])
    shutil.rmtree(best)
    done = tune(folder / "search.toml", tmp_path / "out")
    said = "the best trial's file is missing. Restore it, or pass another --output to search again"
    assert (done.returncode, done.stdout) == (1, "") and done.stderr == f"mezzo tune: {best}/run.json: {said}\n"
    shutil.copytree(folder / "out" / "trials" / best.name, best)
    (best / "model.safetensors").unlink()
    done = tune(folder / "search.toml", tmp_path / "out")
    assert (done.returncode, done.stdout) == (1, "") and done.stderr == f"mezzo tune: {best}/model.safetensors: {said}\n"


def test_a_search_by_texts_that_it_trains_on_says_so(data, tmp_path):
    """As mezzo train does; of the trials that are in their logs."""
    config = write_search(data, tmp_path / "search.toml", dev=data / "train.jsonl")
    dry = tune(config, tmp_path / "out", "--dry-run")
    done = tune(config, tmp_path / "out")
    for said in dry, done:
        assert said.returncode == 0
        assert said.stderr.count(f"warning: the dev texts are the training file, {data}/train.jsonl: ") == 1, said.stderr
    assert tune(config, tmp_path / "out").stderr == "", "nothing is left to train"
    dry = tune(write_search(data, tmp_path / "search.toml", train=tmp_path / "none.jsonl"), tmp_path / "out", "--dry-run")
    assert (dry.returncode, dry.stdout) == (1, "") and dry.stderr.startswith(f"mezzo tune: {tmp_path}/none.jsonl: "), dry


def test_a_finished_search_is_left_as_it_is(found, tmp_path):
    folder, done, _ = found
    shutil.copytree(folder / "out", tmp_path / "out")
    before = snapshot(tmp_path / "out")
    again = tune(folder / "search.toml", tmp_path / "out")
    assert again.returncode == 0 and again.stderr == "" and snapshot(tmp_path / "out") == before
    ending = done.stdout[done.stdout.index("best: "):].replace(str(folder / "out"), str(tmp_path / "out"))
    assert again.stdout == "already finished: no trial is left to train\n" + ending


def test_a_score_that_is_not_defined_is_NaN(data, tmp_path):
    """The correlation of one answer to all texts, as they are the same."""
    for name, text in ("train.jsonl", "goal law"), ("dev.jsonl", "goal"):
        (tmp_path / name).write_text("".join(json.dumps(dict(text=text, label=i / 2)) + "\n" for i in range(6)))
    config = write_search(data, tmp_path / "search.toml", ["learning-rate = [0.01]"], train=tmp_path / "train.jsonl", dev=tmp_path / "dev.jsonl",
                          task="regression", metric="pearson", max_steps=2)
    done = tune(config, tmp_path / "out", "--trials", 1, "--halving", 1)
    assert done.returncode == 0 and "\nbest: trial 1, pearson NaN: " in done.stdout, done


def test_data_that_changed_is_another_search(found, data, tmp_path):
    (tmp_path / "dev.jsonl").write_text((data / "dev.jsonl").read_text())
    config = write_search(data, tmp_path / "search.toml", dev=tmp_path / "dev.jsonl")
    assert tune(config, tmp_path / "out").returncode == 0
    (tmp_path / "dev.jsonl").write_text("".join((data / "dev.jsonl").read_text().splitlines(keepends=True)[:20]))
    done = tune(config, tmp_path / "out")
    assert done.returncode == 2 and "results.json: the search began with contents of" in done.stderr and "dev.jsonl" in done.stderr


def test_trials_that_failed_are_tried_again(data, tmp_path, found):
    config = write_search(data, tmp_path / "search.toml")
    done = run(list(map(str, ["tune", "--config", config, "--output", tmp_path / "out", *FLAGS])), MEZZO_CPU_CAPABILITY="nonsense")
    assert done.returncode == 1 and "no trial could be trained; the first: mezzo train: " in done.stderr, done.stderr
    done = tune(config, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert stripped(json.loads((tmp_path / "out" / "results.json").read_text())) == stripped(found[2])


@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_search_that_was_broken_off_ends_as_one_that_was_not(found, data, tmp_path, parallel, number):
    _, _, results = found
    config = write_search(data, tmp_path / "search.toml")
    command = list(map(str, [PROGRAM, "tune", "--config", config, "--output", tmp_path / "out", *FLAGS, "--parallel", parallel]))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    first = process.stdout.readline()  # one trial has had its first part
    process.send_signal(number)
    rest = process.communicate(timeout=120)[0]
    assert first.startswith("trial ") and process.returncode == (143 if number == signal.SIGTERM else -number)
    assert number == signal.SIGKILL or "the same command resumes it" in rest
    deadline = time.monotonic() + 60
    while True:  # the trials of one that was killed end with it
        done = tune(config, tmp_path / "out", "--parallel", parallel)
        if done.returncode == 0 or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    assert done.returncode == 0, done.stderr
    assert "goes on: " in done.stdout
    again = json.loads((tmp_path / "out" / "results.json").read_text())
    assert stripped(again) == stripped(results)
    best = str(results["trials"][0]["trial"])
    assert model_of(tmp_path / "out" / "trials" / best) == sha(found[0] / "out" / "trials" / best / "model.safetensors")


def test_a_dry_run_shows_the_trials_and_makes_nothing(data, tmp_path, found):
    done = tune(write_search(data, tmp_path / "search.toml"), tmp_path / "out", "--dry-run")
    assert done.returncode == 0 and not (tmp_path / "out").exists()
    lines = done.stdout.splitlines()
    shown = {f"trial {trial['trial']}:" + "".join(f" --{name} {value}" for name, value in trial["settings"].items())
             for trial in found[2]["trials"]}
    assert set(lines[:4]) == shown
    assert lines[4:] == ["4 trained to 25 % of the steps", "2 trained to 50 % of the steps", "1 trained to 100 % of the steps",
                         "together the steps of 2.0 whole runs"]


@pytest.mark.parametrize("change, message", [
    (dict(search=["learning-rat = [1e-3]"]), "search.toml:14: 'learning-rat' is not a setting of mezzo train. Did you mean 'learning-rate'?"),
    (dict(search=["epochs = {min = 4, max = 2}"]), "search.toml:14: 'epochs' needs a min below its max"),
    (dict(search=["learning-rate = {min = 0.0, max = 2, log = true}"]), "search.toml:14: 'learning-rate' needs a min below its max, both above 0"),
    (dict(search=["learning-rate = {min = 0.1, max = 2, step = 1}"]), "search.toml:14: 'step' of 'learning-rate' does not fit. A range has min and max"),
    (dict(search=["epochs = 3"]), "search.toml:14: 'epochs' must be an array of values, or a range"),
    (dict(search=["epochs = []"]), "search.toml:14: 'epochs' must be an array of values, or a range"),
    (dict(search=["epochs = ['many']"]), "search.toml:14: --epochs 'many' is neither 'auto' nor a number"),
    (dict(search=["eager = [true, false]"]), "search.toml:14: 'eager' cannot be searched"),
    (dict(search=["batch-size = [4, 8]"]), "search.toml:14: 'batch-size' occurs twice; remove one"),
    (dict(search=["batch_size = [4, 8]"]), "search.toml:14: 'batch_size' occurs twice; remove one"),
    (dict(search=["metric = ['accuracy', 'macro_f1']"]), "search.toml:14: 'metric' must be the same for all trials; put it into [train]"),
    (dict(search=["output = ['a']"]), "search.toml:14: 'output' cannot be set for a search"),
    (dict(search=["weight-decay = [-1.0, 0.1]"]), "--weight-decay"),
    (dict(search=[]), "search.toml: has no table [search], which holds the settings to try"),
    (dict(folds=3), "'folds' cannot be set for a search"),
    (dict(dev=None, dev_ratio=0), "a search compares trials on dev"),
    (dict(more=["trails = 3"]), "search.toml:1: 'trails' is not a setting of mezzo tune. Did you mean 'trials'?"),
    (dict(more=["epochs = 3"]), "search.toml:1: 'epochs' is not a setting of mezzo tune; put it into [train]"),
    (dict(more=["keep = 0"]), "search.toml:1: --keep is 0, expected 1 to 10000"),
    (dict(more=["parallel = 1001"]), "search.toml:1: --parallel is 1001, expected 0 to 1000"),
    (dict(precision=None, search=["bf16 = [true, false]"]), "search.toml:13: 'bf16' cannot be searched"),
    (dict(more=["[serch]"]), "[serch] is not a table of a search, which has [train] and [search]"),
])
def test_wrong_searches_are_refused_before_anything_is_made(data, tmp_path, change, message):
    done = tune(write_search(data, tmp_path / "search.toml", **change), tmp_path / "out")
    assert done.returncode == 2 and done.stdout == "", done.stdout
    assert message in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "out").exists()


def test_train_may_have_what_a_search_has_too(data, tmp_path):
    search = ["learning-rate = [0.01, 0.02]"]
    done = tune(write_search(data, tmp_path / "search.toml", search=search, seed=7), tmp_path / "out", "--trials", 2, "--halving", 1)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "trials" / "1" / "run.json").read_text())["settings"]["seed"] == "7"


def test_whoever_reads_may_go_away(data, tmp_path):
    config = write_search(data, tmp_path / "search.toml")
    process = subprocess.Popen(list(map(str, [PROGRAM, "tune", "--config", config, "--output", tmp_path / "out", *FLAGS])), stdout=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=120) == -signal.SIGPIPE
    assert json.loads((tmp_path / "out" / "results.json").read_text())["finished"]


@pytest.mark.parametrize("schedule", [["--schedule", "reduce_lr_on_plateau", "--lr-patience", 0, "--warmup-ratio", 0], ["--schedule", "linear", "--patience", 3]])
def test_a_pause_between_evaluations_changes_no_number(data, tmp_path, schedule):
    common = ["--eval-every", 3, "--max-steps", 12, "--save-every", 0, *schedule]
    trained(flags(data, tmp_path / "whole", *common))
    for share in 0.2, 0.4, 0.6, 1:
        done = trained(flags(data, tmp_path / "paused", *common, "--resume", "auto", "--pause-at", share))
        assert share == 1 or "go on with --resume auto" in done.stderr
        status = json.loads((tmp_path / "paused" / "run.json").read_text())
        assert status["status"] == ("finished" if share == 1 else "stopped")
    steps = [[(record["loss"], record["lr"]) for record in records(tmp_path / run, "step")] for run in ("whole", "paused")]
    assert steps[0] == steps[1]
    evaluated = {record["step"] for record in records(tmp_path / "paused", "eval") if not record.get("final")}
    assert evaluated >= {3, 5, 8}, "a pause is evaluated"


def test_a_pause_at_a_checkpoint_that_was_not_evaluated_keeps_its_evaluation(data, tmp_path):
    out = tmp_path / "out"
    common = ["--eval-every", 100, "--max-steps", 8, "--save-every", 4]
    trained(flags(data, out, *common, "--pause-at", 0.75))
    state = out / "checkpoints" / "step-4" / "state.json"
    assert json.loads(state.read_text())["best"] is None
    trained(flags(data, out, *common, "--resume", state.parent, "--pause-at", 0.5))
    assert json.loads(state.read_text())["best"]["step"] == 4
    assert json.loads((out / "run.json").read_text())["best_step"] == 4


def test_a_search_with_other_settings_is_not_gone_on_with(found, data, tmp_path):
    folder, _, _ = found
    done = tune(write_search(data, tmp_path / "search.toml", max_grad_norm=0.5), folder / "out")
    assert done.returncode == 2 and "the search began with train max-grad-norm not set, which is now '--max-grad-norm=0.5'" in done.stderr, done.stderr
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("")
    done = tune(write_search(data, tmp_path / "search.toml"), tmp_path / "other")
    assert done.returncode == 2 and "holds no search, but other files; pass another --output" in done.stderr


def test_where_no_trial_can_be_trained_the_search_says_why(data, tmp_path):
    (tmp_path / "wrong.jsonl").write_text('{"text": 1}\n')
    done = tune(write_search(data, tmp_path / "search.toml", train=tmp_path / "wrong.jsonl"), tmp_path / "out")
    assert done.returncode == 1 and "no trial could be trained; the first: mezzo train: " in done.stderr and "wrong.jsonl:1" in done.stderr, done.stderr
