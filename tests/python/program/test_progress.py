"""The progress bar of `mezzo train` in a terminal."""
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

import pytest
from support import PROGRAM
from tiny_runs import flags, write_data


def lines_in_terminal(arguments, columns):
    """The output on a terminal of that width, by line."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([PROGRAM, *arguments], stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs, env=environment)
    os.close(theirs)
    drawn = b""
    try:
        while piece := os.read(ours, 65536):
            drawn += piece
    except OSError:  # the other end is closed
        pass
    assert process.wait(60) == 0, drawn
    return [line for line in re.split(r"[\r\n]+|\x1b\[K", drawn.decode()) if line.strip()]


@pytest.mark.parametrize("columns, pattern", [
    (120, r"100% ━{8,} 40/40  \d:\d\d elapsed  loss \d\.\d{3}  best [01]\.\d{3}  epoch 6\.7  lr 0\.002  [\d.]+ samples/s"),
    (80, r"100% ━{8,} 40/40  \d:\d\d elapsed  loss \d\.\d{3}  best [01]\.\d{3}  epoch 6\.7  lr 0\.002"),
    (40, r"100% 40/40  \d:\d\d elapsed  loss \d\.\d{3}"),
])  # fmt: skip
def test_shows_loss_best_metric_epoch_and_rate(columns, pattern, tmp_path):
    given = flags(write_data(tmp_path), tmp_path / "out", "--max-steps", 40, "--learning-rate", 0.002, "--eval-every", 20, "--save-every", 0)
    lines = lines_in_terminal(given, columns)
    bars = [line for line in lines if re.match(r" *\d+%", line)]
    assert re.fullmatch(pattern, bars[-1].strip()), bars[-1]
    assert all(len(line) < columns for line in bars), bars
    for line in bars:  # the first ten steps say nothing of the time left
        step = int(re.search(r"(\d+)/40", line)[1])
        assert ("left" in line) == (10 <= step < 40), line
