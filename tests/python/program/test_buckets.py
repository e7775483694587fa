"""Checkpoints on a file system that renames by copying and keeps no promise of fsync, as mounts of buckets do."""
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


@pytest.mark.parametrize("lost", [0, 3])
def test_a_checkpoint_is_complete_or_passed_over(data, whole, calls, tmp_path, lost):
    """Killed within the renames of the second checkpoint and the third: a half of a file, of a folder, or of what was written last."""
    chosen = [number for number, path in calls if path.startswith(("checkpoints/step-4", "checkpoints/step-6"))]
    assert len(chosen) > 20
    passed_over = 0
    for call in chosen[lost::10]:
        output = tmp_path / str(call)
        done = broken(data, output, call, lost)
        assert done.returncode == 0 and model_of(output) == whole, (call, done.stderr)
        assert "resumed after step " in done.stderr
        passed_over += done.stderr.count("warning: checkpoint passed over: ")
        assert 6 in checkpoints_of(output)
        shutil.rmtree(output)
    assert passed_over > 0


def test_a_first_checkpoint_that_is_damaged_is_named(data, calls, tmp_path):
    call = next(number for number, path in calls if path == "checkpoints/step-2/weights.safetensors") + 1
    done = broken(data, tmp_path / "out", call, 0)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert f"no checkpoint in {tmp_path}/out/checkpoints is intact: {tmp_path}/out/checkpoints/step-2/" in done.stderr
    shutil.rmtree(tmp_path / "out/checkpoints/step-2")
    trained(flags(data, tmp_path / "out", "--resume", "auto"))
