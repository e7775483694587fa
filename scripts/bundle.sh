#!/usr/bin/env bash
# For a machine without network: puts into DIR what mezzo is built from, its own sources
# and the headers of others, so that there `bash DIR/build.sh` builds with the CMake,
# compiler and PyTorch (CUDA or not) that it finds, and `bash DIR/gpu.sh` runs the tests,
# those that want a GPU among them.
#   bash scripts/bundle.sh DIR
set -euo pipefail
if (($# != 1)); then
  echo "bundle: name the folder to make: bash scripts/bundle.sh DIR" >&2
  exit 2
fi
bundle=$(realpath -m "$1")
cd "$(dirname "$0")/.."

if [[ -e $bundle && -n $(ls -A "$bundle" 2>/dev/null || echo file) ]]; then
  echo "bundle: $bundle is not an empty folder; name another, or empty it" >&2
  exit 1
fi
packages=(nlohmann-json3-dev libcli11-dev libtomlplusplus-dev libfmt-dev libfmt9 libgloo-dev libxxhash-dev libgtest-dev libgmock-dev)
if ! dpkg-query -L "${packages[@]}" >/dev/null 2>&1; then
  echo "bundle: some of ${packages[*]} are not installed; run bash scripts/setup.sh test first" >&2
  exit 1
fi

mkdir -p "$bundle/mezzo" "$bundle/third_party"
git ls-files -z | tar --null --files-from=- -cf - | tar -xf - -C "$bundle/mezzo"
# Headers, CMake packages and the libraries that those ask for; LibTorch has Gloo's inside.
dpkg-query -L "${packages[@]}" | grep -E '^/usr/(include/|share/cmake/|lib/)' | grep -Ev '/pkgconfig|libgloo|/Gloo' | sort -u |
  while read -r file; do
    [[ -f $file ]] && echo "${file#/}"
  done | tar -C / --dereference --files-from=- -cf - | tar -xf - -C "$bundle/third_party"
[[ ! -d ../shared/data ]] || cp -r ../shared/data "$bundle/data"

cat >"$bundle/build.sh" <<'EOF'
#!/usr/bin/env bash
# Builds mezzo and its C++ tests in build/ with what this machine has. Arguments go to CMake.
# MEZZO_PYTHON: the Python that has torch; python3 where it is not set.
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
generator=(-G "Unix Makefiles")
! command -v ninja >/dev/null || generator=(-G Ninja)
cmake -S mezzo -B build "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O2 \
  -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=4 -DMEZZO_WERROR=OFF -DMEZZO_BUILD_TESTS=ON \
  -DCMAKE_INCLUDE_PATH="$PWD/third_party/usr/include" -DTorch_DIR="$torch/share/cmake/Torch" \
  -DMEZZO_PYTHON3="$python" "${binding[@]}" "${packages[@]}" "$@"
cmake --build build --parallel "$(nproc)"
EOF
cat >"$bundle/gpu.sh" <<'EOF'
#!/usr/bin/env bash
# After build.sh: the tests, those that want a GPU among them. What they say goes to results/, too.
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p results
export MEZZO_SHARED=$PWD MEZZO_EXAMPLES=$PWD/build/bin MEZZO_PROGRAM=$PWD/build/bin/mezzo HF_HUB_OFFLINE=1
nvidia-smi | tee results/machine.txt
(cd build && ctest --output-on-failure -R '^(core_tests|cuda_kernel_tests|encoder_tests|text_tests)$') | tee results/tests.txt
EOF
chmod +x "$bundle/build.sh" "$bundle/gpu.sh"
echo "bundle: $bundle holds $(du -sh "$bundle" | cut -f1); copy it to the machine, and run bash build.sh there"
