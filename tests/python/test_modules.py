"""Each module includes what src/**/CMakeLists.txt says that it needs, and nothing else."""
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)


def modules_of(root):
    """{folder: the modules it needs}, in the order of their declaration, which CMake keeps downward."""
    modules = {}
    for lists in sorted((root / "src").rglob("CMakeLists.txt")):
        for folder, rest in re.findall(r"mezzo_add_module\(\w+ ([\w/]+)([^)]*)\)", lists.read_text()):
            needs = re.search(r"NEEDS((?:\s+[a-z_/]+)+)", rest)
            modules[folder] = set(needs[1].split()) if needs else set()
    return modules


def module_of(path, modules):
    """Of a path below src/ or include/mezzo/: the innermost module."""
    return max((module for module in modules if path.is_relative_to(module)), key=len, default=None)


def sources(root):
    return [path for folder in ("src", "include", "apps") for path in sorted((root / folder).rglob("*")) if path.suffix in (".h", ".cpp", ".cu")]


def arrows_of(root):
    """(file, included file of mezzo, both modules). Some files have no module: a public umbrella, the program, the precompiled
    header."""
    modules = modules_of(root)
    for path in sources(root):
        file = path.relative_to(root)
        below = Path(*file.parts[2:]) if file.parts[0] == "include" else Path(*file.parts[1:])
        here = module_of(below, modules) if file.parts[0] != "apps" else None
        for name in INCLUDE.findall(path.read_text()):
            public, private = root / "include" / name, root / "src" / name
            if name not in ("mezzo/cpp20.h", "mezzo/version.h") and (public.is_file() or private.is_file()):
                target = Path(name).relative_to("mezzo") if public.is_file() else Path(name)
                yield file, name, here, module_of(target, modules)


def complaints(root):
    modules = modules_of(root)
    found, used = [], {module: set() for module in modules}
    for file, name, here, there in arrows_of(root):
        if file.parts[0] != "src" and not name.startswith("mezzo/"):
            found.append(f"{file} includes {name}, which is private")
        elif here is not None and there is None:
            found.append(f"{file} includes {name}, which is in no module")
        elif here is not None and there != here:
            used[here].add(there)
            if there not in modules[here]:
                found.append(f"{file} includes {name}: {here} does not say that it needs {there}")
    found += [f"{module} says that it needs {need}, and includes nothing of it"
              for module, needs in modules.items() for need in sorted(needs - used[module])]
    return found


def test_modules_include_what_they_need_and_nothing_else():
    assert len(modules_of(ROOT)) > 15 and len(list(arrows_of(ROOT))) > 500, "the lists are read"
    assert complaints(ROOT) == []


def test_every_source_is_in_a_module():
    modules = modules_of(ROOT)
    for path in sources(ROOT):
        file = path.relative_to(ROOT)
        if file.parts[0] == "src" and file.stem != "pch":
            assert module_of(Path(*file.parts[1:]), modules), file


def test_the_core_knows_nothing_of_ranks_models_files_or_flags():
    above = {"encoder", "distributed", "text"}
    for module, needs in modules_of(ROOT).items():
        if module.split("/")[0] not in above:
            assert not {need for need in needs if need.split("/")[0] in above}, module
        if module.split("/")[0] in ("encoder", "distributed"):
            assert not {need for need in needs if need.startswith("text/")}, module


def test_arrows_that_point_up_are_found(tmp_path):
    def write(name, text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    write("src/CMakeLists.txt", "mezzo_add_module(m low SOURCES a.cpp)\nmezzo_add_module(m high NEEDS low middle\n SOURCES b.cpp)\n"
                                "mezzo_add_module(m middle)\n")
    write("src/low/a.cpp", '#include "high/b.h"\n#include <vector>\n')
    write("src/high/b.h", '#include "low/a.h"\n')
    write("src/low/a.h", "")
    write("include/mezzo/high/c.h", '#include "high/b.h"\n')
    assert complaints(tmp_path) == [
        "src/low/a.cpp includes high/b.h: low does not say that it needs high",
        "include/mezzo/high/c.h includes high/b.h, which is private",
        "high says that it needs middle, and includes nothing of it",
    ]


def test_every_field_of_train_config_is_a_setting_once():
    def fields_of(header, struct):
        body = re.search(rf"^struct {struct} {{\n(.*?)^}};", (ROOT / "include/mezzo/text" / header).read_text(), re.MULTILINE | re.DOTALL)[1]
        return re.findall(r"^  (?!void |///)[\w:<>, ]+ (\w+)(?: = [^;]+)?;", body, re.MULTILINE)

    fields = [name for name in fields_of("train/train_config.h", "TrainConfig") if name != "columns"] + fields_of("data/dataset.h", "ColumnNames")
    visited = re.findall(r"(?:config|columns)\.(\w+)\);", (ROOT / "include/mezzo/text/train/settings.h").read_text())
    assert len(fields) > 50 and sorted(fields) == sorted(visited)
