#!/usr/bin/env bash
# For a machine without network: puts mezzo's sources and the headers of its libraries into DIR. On
# that machine, `bash DIR/build.sh` builds with the installed CMake, compiler and PyTorch (CUDA or
# not). `bash DIR/gpu.sh` runs the tests that need a GPU, and the benchmarks.
#   bash scripts/bundle.sh DIR
set -euo pipefail
if (($# != 1)) || [[ -z $1 || $1 == -* ]]; then
  echo "bundle: name the folder to make: bash scripts/bundle.sh DIR" >&2
  exit 2
fi
bundle=$(realpath -m "$1")
cd "$(dirname "$0")/.."

if [[ -e $bundle && -n $(ls -A "$bundle" 2>/dev/null || echo file) ]]; then
  echo "bundle: $bundle is not an empty folder; name another, or empty it" >&2
  exit 1
fi
packages=(nlohmann-json3-dev libcli11-dev libtomlplusplus-dev libfmt-dev libfmt9 libgloo-dev libxxhash-dev libonig-dev libonig5 libgtest-dev libgmock-dev)
if ! dpkg-query -L "${packages[@]}" >/dev/null 2>&1; then
  echo "bundle: some of ${packages[*]} are not installed; run bash scripts/setup.sh test first" >&2
  exit 1
fi
if ! git ls-files --error-unmatch scripts/bundle.sh >/dev/null 2>&1; then
  echo "bundle: $PWD is no git checkout of mezzo that git lets this user read, which says what its sources are" >&2
  exit 1
fi

mkdir -p "$bundle/mezzo" "$bundle/third_party"
trap 'rm -rf "$bundle/mezzo" "$bundle/third_party" "$bundle/shared"; echo "bundle: not done; what was made is removed" >&2' EXIT
git ls-files -z | tar --null --files-from=- -cf - | tar -xf - -C "$bundle/mezzo"
# Headers, CMake packages and the libraries that they need; LibTorch contains Gloo's.
dpkg-query -L "${packages[@]}" | grep -E '^/usr/(include/|share/cmake/|lib/)' | grep -Ev '/pkgconfig|libgloo|/Gloo' | sort -u |
  while read -r file; do
    [[ -f $file ]] && echo "${file#/}"
  done | tar -C / --dereference --files-from=- -cf - | tar -xf - -C "$bundle/third_party"
# The data, in the folder in which tests and benchmarks look for them, and the commit of the sources.
[[ ! -d ../shared/data ]] || { mkdir "$bundle/shared" && cp -r ../shared/data "$bundle/shared/data"; }
git describe --always --dirty --exclude '*' >"$bundle/mezzo/.commit"

# The one module that PyTorch's lists of autocast ops import.
python=${MEZZO_VENV:-.venv}/bin/python
if expecttest=$("$python" -c 'import importlib.util as u; print(*u.find_spec("expecttest").submodule_search_locations)' 2>/dev/null); then
  mkdir -p "$bundle/third_party/python" && cp -r "$expecttest" "$bundle/third_party/python"
fi

cp scripts/bundle/build.sh scripts/bundle/gpu.sh "$bundle"
chmod +x "$bundle/build.sh" "$bundle/gpu.sh"
trap - EXIT
echo "bundle: $bundle holds $(du -sh "$bundle" | cut -f1); copy it to the machine, and run bash build.sh there"
