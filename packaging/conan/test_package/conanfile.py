"""Builds and runs the consumer of the tests with the package."""
from pathlib import Path

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain

CONSUMER = Path(__file__).resolve().parents[3] / "tests/consumer"


class Consumer(ConanFile):
    settings = "os", "arch", "compiler", "build_type"
    generators = "CMakeDeps"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        self.folders.build = self.conf.get("user.mezzo:consumer_folder", default="../../../build/conan-consumer")
        self.folders.generators = self.folders.build

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.user_presets_path = False
        if torch := self.dependencies["mezzo"].options.get_safe("torch"):
            toolchain.cache_variables["Torch_DIR"] = f"{torch}/share/cmake/Torch"
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure(build_script_folder=str(CONSUMER))
        cmake.build()

    def test(self):
        self.run(f"{self.build_folder}/consumer")
        if self.dependencies["mezzo"].options.text:
            self.run(f"{self.build_folder}/text_consumer {CONSUMER}/vocab.txt")
