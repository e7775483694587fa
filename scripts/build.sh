#!/usr/bin/env bash
# Sets up and builds build/release/bin/mezzo. Arguments go to CMake. With -DCMAKE_PREFIX_PATH=/opt/libtorch (or
# -DTorch_DIR=…) mezzo is built against that LibTorch, and pip installs nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
purpose=build
for argument; do
  [[ $argument != -DCMAKE_PREFIX_PATH=* && $argument != -DTorch_DIR=* ]] || purpose=debian
done
bash scripts/setup.sh $purpose
cmake --preset release -DMEZZO_BUILD_TESTS=OFF ${MEZZO_VENV:+-DMEZZO_VENV="$(realpath "$MEZZO_VENV")"} "$@"
NINJA_STATUS="[%f of %t, %e s] " cmake --build --preset release
