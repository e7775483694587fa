#!/usr/bin/env bash
# Sets up, builds, and runs the default tests. Other arguments go to ctest, e.g. -R tokenizers
#   bash scripts/test.sh [CTEST ARGUMENTS]
set -euo pipefail
cd "$(dirname "$0")/.."

SECONDS=0
stage() { printf '== %s (%d:%02d)\n' "$1" $((SECONDS / 60)) $((SECONDS % 60)); }
stage "setting up"
bash scripts/setup.sh test
cmake --preset release -DMEZZO_BUILD_TESTS=ON -DMEZZO_BUILD_BENCHMARKS=ON ${MEZZO_VENV:+-DMEZZO_VENV="$(realpath "$MEZZO_VENV")"}
stage "building"
NINJA_STATUS="[%f of %t, %e s] " cmake --build --preset release
stage "testing"
# The ten slowest tests, before ctest's summary.
ctest --preset release "$@" | awk '
  / Test +#[0-9]+: / { line = $0; sub(/.*#[0-9]+: /, "", line); name = line; sub(/ .*/, "", name); seconds[name] = $(NF - 1) }
  / tests passed, / { print "The slowest tests:"; fflush(); for (n in seconds) printf "%9.1f s  %s\n", seconds[n], n | "sort -rn | head -n 10"; close("sort -rn | head -n 10"); print "" }
  { print; fflush() }'
