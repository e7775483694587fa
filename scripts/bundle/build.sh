#!/usr/bin/env bash
# Builds mezzo, its tests and its benchmarks in build/ with what this machine has. Arguments go to CMake.
# MEZZO_PYTHON: the Python that has torch; python3 by default.
# MEZZO_TARGETS: the targets to build, in place of all.
set -euo pipefail
cd "$(dirname "$0")"
python=$(command -v "${MEZZO_PYTHON:-python3}") || { echo "build: there is no ${MEZZO_PYTHON:-python3}" >&2; exit 1; }
torch=$("$python" -c 'import importlib.util as u; print(*u.find_spec("torch").submodule_search_locations)' 2>/dev/null) ||
  { echo "build: $python has no torch; point MEZZO_PYTHON at a Python that has" >&2; exit 1; }
command -v cmake >/dev/null || { echo "build: there is no cmake on the path" >&2; exit 1; }
packages=()
while read -r config; do
  name=$(basename "$config" | sed -E 's/(-config|Config)\.cmake$//')
  packages+=("-D${name}_DIR=$PWD/$(dirname "$config")")
done < <(find third_party -name '*Config.cmake' -o -name '*-config.cmake')
# The tests against PyTorch need Python's headers.
prefix=$("$python" -c 'import os, sys, sysconfig as s; print(sys.prefix if os.path.exists(s.get_path("include") + "/Python.h") else "")')
binding=(-DMEZZO_VENV="$PWD/no-tests-in-python")
[[ ! -x $prefix/bin/python ]] || binding=(-DMEZZO_VENV="$prefix")
onig=$(find "$PWD/third_party/usr/lib" -name libonig.so)
generator=(-G "Unix Makefiles")
! command -v ninja >/dev/null || generator=(-G Ninja)
cmake -S mezzo -B build "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O2 \
  -DCMAKE_UNITY_BUILD=ON -DMEZZO_WERROR=OFF -DMEZZO_BUILD_TESTS=ON \
  -DMEZZO_BUILD_BENCHMARKS=ON -DCMAKE_INCLUDE_PATH="$PWD/third_party/usr/include" -DONIGURUMA_LIBRARY="$onig" -DCMAKE_BUILD_RPATH="$(dirname "$onig")" \
  -DTorch_DIR="$torch/share/cmake/Torch" \
  -DMEZZO_PYTHON3="$python" "${binding[@]}" "${packages[@]}" "$@"
read -ra targets <<<"${MEZZO_TARGETS:-all}"
cmake --build build --parallel "$(nproc)" --target "${targets[@]}"
