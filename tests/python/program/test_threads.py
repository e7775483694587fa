"""How many threads mezzo takes: as told, or as many as this process may use, quotas of containers included."""
import os
import re
import subprocess
import uuid
from pathlib import Path

import pytest
from support import PROGRAM
from tiny_runs import flags, write_data

GROUPS = Path("/sys/fs/cgroup")


@pytest.fixture
def quota():
    """Runs a command in a control group that lets one processor's worth of time."""
    group = (GROUPS / "cpu" if (GROUPS / "cpu").is_dir() else GROUPS) / f"mezzo-{uuid.uuid4().hex}"
    try:
        group.mkdir()
        if (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_quota_us").write_text("100000")
        else:
            (group / "cpu.max").write_text("100000 100000")
    except OSError:
        if group.exists():
            group.rmdir()
        pytest.skip("this machine lets nobody make a control group")
    yield lambda command: ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *command]
    group.rmdir()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


def threads_of(command, **variables):
    unset = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env={**environment, **variables})
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor is one thread anyway")
def test_a_quota_is_heeded_unless_somebody_says_otherwise(quota, data, tmp_path):
    def train(name, *more):
        given = flags(data, tmp_path / name, *more)
        at = given.index("--threads")
        return [PROGRAM, *given[:at], *given[at + 2:]]

    assert "cpu, 1 thread\n" in threads_of(quota(train("one")))
    assert "cpu, 2 threads\n" in threads_of(quota(train("env")), OMP_NUM_THREADS="2")
    assert "cpu, 2 threads\n" in threads_of(quota([*train("flag"), "--threads", 2]))
    assert "each on cpu, 1 thread\n" in threads_of(quota([PROGRAM, "launch", "--nproc", 2, "--", *train("ranks")[1:]]))


def spin_count(**variables):
    shown = threads_of([PROGRAM, "--version"], OMP_DISPLAY_ENV="VERBOSE", **variables)
    return re.search(r"GOMP_SPINCOUNT = '(\w+)'", shown)[1]


def test_threads_spin_for_microseconds_unless_the_environment_says_otherwise():
    assert spin_count() == "1000"
    assert spin_count(GOMP_SPINCOUNT="7") == "7"
    assert int(spin_count(OMP_WAIT_POLICY="active")) > 1_000_000
