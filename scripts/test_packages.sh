#!/usr/bin/env bash
# Builds mezzo's packages from its sources, and a consumer's project with each. Conan, from PyPI, builds the Conan recipe.
# Substitutes of vcpkg's helpers build the vcpkg port. All in build/packages.
#   bash scripts/test_packages.sh [amp]     amp: without mezzo::text and the program, which takes minutes in place of half an hour
set -euo pipefail
cd "$(dirname "$0")/.."

bash scripts/setup.sh test
text=True features=text
if [[ ${1:-} == amp ]]; then
  text=False features=''
fi
work=$PWD/build/packages
torch=$(.venv/bin/python -c 'import importlib.util as u; print(*u.find_spec("torch").submodule_search_locations)')

export CONAN_HOME=$work/conan
rm -rf "$CONAN_HOME"
.venv/bin/conan profile detect >/dev/null
.venv/bin/conan create packaging/conan -o "mezzo/*:text=$text" -o "mezzo/*:torch=$torch" -s compiler.cppstd=20 --build='mezzo/*'

cmake -DFEATURES="$features" -DWORK_DIR="$work/vcpkg" -DTORCH_DIR="$torch/share/cmake/Torch" -DVOCAB="$PWD/tests/consumer/vocab.txt" \
  -P tests/consumer/vcpkg_port.cmake
