"""Checkpoints on a file system that renames by copying and keeps no promise of fsync, as mounts of buckets do."""
import os
import shutil

import pytest
from tiny_runs import checkpoints_of, faults, flags, logged_calls, model_of, run, trained, write_data


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    output = tmp_path_factory.mktemp("whole") / "out"
    trained(flags(data, output))
    return model_of(output)


@pytest.fixture(scope="module")
def calls(data, tmp_path_factory):
    """[(number, path)] of a run on such a file system that is not broken off."""
    folder = tmp_path_factory.mktemp("calls")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEZZO_LIES", "0")
        logged = logged_calls(flags(data, folder / "out"), folder / "out", folder / "log")
    return [(number, path.removeprefix(f"{folder}/out/")) for number, (_, path) in enumerate(logged, 1)]


def broken(data, output, call, lost):
    """A run that is killed at a call, and then what `--resume auto` makes of it."""
    assert run(flags(data, output), **faults(output, "kill", call), MEZZO_LIES=str(lost)).returncode == -9
    return run(flags(data, output, "--resume", "auto"))


def ends_as_if_whole(data, whole, output, call, lost):
    """What it says."""
    done = broken(data, output, call, lost)
    assert done.returncode == 0 and model_of(output) == whole, (call, done.stderr)
    assert 6 in checkpoints_of(output)
    shutil.rmtree(output)
    return done.stderr


@pytest.mark.parametrize("lost", [0, 3])
def test_a_checkpoint_is_complete_or_passed_over(data, whole, calls, tmp_path, lost):
    """Killed within the renames of the second checkpoint and the third. Half of a file, of a folder, or of the last written data
    is left."""
    chosen = [number for number, path in calls if path.startswith(("checkpoints/step-4", "checkpoints/step-6"))]
    assert len(chosen) > 20
    said = [ends_as_if_whole(data, whole, tmp_path / str(call), call, lost) for call in chosen[lost::10]]
    assert all("resumed after step " in told for told in said)
    assert any("warning: incomplete checkpoint ignored: " in told for told in said)
    assert not any("warning: checkpoint passed over: " in told for told in said), "none looks damaged"


@pytest.mark.parametrize("lost", [0, 3])
def test_a_run_whose_first_checkpoint_is_incomplete_starts_anew(data, whole, calls, tmp_path, lost):
    chosen = [number for number, path in calls if path.startswith("checkpoints/step-2")]
    said = [ends_as_if_whole(data, whole, tmp_path / str(call), call, lost) for call in chosen[1 + lost::6]]
    anew = [told for told in said if "starting anew; the earlier files are kept in" in told]
    assert anew and all("warning: incomplete checkpoint ignored: " in told for told in anew)


@pytest.mark.parametrize("lost", [0, 3])
def test_a_run_that_is_killed_in_its_first_second_begins_again(data, whole, calls, tmp_path, lost):
    """run.json is empty then, or half written."""
    first = next(number for number, path in calls if path.startswith("checkpoints"))
    for call in range(2, first, 3 if lost else 5):
        ends_as_if_whole(data, whole, tmp_path / str(call), call, lost)


def test_an_empty_run_json_makes_no_folder_that_of_a_run(data, tmp_path):
    """Nothing that somebody else wrote is replaced."""
    output = tmp_path / "out"
    output.mkdir()
    for contents in "", '{\n  "finished": false,\n  "run": "12':
        (output / "run.json").write_text(contents)
        (output / "config.json").write_text("mine")
        done = run(flags(data, output))
        assert done.returncode == 1 and "holds config.json, but no run.json of a run of mezzo" in done.stderr
        assert (output / "config.json").read_text() == "mine"
    (output / "config.json").unlink()
    (output / "run.json").write_text('{"mine": 1')
    assert "holds run.json, but no run.json of a run" in run(flags(data, output)).stderr


def test_an_old_list_of_a_folder_hides_no_checkpoint(data, whole, tmp_path):
    """And shows none that is gone."""
    output = tmp_path / "out"
    trained(flags(data, output, "--pause-at", 4 / 6))
    (output / "checkpoints/step-5").mkdir()
    done = trained(flags(data, output, "--resume", "auto"), LD_PRELOAD=os.environ["MEZZO_WRITE_FAULTS"],
                   MEZZO_STALE=str(output / "checkpoints/step-4"))
    assert "resumed after step 4" in done.stderr and model_of(output) == whole
    assert f"incomplete checkpoint ignored: {output}/checkpoints/step-5 has no whole manifest.json" in done.stderr
