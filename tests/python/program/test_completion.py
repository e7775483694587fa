"""What shells complete, by the shells themselves, and the manual page."""
import os
import pty
import re
import select
import shlex
import subprocess
import time

import pytest
from support import PROGRAM, mezzo

FOLDER = os.path.dirname(PROGRAM)
COMMANDS = re.findall(r"^  ([a-z][a-z0-9-]*) ", mezzo("--help").stdout, re.MULTILINE)


def flags_of(command):
    return set(re.findall(r"^ +(?:-\w, )?(--[a-z0-9-]+)", mezzo(command, "--help-all").stdout, re.MULTILINE))


FLAGS = {command: flags_of(command) for command in COMMANDS}


def by_bash(*words):
    """What bash offers for the last of the words behind mezzo."""
    script = ('source <("$0" completion bash); COMP_WORDS=(mezzo "$@"); COMP_CWORD=$#; _mezzo; printf "%s\\n" "${COMPREPLY[@]}"')
    done = subprocess.run(["bash", "-c", script, PROGRAM, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.split()


def test_bash_completes_commands_flags_and_names():
    assert len(COMMANDS) > 10 and by_bash("") == [*COMMANDS, "--help", "--help-all", "--version"]
    assert by_bash("tr") == ["train"] and by_bash("nothing") == []
    for command, flags in FLAGS.items():
        assert set(by_bash(command, "--")) == flags, command
    assert by_bash("train", "--precision", "") == ["fp32", "bf16", "fp16", "auto"]
    assert by_bash("predict", "--model", "out", "--precision", "i") == ["int8"]
    assert "cosine" in by_bash("train", "--schedule", "cos") and "linear" not in by_bash("train", "--schedule", "cos")
    assert by_bash("train", "--train", "x") == [], "files are bash's"
    assert by_bash("train", "--precision", "=") == by_bash("train", "--precision", "") and by_bash("train", "--precision", "=", "b") == ["bf16"]
    assert by_bash("completion", "") == ["bash", "zsh", "fish"]
    assert by_bash("he") == ["help"] and by_bash("help", "") == COMMANDS
    assert by_bash("launch", "--nproc", "2", "--", "tra") == ["train"]
    assert by_bash("launch", "--nproc", "2", "--", "train", "--balance", "") == ["rows", "tokens"]


def test_fish_completes_commands_flags_and_names():
    def offered(line):
        done = subprocess.run(["fish", "--no-config", "-c", f"$argv[1] completion fish | source; complete -C '{line}'", PROGRAM],
                              capture_output=True, text=True, timeout=120, env={**os.environ, "PATH": f"{FOLDER}:{os.environ['PATH']}"})
        assert done.returncode == 0 and done.stderr == "", done.stderr
        return [one.split("\t")[0] for one in done.stdout.splitlines()]

    assert set(offered("mezzo ")) == set(COMMANDS)
    assert offered("mezzo train --precisi") == ["--precision"] and set(offered("mezzo train --precision ")) == {"fp32", "bf16", "fp16", "auto"}
    assert offered("mezzo completion z") == ["zsh"] and offered("mezzo launch --nproc 2 -- tra") == ["train"]
    assert offered("mezzo predict --model train --max-s") == [], "--max-steps is of train"
    for command, flags in FLAGS.items():
        assert set(offered(f"mezzo {command} --")) >= flags, command


class Zsh:
    """One that somebody types into."""

    def __init__(self, functions):
        pid, self.terminal = pty.fork()
        if pid == 0:
            os.environ.update(TERM="dumb", PATH=f"{FOLDER}:{os.environ['PATH']}")
            os.execvp("zsh", ["zsh", "-f", "-i"])
        self.type(f"fpath=({functions} $fpath); autoload -Uz compinit; compinit -D -u; PROMPT='' RPROMPT=''; unsetopt zle_bracketed_paste; echo re''ady\n")
        self.until("ready")

    def type(self, keys):
        os.write(self.terminal, keys.encode())

    def until(self, pattern):
        said, end = "", time.monotonic() + 60
        while not re.search(pattern, said):
            assert time.monotonic() < end, said
            if select.select([self.terminal], [], [], 1)[0]:
                said += os.read(self.terminal, 4096).decode(errors="replace")
        return said


def test_zsh_completes_commands_flags_and_names(tmp_path):
    (tmp_path / "_mezzo").write_text(mezzo("completion", "zsh").stdout)
    shell = Zsh(tmp_path)
    for typed, added in {"mezzo tr": "ain ", "mezzo train --precision b": "f16", "mezzo launch --nproc 2 -- train --grad-a": "ccumulation"}.items():
        shell.type(typed + "\t")
        shell.until(re.escape(added))
        shell.type("\x15")


def test_another_shell_is_refused():
    done = mezzo("completion", "tcsh", check=False)
    assert (done.returncode, done.stderr) == (2, "mezzo completion: 'tcsh' is not a known shell; pass bash, zsh or fish\n")


def test_the_manual_page_has_every_command_and_flag(tmp_path):
    page = tmp_path / "mezzo.1"
    page.write_text(mezzo("manual").stdout)
    done = subprocess.run(["groff", "-Kutf8", "-man", "-Tutf8", "-ww", page], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    text = re.sub(r"\x1b\[[\d;]*m|.\x08", "", done.stdout)
    assert [line for line in text.splitlines() if len(line) > 80] == []
    for command, flags in FLAGS.items():
        assert f"MEZZO {command.upper()}" in text.upper()
        assert all(flag in text for flag in flags), command
    assert "manual" not in COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_that_parse(command):
    """The program understands each `mezzo …` line in a command's help; only the files are missing."""
    text = mezzo(command, "--help").stdout.replace("\\\n", "")
    for line in re.findall(r"^  (mezzo .*)$", text, re.MULTILINE):
        words = shlex.split(re.sub(r"\s+#.*| [|>].*|<.*", "", line))
        done = subprocess.run([PROGRAM, *words[1:]], capture_output=True, text=True, timeout=120, cwd="/", stdin=subprocess.DEVNULL)
        assert done.returncode != 2 or "is not expected" not in done.stderr and "is not an option" not in done.stderr, (line, done.stderr)
