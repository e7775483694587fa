"""tools/crash_test.py: some of its trials. It also finds faults."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import PROGRAM

TOOL = Path(__file__).resolve().parents[3] / "tools/crash_test.py"
TRIALS = int(os.environ.get("MEZZO_CRASH_TRIALS", 24))


def crash_test(folder, *flags, **variables):
    return subprocess.run([sys.executable, TOOL, "--jobs", "1", "--log", folder / "log", *map(str, flags)], capture_output=True,
                          text=True, env={**os.environ, **variables})


@pytest.mark.slow
def test_runs_broken_at_random_come_to_the_same_bits(tmp_path):
    done = crash_test(tmp_path, "--trials", TRIALS, "--results", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    lives = [life for trial in told for life in trial["lives"]]
    assert len(told) == TRIALS and sum(life["resumed"] for life in lives) >= TRIALS / 12, "faults that come in the middle of training"
    assert len({life["fault"] for life in lives}) > 6
    assert f"**{TRIALS} trials, {len(lives)} starts of the program, 0 inconsistencies**, of mezzo" in (tmp_path / "crash_test.md").read_text()


@pytest.mark.slow
def test_a_program_that_goes_on_otherwise_is_found_out(tmp_path):
    liar = tmp_path / "liar"
    # Trains other weights when it resumes, and reports success.
    liar.write_text(f'#!/bin/bash\ncase "$*" in *--resume*) set -- "${{@/--resume/--overwrite}}" --seed 9; set -- "${{@/#auto/--quiet}}";; esac\n'
                    f'exec "{PROGRAM}" "$@"\n')
    liar.chmod(0o755)
    for first in range(0, 60, 12):  # on a busy machine few of 12 runs are broken in the middle
        done = crash_test(tmp_path, "--first", first, "--trials", 12, "--keep", tmp_path / "kept", MEZZO_PROGRAM=str(liar))
        if done.returncode:
            break
    assert done.returncode == 1 and "other weights" in done.stdout, done.stdout + done.stderr
    assert list((tmp_path / "kept").glob("trial-*/life-0.txt"))
