"""The house keeps its shape: what each room includes is what src/**/CMakeLists.txt says it needs."""
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)


def rooms_of(root):
    """{folder: the rooms it needs}, in the order of their declaration, which CMake keeps downward."""
    rooms = {}
    for lists in sorted((root / "src").rglob("CMakeLists.txt")):
        for folder, rest in re.findall(r"mezzo_add_room\(\w+ ([\w/]+)([^)]*)\)", lists.read_text()):
            needs = re.search(r"NEEDS((?:\s+[a-z_/]+)+)", rest)
            rooms[folder] = set(needs[1].split()) if needs else set()
    return rooms


def room_of(path, rooms):
    """Of a path below src/ or include/mezzo/: the innermost room."""
    return max((room for room in rooms if path.is_relative_to(room)), key=len, default=None)


def sources(root):
    return [path for folder in ("src", "include", "apps") for path in sorted((root / folder).rglob("*")) if path.suffix in (".h", ".cpp", ".cu")]


def arrows_of(root):
    """(file, what it includes of ours, both rooms); of no room: a public umbrella, the program, the precompiled header."""
    rooms = rooms_of(root)
    for path in sources(root):
        file = path.relative_to(root)
        below = Path(*file.parts[2:]) if file.parts[0] == "include" else Path(*file.parts[1:])
        here = room_of(below, rooms) if file.parts[0] != "apps" else None
        for name in INCLUDE.findall(path.read_text()):
            public, private = root / "include" / name, root / "src" / name
            if name not in ("mezzo/cpp20.h", "mezzo/version.h") and (public.is_file() or private.is_file()):
                target = Path(name).relative_to("mezzo") if public.is_file() else Path(name)
                yield file, name, here, room_of(target, rooms)


def complaints(root):
    rooms = rooms_of(root)
    found, used = [], {room: set() for room in rooms}
    for file, name, here, there in arrows_of(root):
        if file.parts[0] != "src" and not name.startswith("mezzo/"):
            found.append(f"{file} includes {name}, which is private")
        elif here is not None and there is None:
            found.append(f"{file} includes {name}, which stands in no room")
        elif here is not None and there != here:
            used[here].add(there)
            if there not in rooms[here]:
                found.append(f"{file} includes {name}: {here} does not say that it needs {there}")
    found += [f"{room} says that it needs {need}, and includes nothing of it"
              for room, needs in rooms.items() for need in sorted(needs - used[room])]
    return found


def test_rooms_include_what_they_need_and_nothing_else():
    assert len(rooms_of(ROOT)) > 15 and len(list(arrows_of(ROOT))) > 500, "the lists are read"
    assert complaints(ROOT) == []


def test_every_source_stands_in_a_room():
    rooms = rooms_of(ROOT)
    for path in sources(ROOT):
        file = path.relative_to(ROOT)
        if file.parts[0] == "src" and file.stem != "pch":
            assert room_of(Path(*file.parts[1:]), rooms), file


def test_the_core_knows_nothing_of_ranks_models_files_or_flags():
    above = {"encoder", "distributed", "text"}
    for room, needs in rooms_of(ROOT).items():
        if room.split("/")[0] not in above:
            assert not {need for need in needs if need.split("/")[0] in above}, room
        if room.split("/")[0] in ("encoder", "distributed"):
            assert not {need for need in needs if need.startswith("text/")}, room


def test_arrows_that_point_up_are_found(tmp_path):
    def write(name, text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    write("src/CMakeLists.txt", "mezzo_add_room(m low SOURCES a.cpp)\nmezzo_add_room(m high NEEDS low middle\n SOURCES b.cpp)\n"
                                "mezzo_add_room(m middle)\n")
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
    fields = re.findall(r"^  (?!void |///)[\w:<>, ]+ (\w+)(?: = [^;]+)?;", (ROOT / "include/mezzo/text/setup/train_config.h").read_text(), re.MULTILINE)
    visited = re.findall(r"config\.(\w+)\);", (ROOT / "include/mezzo/text/setup/settings.h").read_text())
    assert len(fields) > 50 and sorted(fields) == sorted(visited)
