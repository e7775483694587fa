#!/usr/bin/env bash
# Sets up and builds build/release/bin/mezzo, or DIR/bin/mezzo with -B DIR. Arguments go to CMake. With
# -DCMAKE_PREFIX_PATH=/opt/libtorch (or -DTorch_DIR=…) mezzo is built against that LibTorch, and pip installs nothing.
# MEZZO_VENV=… MEZZO_TORCH=2.14.1 builds with another torch, which set-up installs there.
set -euo pipefail
cd "$(dirname "$0")/.."
purpose=build folder=build/release previous=
for argument; do
  [[ $argument != -DCMAKE_PREFIX_PATH=* && $argument != -DTorch_DIR=* ]] || purpose=debian
  [[ $argument != -B?* ]] || folder=${argument#-B}
  [[ $previous != -B ]] || folder=$argument
  previous=$argument
done
bash scripts/setup.sh $purpose
cmake --preset release -DMEZZO_BUILD_TESTS=OFF ${MEZZO_VENV:+-DMEZZO_VENV="$(realpath "$MEZZO_VENV")"} "$@"
NINJA_STATUS="[%f of %t, %e s] " cmake --build "$folder"
