#!/usr/bin/env bash
# As OSS-Fuzz calls it, with CXX, CXXFLAGS, LIB_FUZZING_ENGINE, OUT and, of the sources, SRC in the environment: leaves a program for
# each format in $OUT, with what it begins from. Elsewhere, with clang:
#   OUT=out bash packaging/oss-fuzz/build.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${CXX:=clang++}" "${OUT:?the folder for the programs}" "${WORK:=$(mktemp -d)}"
: "${CXXFLAGS=-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize=vptr,function -fno-sanitize-recover=all}"
CXXFLAGS=${CXXFLAGS/-stdlib=libc++/} # LibTorch is built with libstdc++
: "${LIB_FUZZING_ENGINE:=-fsanitize=fuzzer}"
mkdir -p "$OUT/lib"
OUT=$(realpath "$OUT")
torch=$(python3 -c 'import importlib.util as u; print(*u.find_spec("torch").submodule_search_locations)')

cmake -S . -B "$WORK/build" -G Ninja -DCMAKE_CXX_COMPILER="$CXX" -DCMAKE_CXX_FLAGS="$CXXFLAGS" -DCMAKE_UNITY_BUILD=ON \
  -DMEZZO_BUILD_FUZZERS=ON -DMEZZO_BUILD_TESTS=OFF -DMEZZO_WERROR=OFF -DLIB_FUZZING_ENGINE="$LIB_FUZZING_ENGINE" \
  -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON -DCMAKE_INSTALL_RPATH='$ORIGIN/lib' -DCMAKE_EXE_LINKER_FLAGS="${LDFLAGS:-} -Wl,--disable-new-dtags" \
  -DMEZZO_VENV=none -DTorch_DIR="$torch/share/cmake/Torch"
cmake --build "$WORK/build" --target fuzz_mezzo
program=$WORK/build/bin/fuzz_mezzo

# LibTorch and the machine's own libraries travel along. RPATH, which the old tags give, holds for what these need, too; RUNPATH would not.
LD_LIBRARY_PATH=$torch/lib ldd "$program" | awk '$3 ~ /^\// {print $3}' |
  grep -Ev '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*)\.so' | xargs -I{} cp -Lu {} "$OUT/lib"
for corpus in tests/fuzz/corpus/*/; do
  target=$(basename "$corpus")
  [ "$target" != parquet ] || continue # read with Arrow, from a module of its own that does not travel along
  cp "$program" "$OUT/fuzz_$target"
  printf '[libfuzzer]\nmax_len = 4096\ndetect_leaks = 0\n[asan]\ndetect_container_overflow = 0\n' >"$OUT/fuzz_$target.options"
  (cd "$corpus" && python3 -m zipfile -c "$OUT/fuzz_${target}_seed_corpus.zip" ./*)
done
