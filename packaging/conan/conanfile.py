"""mezzo as a Conan package. LibTorch is that of a PyTorch wheel or of your own and stays where it lies; the other libraries are
the system's, by Debian's packages. docs/installing.md says how to use it."""
import re
import subprocess
from pathlib import Path

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain
from conan.tools.files import copy
from conan.tools.system.package_manager import Apt

FIND_TORCH = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"


def torch_folder(options):
    """LibTorch's, or None where there is none."""
    if options.torch:
        return Path(str(options.torch))
    try:
        found = subprocess.run(["python3", "-c", FIND_TORCH], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return Path(found.stdout.strip())


def torch_version(torch):
    """As a wheel says it, or a LibTorch."""
    for name, said in (("version.py", r"__version__ = '(.+)'"), ("build-version", r"(\S+)")):
        if (torch / name).is_file() and (found := re.search(said, (torch / name).read_text())):
            return found[1]
    return str(torch)


class Mezzo(ConanFile):
    name = "mezzo"
    description = "Automatic mixed precision training in C++, on LibTorch"
    license = "Apache-2.0"
    topics = ("amp", "mixed-precision", "libtorch", "pytorch", "bert")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    # text: mezzo::text and the program too, not the AMP library and mezzo::distributed alone. torch: LibTorch's folder; where it is not named,
    # that of the python3 on the path.
    # shared: mezzo::mezzo, which a process must have once; the other libraries are static.
    options = {"shared": [True, False], "text": [True, False], "torch": [None, "ANY"]}
    default_options = {"shared": True, "text": True, "torch": None}

    @property
    def _sources(self):
        return Path(self.recipe_folder).parents[1]

    def set_version(self):
        self.version = re.search(r'MEZZO_VERSION "([0-9.]+)"', (self._sources / "include/mezzo/version.h").read_text())[1]

    def export_sources(self):
        for part in ("CMakeLists.txt", "LICENSE", "include/*", "src/*", "apps/*", "cmake/*"):
            copy(self, part, self._sources, self.export_sources_folder)

    def layout(self):
        self.folders.root = "../.."
        # `conan export-pkg` packages what is built there already.
        self.folders.build = self.conf.get("user.mezzo:build_folder", default="build/conan")
        self.folders.generators = f"{self.folders.build}/conan"

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("mezzo is built on Linux alone")
        torch = torch_folder(self.options)
        if torch is None or not (torch / "share/cmake/Torch/TorchConfig.cmake").is_file():
            where = f"{torch} is no LibTorch" if torch else "there is no python3 with torch on the path"
            raise ConanInvalidConfiguration(f"{where}; name the folder of one: -o 'mezzo/*:torch=DIR'")
        if not torch.is_absolute():
            raise ConanInvalidConfiguration(f"-o 'mezzo/*:torch={torch}' has to be an absolute path")
        check_min_cppstd(self, 20)

    def package_id(self):
        # Whatever folder it lies in, another version of LibTorch makes another package.
        torch = torch_folder(self.info.options)
        self.info.options.torch = torch_version(torch) if torch else "none"

    def system_requirements(self):
        packages = ["libfmt-dev", "libgloo-dev"]
        if self.options.text:
            packages += ["nlohmann-json3-dev", "libcli11-dev", "libtomlplusplus-dev", "libxxhash-dev", "zlib1g-dev", "libzstd-dev",
                         "libuchardet-dev", "libmicrohttpd-dev", "libonig-dev", "libcurl4-openssl-dev", "libssl-dev"]
        Apt(self).install(packages, check=True)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.user_presets_path = False
        toolchain.cache_variables["MEZZO_BUILD_SHARED"] = bool(self.options.shared)
        toolchain.cache_variables["BUILD_SHARED_LIBS"] = False
        toolchain.cache_variables["MEZZO_BUILD_TESTS"] = False
        toolchain.cache_variables["MEZZO_BUILD_PYTHON"] = False
        toolchain.cache_variables["MEZZO_WERROR"] = False
        toolchain.cache_variables["MEZZO_BUILD_TEXT"] = bool(self.options.text)
        toolchain.cache_variables["CMAKE_UNITY_BUILD"] = True
        toolchain.cache_variables["Torch_DIR"] = str(torch_folder(self.options) / "share/cmake/Torch")
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, f"{self.package_folder}/licenses")
        CMake(self).install()

    def package_info(self):
        # find_package(mezzo) reads mezzo's own CMake package, which finds LibTorch by itself.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["lib/cmake/mezzo"]
