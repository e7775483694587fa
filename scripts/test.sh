#!/usr/bin/env bash
# Sets up, builds, and runs the default tests; with --all also tests that are long and rarely break. Other arguments go
# to ctest, e.g. -R tokenizers
#   bash scripts/test.sh [--all] [CTEST ARGUMENTS]
set -euo pipefail
cd "$(dirname "$0")/.."
tests=release arguments=()
for argument; do
  if [[ $argument == --all ]]; then tests=all; else arguments+=("$argument"); fi
done

SECONDS=0
stage() { printf '== %s (%d:%02d)\n' "$1" $((SECONDS / 60)) $((SECONDS % 60)); }
stage "setting up"
bash scripts/setup.sh test
cmake --preset release -DMEZZO_BUILD_TESTS=ON -DMEZZO_BUILD_BENCHMARKS=$([[ $tests == all ]] && echo ON || echo OFF) \
  ${MEZZO_VENV:+-DMEZZO_VENV="$(realpath "$MEZZO_VENV")"}
stage "building"
NINJA_STATUS="[%f of %t, %e s] " cmake --build --preset release
stage "testing"
# The ten slowest tests, before ctest's summary.
slowest='echo "The slowest tests:"; sed -nE "s/.* Test +#[0-9]+: ([^ ]+) .* ([0-9.]+) sec.*/\\2 s  \\1/p" build/tests.log | sort -rn | head; echo'
ctest --preset $tests "${arguments[@]}" | tee build/tests.log | sed -u "/ tests passed, /e $slowest"
