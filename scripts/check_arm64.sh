#!/usr/bin/env bash
# Compiles all of the library for 64-bit ARM, and runs the tests of its vector loops (optimizers,
# conversions, the encoder's kernels) in an emulator. LibTorch's headers come from this machine, so
# nothing else is linked. Needs Debian's g++-aarch64-linux-gnu, qemu-user and libgtest-dev.
# Arguments go to CMake.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$PWD/build/arm64
cmake --preset release -B "$folder" -DMEZZO_BUILD_TESTS=OFF ${MEZZO_VENV:+-DMEZZO_VENV="$(realpath "$MEZZO_VENV")"} \
  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
  -DCMAKE_PREFIX_PATH="$(printf '%s;' /usr/lib/"$(c++ -dumpmachine)"/cmake/*)" "$@" # of libraries that are headers here
cmake --build "$folder" --target mezzo_text # an archive, and its dependencies

# By default the compiler rounds a product and a sum as one. The tests' formulas round each.
torch=$(grep -om1 -- '[^ ]*/torch/include' "$folder/build.ninja" | head -1)
aarch64-linux-gnu-g++ -std=c++20 -O2 -ffp-contract=off -static -no-pie \
  -I src -I tests -isystem "$torch" -isystem /usr/src/googletest/googletest/include -isystem /usr/src/googletest/googletest \
  tests/kernels/element_kernels_test.cpp src/kernels/cpu/simd/{element_kernels,instruction_set}.cpp \
  tests/encoder/simd_kernels_test.cpp src/encoder/cpu/simd/select.cpp \
  $(find "$folder"/src -path '*_baseline.dir/*' -name '*.o') \
  /usr/src/googletest/googletest/src/gtest{-all,_main}.cc \
  -Wl,--unresolved-symbols=ignore-all -o "$folder/kernel_tests" # LibTorch's exceptions, which nothing here throws
qemu-aarch64 "$folder/kernel_tests"
