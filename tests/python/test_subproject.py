"""mezzo as a part of another project, by add_subdirectory as FetchContent does it: its additions to that
project."""
import json
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARENT = """
cmake_minimum_required(VERSION 3.25)
project(parent LANGUAGES CXX)
add_subdirectory("{root}" mezzo)
add_executable(user main.cpp)
target_link_libraries(user PRIVATE mezzo::mezzo)
"""


class Parent:
    def __init__(self, folder, *arguments):
        torch = find_spec("torch").submodule_search_locations[0]
        (folder / "CMakeLists.txt").write_text(PARENT.format(root=ROOT))
        (folder / "main.cpp").write_text("int main() {}\n")
        self.build = folder / "build"
        command = ["cmake", "-G", "Ninja", "-S", folder, "-B", self.build, f"-DCMAKE_PREFIX_PATH={torch}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
        self.said = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True).stdout
        entries = [(Path(each["file"]), each["command"]) for each in json.loads((self.build / "compile_commands.json").read_text())]
        self.own = [command for file, command in entries if file == folder / "main.cpp"]
        self.commands = [(file.relative_to(ROOT), command) for file, command in entries if file.is_relative_to(ROOT)]

    def install_rules(self):
        script = self.build / "mezzo/cmake_install.cmake"
        return [line for line in script.read_text().splitlines() if "DESTINATION" in line]


def test_it_builds_the_amp_library_alone_and_installs_nothing(tmp_path):
    parent = Parent(tmp_path)
    folders = {file.parts[:2] for file, _ in parent.commands}
    assert ("src", "amp") in folders and {first for first, _ in folders} == {"src"}
    assert not {second for _, second in folders} & {"text", "encoder", "distributed"}
    assert parent.install_rules() == []


@pytest.mark.parametrize("shared, library", [("ON", "libmezzo.so."), ("OFF", "libmezzo.a")])
def test_a_parent_chooses_between_a_shared_and_a_static_library(tmp_path, shared, library):
    parent = Parent(tmp_path, *([] if shared == "ON" else ["-DMEZZO_BUILD_SHARED=OFF"]))
    rules = (parent.build / "build.ninja").read_text()
    linked, = [line for line in rules.splitlines() if line.startswith("build user:")]
    assert f"mezzo/src/{library}" in linked


def test_without_a_build_type_it_is_optimised_and_the_parent_is_not(tmp_path):
    parent = Parent(tmp_path)
    assert "-- mezzo: no CMAKE_BUILD_TYPE is set, so mezzo is compiled with -O2\n" in parent.said
    assert all(" -O2" in command for _, command in parent.commands)
    loops = [command for file, command in parent.commands if "-DMEZZO_SIMD=" in command]
    assert loops and all(" -O3" in command for command in loops)
    assert parent.own and not [command for command in parent.own if "-O" in command]


def test_a_build_type_of_the_parent_holds(tmp_path):
    parent = Parent(tmp_path, "-DCMAKE_BUILD_TYPE=Debug", "-DMEZZO_INSTALL=ON")
    assert not [command for _, command in parent.commands if "-O" in command] and "-O2" not in parent.said
    assert any("mezzoTargets.cmake" in rule for rule in parent.install_rules())
