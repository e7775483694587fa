#!/usr/bin/env bash
# Sets up, builds, and runs every test. Arguments go to ctest, e.g. -R tokenizers
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh test
cmake --preset release -DMEZZO_BUILD_TESTS=ON -DMEZZO_BUILD_BENCHMARKS=ON ${MEZZO_VENV:+-DMEZZO_VENV="$(realpath "$MEZZO_VENV")"}
cmake --build --preset release
ctest --preset release "$@"
