"""The files of a run after a kill, or an error of the disk, at any of its writes."""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time

import pytest
import tiny_runs
from support import PROGRAM, last_counts
from tiny_runs import checkpoints_of, faults, flags, flip_a_byte, logged_calls, losses_of, model_of, run, sha, snapshot, trained

# Of each kind of run. `MEZZO_KILL_POINTS=80` makes 400 of the few.
KILL_POINTS = int(os.environ.get("MEZZO_KILL_POINTS", 3))
FAULT_POINTS = max(3, KILL_POINTS // 4)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny_runs.write_data(tmp_path_factory.mktemp("data"))


def spread(points, count):
    """`count` of them, evenly, or all."""
    points = list(points)
    return points if len(points) <= count else [points[(2 * i + 1) * len(points) // (2 * count)] for i in range(count)]


def changes(calls, condition):
    """The numbers of the calls that fulfil the condition and are not another write to the same file."""
    return [i + 1 for i, call in enumerate(calls) if condition(*call) and (i == 0 or call != calls[i - 1])]


def in_a_save(_, path):
    return "/checkpoints" in path


def outside_of_saves(_, path):
    return "/checkpoints" not in path and ".run.lock" not in path


def is_removal(call, path):
    return call in ("unlink", "rmdir", "remove") or (call == "rename" and path.endswith(".tmp"))


def leftovers(output):
    return [path.name for path in output.rglob("*") if path.name.startswith(".")]


def is_finished(output):
    run_json = output / "run.json"
    return run_json.exists() and json.loads(run_json.read_text())["finished"]


KINDS = {
    "fp32": (1, []),
    "bf16": (1, ["--precision", "bf16"]),
    "fp16-masters": (1, ["--precision", "fp16", "--master-weights", "--loss-scale", "dynamic:1024"]),
    "two-ranks": (2, []),
    "two-ranks-bf16-zero": (2, ["--precision", "bf16", "--zero-stage", 1]),
}


def command(kind, data, output, *more):
    ranks, extra = KINDS[kind]
    launch = ["launch", "--nproc", ranks, "--"] if ranks > 1 else []
    return [*launch, *flags(data, output, *extra, *more)]


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.slow) if "two-ranks" in kind else kind for kind in KINDS])
def test_a_run_killed_at_any_write_goes_on_to_the_same_bits(data, tmp_path, kind):
    whole = tmp_path / "whole"
    calls = logged_calls(command(kind, data, whole), whole, tmp_path / "log")
    in_saves, elsewhere = changes(calls, in_a_save), changes(calls, outside_of_saves)
    assert len(in_saves) > 60, "three saves: folders, files, flushes, renames"
    points = sorted(spread(in_saves, KILL_POINTS - KILL_POINTS // 3) + spread(elsewhere, KILL_POINTS // 3))
    for point in points:
        output = tmp_path / "cut"
        killed = run(command(kind, data, output), **faults(output, "kill", point))
        assert killed.returncode in (-9, 137), (point, calls[point - 1], killed.stderr)
        there = checkpoints_of(output)
        if is_finished(output):  # nothing is left to go on with
            assert model_of(output) == model_of(whole), (point, calls[point - 1])
            shutil.rmtree(output)
            continue
        done = run(command(kind, data, output, "--resume", "auto"))
        at = (point, calls[point - 1], done.stderr)
        assert done.returncode == 0, at
        resumed = re.search(r"resumed after step (\d+)", done.stderr)
        assert (int(resumed[1]) if resumed else None) == max(there, default=None), at
        assert "passed over" not in done.stderr, at
        assert model_of(output) == model_of(whole) and losses_of(output) == losses_of(whole), at
        assert leftovers(output) == [], at
        # Killed before it removed the oldest, a run that ends without another save keeps it.
        assert checkpoints_of(output)[-2:] == [4, 6], at
        shutil.rmtree(output)
    print(f"{kind}: {len(points)} of {len(calls)} points")


def in_a_folder(_, path):
    return ".run.lock" not in path


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    output = tmp_path_factory.mktemp("whole") / "out"
    trained(flags(data, output))
    return output


@pytest.fixture(scope="module")
def other(data, tmp_path_factory):
    output = tmp_path_factory.mktemp("other") / "out"
    trained(flags(data, output, "--seed", 3))
    return output


def put_cut(output, whole):
    """A run that was killed after its checkpoint of step 4."""
    shutil.copytree(whole, output)
    shutil.rmtree(output / "checkpoints/step-6")
    run_json = json.loads((output / "run.json").read_text())
    (output / "run.json").write_text(json.dumps({**run_json, "finished": False, "status": "running"}))


def killed_at_any_write(data, cut, prepare, more):
    """Yields the output of each life that was killed, and where."""
    prepare()
    calls = logged_calls(flags(data, cut, *more), cut, cut.with_name("log"))
    points = spread(changes(calls, in_a_folder), KILL_POINTS)
    for point in points:
        shutil.rmtree(cut)
        prepare()
        killed = run(flags(data, cut, *more), **faults(cut, "kill", point))
        at = (point, calls[point - 1], killed.stderr)
        assert killed.returncode == -9, at
        yield at
    print(f"{' '.join(map(str, more))}: {len(points)} of {len(calls)} points")


def test_a_resumed_run_that_is_killed_goes_on_to_the_same_bits(data, whole, tmp_path):
    cut = tmp_path / "cut"
    for at in killed_at_any_write(data, cut, lambda: put_cut(cut, whole), ["--resume", "auto"]):
        if not is_finished(cut):
            trained(flags(data, cut, "--resume", "auto"))
            assert leftovers(cut) == [], at
        assert (model_of(cut), losses_of(cut)) == (model_of(whole), losses_of(whole)), at


@pytest.mark.parametrize("keep", [1, 3])
def test_going_back_and_being_killed_loses_nothing(data, whole, tmp_path, keep):
    cut = tmp_path / "cut"
    more = ["--resume", cut / "checkpoints/step-4", "--overwrite", "--keep", keep]  # replaces step 6 by itself
    for at in killed_at_any_write(data, cut, lambda: shutil.copytree(whole, cut), more):
        if not is_finished(cut):
            trained(flags(data, cut, "--resume", "auto"))
        assert (model_of(cut), losses_of(cut)) == (model_of(whole), losses_of(whole)), at


def test_a_run_into_another_folder_that_is_killed_goes_on(data, whole, tmp_path):
    cut, old = tmp_path / "cut", tmp_path / "old"
    put_cut(old, whole)
    before = snapshot(old)
    prepare = lambda: cut.mkdir(exist_ok=True)
    more = ["--resume", old / "checkpoints/step-4"]
    for at in killed_at_any_write(data, cut, prepare, more):
        if not is_finished(cut):
            trained(flags(data, cut, *(["--resume", "auto"] if checkpoints_of(cut) else more)))
            assert leftovers(cut) == [], at
        assert model_of(cut) == model_of(whole), at
        assert snapshot(old) == before, at


@pytest.mark.parametrize("has_notes", [False, True])
def test_taking_the_place_of_a_run_and_being_killed_leaves_one_of_the_two(data, whole, other, tmp_path, has_notes):
    cut = tmp_path / "cut"
    notes = cut / "checkpoints/step-4/notes.txt"
    def prepare():
        shutil.copytree(other, cut)
        if has_notes:
            notes.write_text("mine")

    for at in killed_at_any_write(data, cut, prepare, ["--overwrite"]):
        assert not has_notes or any(path.read_text() == "mine" for path in cut.rglob("notes.txt")), at
        if is_finished(cut) and model_of(cut) == model_of(other):  # not begun; checkpoints are the first to go
            assert losses_of(cut) == losses_of(other), at
            trained(flags(data, cut, "--overwrite"))
        elif not is_finished(cut):
            trained(flags(data, cut, "--resume", "auto"))
        assert (model_of(cut), losses_of(cut)) == (model_of(whole), losses_of(whole)), at
        assert checkpoints_of(cut)[-2:] == [4, 6], at


def test_what_a_run_without_a_checkpoint_left_stays_together_when_its_successor_is_killed(data, whole, tmp_path):
    cut = tmp_path / "cut"
    kept = ["metrics.jsonl", "model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"]

    def prepare():
        put_cut(cut, whole)
        shutil.rmtree(cut / "checkpoints")
        (cut / "metrics.jsonl").write_text("\n".join((whole / "metrics.jsonl").read_text().splitlines()[:7]) + "\n")

    prepare()
    of_board = {path.name for path in (cut / "tensorboard").iterdir()}
    left = {name: sha(cut / name) for name in kept}
    shutil.rmtree(cut)
    for at in killed_at_any_write(data, cut, prepare, ["--resume", "auto", "--save-every", 0]):
        if not is_finished(cut):
            trained(flags(data, cut, "--resume", "auto", "--save-every", 0))
        assert model_of(cut) == model_of(whole), at
        first = cut / "before-restart-1"
        assert {name: sha(first / name) for name in kept} == left, at
        assert {path.name for path in (first / "tensorboard").iterdir()} >= of_board, at


@pytest.mark.parametrize("fault", ["EIO", "ENOSPC"])
def test_a_checkpoint_that_cannot_be_written_does_not_end_the_run(data, tmp_path, fault):
    whole = tmp_path / "whole"
    calls = logged_calls(flags(data, whole), whole, tmp_path / "log")
    # What fails in removing has no consequence, and without links files are copied.
    written = changes(calls, lambda call, path: in_a_save(call, path) and not is_removal(call, path) and call != "link")
    for point in spread(written, FAULT_POINTS):
        output = tmp_path / "out"
        done = run(flags(data, output), **faults(output, fault, point))
        at = (point, calls[point - 1], done.stderr)
        assert done.returncode == 3, at
        said = re.search(r"the checkpoint of step (\d) could not be saved(, training goes on)?: .*checkpoints", done.stderr)
        assert said and (said[2] is None) == (said[1] == "6"), at
        assert re.search(r"trained to the end, but 1 checkpoints? could not be saved", done.stderr), at
        assert model_of(output) == model_of(whole) and leftovers(output) == [], at
        shutil.rmtree(output)


def test_an_old_checkpoint_that_cannot_be_removed_is_only_warned_of(data, tmp_path):
    whole = tmp_path / "whole"
    calls = logged_calls(flags(data, whole, "--keep", 1), whole, tmp_path / "log")
    first = next(i for i, (call, path) in enumerate(calls, 1) if in_a_save(call, path) and is_removal(call, path))
    output = tmp_path / "out"
    done = trained(flags(data, output, "--keep", 1), **faults(output, "EIO", first))
    assert "the checkpoint of step 4 is saved, but an earlier one could not be removed: " in done.stderr
    assert "could not be saved" not in done.stderr and checkpoints_of(output)[-1] == 6


def test_a_lock_without_room_for_its_owner_s_name_is_a_lock(data, tmp_path):
    calls = logged_calls(flags(data, tmp_path / "whole"), tmp_path / "whole", tmp_path / "log")
    of_lock = next(i for i, (call, path) in enumerate(calls, 1) if call == "write" and path.endswith(".run.lock"))
    trained(flags(data, tmp_path / "out"), **faults(tmp_path / "out", "ENOSPC", of_lock))


def check_that_it_goes_on_to_the_same_bits(arguments, output, whole, fault, point, call):
    done = run(arguments, **faults(output, fault, point))
    at = (point, call, done.stderr)
    assert done.returncode == 1 and str(output) in done.stderr.splitlines()[-1], at
    trained([*arguments, "--resume", "auto"])
    assert model_of(output) == model_of(whole) and losses_of(output) == losses_of(whole), at
    shutil.rmtree(output)


@pytest.mark.parametrize("fault", ["EIO", "ENOSPC"])
def test_a_run_that_the_disk_ended_goes_on_to_the_same_bits(data, tmp_path, fault):
    whole, output = tmp_path / "whole", tmp_path / "out"
    calls = logged_calls(flags(data, whole), whole, tmp_path / "log")
    for point in spread(changes(calls, outside_of_saves), FAULT_POINTS):
        check_that_it_goes_on_to_the_same_bits(flags(data, output), output, whole, fault, point, calls[point - 1])


def test_a_run_that_the_disk_ended_after_it_saved_the_calibrated_model_goes_on_to_the_same_bits(data, tmp_path):
    """Its checkpoint, which is the first, holds the best weights as they were before."""
    whole, output, more = tmp_path / "whole", tmp_path / "out", ["--calibrate", "--save-every", 0]
    calls = logged_calls(flags(data, whole, *more), whole, tmp_path / "log")
    calibrated = max(i for i, call in enumerate(calls, 1) if call == ("rename", str(whole / "model.safetensors")))
    points = [point for point in changes(calls, outside_of_saves) if point > calibrated]
    for point in spread(points, FAULT_POINTS):
        check_that_it_goes_on_to_the_same_bits(flags(data, output, *more), output, whole, "ENOSPC", point, calls[point - 1])


def test_records_are_on_the_disk_before_the_checkpoint_of_their_steps(data, tmp_path):
    output = tmp_path / "out"
    calls = logged_calls(flags(data, output), output, tmp_path / "log")
    of_metrics = [(i, call) for i, (call, path) in enumerate(calls) if path == str(output / "metrics.jsonl")]
    for step in 2, 4, 6:
        saved = calls.index(("rename", str(output / f"checkpoints/step-{step}")))
        assert [call for i, call in of_metrics if i < saved][-1] == "fsync"


@pytest.mark.parametrize("fault", ["short", "EINVAL"])
def test_short_writes_and_file_systems_without_fsync_change_nothing(data, tmp_path, fault):
    trained(flags(data, tmp_path / "whole"))
    trained(flags(data, tmp_path / "out"), **faults(tmp_path / "out", fault))
    assert model_of(tmp_path / "out") == model_of(tmp_path / "whole")
    for name in ("weights.safetensors", "optimizer.safetensors"):
        assert sha(tmp_path / "out/checkpoints/step-6" / name) == sha(tmp_path / "whole/checkpoints/step-6" / name)


def test_a_disk_that_holds_one_checkpoint_but_not_two_still_gets_the_model(data, tmp_path):
    larger = tmp_path / "data"
    shutil.copytree(data, larger)
    config = json.loads((data / "config.json").read_text())
    (larger / "config.json").write_text(json.dumps({**config, "hidden_size": 64, "intermediate_size": 256}))
    whole, output = tmp_path / "whole", tmp_path / "small"
    more = ["--metric", "log_loss"]  # the first model is the best: another one would need space again
    trained(flags(larger, whole, *more))
    output.mkdir()

    def kilobytes(*paths):
        return sum(path.stat().st_size // 1024 + 4 for path in paths if path.is_file())

    checkpoint = kilobytes(*(whole / "checkpoints/step-4").iterdir())
    others = kilobytes(*(path for path in whole.rglob("*") if "checkpoints" not in str(path)))
    assert checkpoint > 4 * others - 4 * kilobytes(whole / "model.safetensors"), "the rest hardly counts"
    script = f'mount -t tmpfs -o size={others + 3 * checkpoint // 2}k mezzo "{output}" && "$@"; echo "status $?"; sha256sum "{output}/model.safetensors"'
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine allows no private mounts")
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script, "sh", PROGRAM, *flags(larger, output, "--save-every", 1, *more)],
                          capture_output=True, text=True)
    assert "status 3" in done.stdout, (done.stdout, done.stderr)
    assert "could not be saved, training goes on" in done.stderr and "no space left on the disk" in done.stderr
    assert model_of(whole) in done.stdout


def last_write_before_the_final_evaluation(data, tmp_path, more):
    """Trains to the end in tmp_path/whole. The number of the write after which its final evaluation begins."""
    whole = tmp_path / "whole"
    calls = logged_calls(flags(data, whole, *more), whole, tmp_path / "log")
    of_metrics = [i for i, (call, path) in enumerate(calls, 1) if call == "write" and path.endswith("metrics.jsonl")]
    return of_metrics[2 * tiny_runs.STEPS - 1]  # a step and an evaluation each


def test_a_signal_in_the_final_evaluation_saves_the_last_weights_not_the_best(data, tmp_path):
    more = ["--test", data / "dev.jsonl", "--save-every", 0]
    last_dev = last_write_before_the_final_evaluation(data, tmp_path, more)
    output = tmp_path / "out"
    done = run(flags(data, output, *more), **faults(output, term_at=last_dev))
    assert done.returncode == 143 and "stopped after step 6" in done.stderr, done.stderr
    without_dev = flags(data, tmp_path / "last", "--dev-ratio", 0)
    at = without_dev.index("--dev")
    trained(without_dev[:at] + without_dev[at + 2:])
    assert model_of(tmp_path / "last") != model_of(tmp_path / "whole"), "the best is not the last"
    assert sha(output / "checkpoints/step-6/weights.safetensors") == model_of(tmp_path / "last")
    trained(flags(data, output, *more, "--resume", "auto"))
    assert model_of(output) == model_of(tmp_path / "whole")


@pytest.mark.parametrize("save_every", [0, 2])
def test_a_run_stopped_in_its_final_evaluation_and_killed_while_it_saves_goes_on_to_the_same_bits(data, tmp_path, save_every):
    more = ["--test", data / "dev.jsonl", "--save-every", save_every]
    last_dev = last_write_before_the_final_evaluation(data, tmp_path, more)
    output = tmp_path / "out"
    calls = logged_calls(flags(data, output, *more), output, tmp_path / "log-of-stop", term_at=last_dev)
    points = [point for point in changes(calls, in_a_folder) if point > last_dev]
    assert points, "it saves"
    for point in spread(points, KILL_POINTS):
        shutil.rmtree(output)
        killed = run(flags(data, output, *more), **faults(output, "kill", point, term_at=last_dev))
        at = (point, calls[point - 1], killed.stderr)
        assert killed.returncode == -9, at
        trained(flags(data, output, *more, "--resume", "auto"))
        assert model_of(output) == model_of(tmp_path / "whole") and leftovers(output) == [], at
        assert losses_of(output) == losses_of(tmp_path / "whole"), at
    print(f"stopped in the final evaluation, --save-every {save_every}: {min(len(points), KILL_POINTS)} of {len(points)} points")


def test_damaged_checkpoints_do_not_count_among_those_kept(data, tmp_path):
    output = tmp_path / "out"
    more = ["--save-every", 1, "--keep", 3]
    calls = logged_calls(flags(data, tmp_path / "whole", *more), tmp_path / "whole", tmp_path / "log")
    of_fifth = next(i for i, (_, path) in enumerate(calls, 1) if "step-5" in path)
    run(flags(data, output, *more), **faults(output, "kill", of_fifth))
    assert checkpoints_of(output) == [2, 3, 4]
    flip_a_byte(output / "checkpoints/step-3/optimizer.safetensors")
    trained(flags(data, output, "--max-steps", 5, "--keep", 3, "--resume", "auto"))
    assert checkpoints_of(output) == [2, 3, 4, 5]


def test_the_best_weights_are_copied_into_checkpoints_once(data, tmp_path):
    output = tmp_path / "out"
    trained(flags(data, output, "--keep", 9))
    best = output / "checkpoints/step-4/weights.safetensors"
    assert sha(best) == model_of(output), "the best are those of step 4"
    assert [path.parent.name for path in output.glob("checkpoints/step-*/best.safetensors")] == ["step-6"]
    assert (output / "checkpoints/step-6/best.safetensors").samefile(best)
    trained(flags(data, output, "--keep", 9, "--save-every", 5, "--overwrite"))
    copy = output / "checkpoints/step-5/best.safetensors"
    assert sha(copy) == model_of(output)
    assert not copy.samefile(output / "model.safetensors"), "what damages the model spares the copy"


@pytest.mark.parametrize("kind", ["fp32", "fp16-masters", "two-ranks-bf16-zero"])
def test_time_makes_checkpoints_too_and_a_run_goes_on_from_them_to_the_same_bits(data, tmp_path, kind):
    whole, output = tmp_path / "whole", tmp_path / "out"
    by_time = lambda folder, *more: command(kind, data, folder, "--save-every", 0, *more)
    trained(by_time(whole))
    assert not (whole / "checkpoints").exists(), "no ten minutes have passed"
    trained(by_time(output, "--save-minutes", 1e-9, "--keep", 9))
    assert checkpoints_of(output) == [1, 2, 3, 4, 5, 6]
    assert model_of(output) == model_of(whole) and losses_of(output) == losses_of(whole)
    for step in 5, 2:
        done = trained(by_time(output, "--resume", output / f"checkpoints/step-{step}", "--overwrite"))
        assert f"resumed after step {step}" in done.stderr
        assert model_of(output) == model_of(whole) and losses_of(output) == losses_of(whole), step


@pytest.mark.parametrize("kind", ["fp32", pytest.param("two-ranks", marks=pytest.mark.slow)])
def test_a_run_killed_at_any_moment_while_it_saves_beside_training_goes_on_to_the_same_bits(data, tmp_path, kind):
    whole, output = tmp_path / "whole", tmp_path / "cut"
    often = ["--save-every", 1, "--keep", 2, "--max-steps", 60]
    trained(command(kind, data, whole, *often))
    rng, lives = random.Random(1), 0
    for life in range(2 * KILL_POINTS + 1):
        if is_finished(output):
            assert model_of(output) == model_of(whole) and losses_of(output) == losses_of(whole)
            shutil.rmtree(output)
        arguments = command(kind, data, output, *often, "--resume", "auto")
        if life == 2 * KILL_POINTS:
            assert "passed over" not in trained(arguments).stderr
            break
        process = subprocess.Popen([PROGRAM, *last_counts(arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True)
        there = checkpoints_of(output)
        while process.poll() is None and checkpoints_of(output) == there:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.2))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        stderr = process.communicate(timeout=60)[1]
        assert process.returncode in (0, -9), stderr
        lives += process.returncode != 0
    assert lives and model_of(output) == model_of(whole) and losses_of(output) == losses_of(whole)
    assert leftovers(output) == []


def test_a_finished_run_is_extended_only_from_its_end(data, tmp_path):
    output = tmp_path / "out"
    longer = flags(data, output, "--save-every", 0, "--max-steps", 9, "--schedule", "constant", "--warmup-ratio", 0, "--resume", "auto")
    trained(flags(data, output, "--save-every", 0, "--schedule", "constant", "--warmup-ratio", 0, "--save-minutes", 1e-9))
    shutil.rmtree(output / "checkpoints/step-6")
    before = snapshot(output)
    done = run(longer)
    assert done.returncode == 1 and snapshot(output) == before
    assert (f"{output} holds a run that finished after step 6, and the newest checkpoint there is of step 5. Pass "
            "--overwrite to go back to step 5 and replace the later steps") in done.stderr
    assert "resumed after step 5" in trained([*longer, "--overwrite"]).stderr
