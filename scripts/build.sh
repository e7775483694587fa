#!/usr/bin/env bash
# Sets up and builds build/release/bin/mezzo. Arguments go to CMake, e.g.
# -DCMAKE_PREFIX_PATH=/opt/libtorch
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh build
cmake --preset release -DMEZZO_BUILD_TESTS=OFF ${MEZZO_VENV:+-DMEZZO_VENV="$(realpath "$MEZZO_VENV")"} "$@"
NINJA_STATUS="[%f of %t, %e s] " cmake --build --preset release
