#!/usr/bin/env bash
# Packs the builds of scripts/build.sh into a wheel for pip, in place of DIR/mezzo-*.whl, and compiles nothing. Each BUILD is a
# folder that was built with another minor version of torch.
#   bash scripts/wheel.sh [--output DIR] [BUILD…]     by default dist and build/release of the repository
set -euo pipefail
output=dist builds=()
while (($#)); do
  case $1 in
    --output) (($# > 1)) || { echo "wheel: --output needs a folder" >&2; exit 2; }; output=$(realpath -m "$2"); shift ;;
    -*) echo "wheel: what is \"$1\"? Say bash scripts/wheel.sh [--output DIR] [BUILD…]" >&2; exit 2 ;;
    *) builds+=("$(realpath -m "$1")") ;;
  esac
  shift
done
cd "$(dirname "$0")/.."
((${#builds[@]})) || builds=(build/release)
bash scripts/setup.sh wheel
bin=${MEZZO_VENV:-.venv}/bin

staging=$(mktemp -d) # not below build/, which git ignores: scikit-build-core would leave it out
trap 'rm -rf "$staging"' EXIT
cp -r python/mezzo "$staging"
rm -rf "$staging/mezzo/__pycache__"
for build in "${builds[@]}"; do
  compgen -G "$build/python/mezzo/torch*/mezzo" >/dev/null ||
    { echo "wheel: $build holds no build for Python; run bash scripts/build.sh first" >&2; exit 1; }
  cmake --install "$build" --component python --prefix "$staging/build" >build/wheel.log 2>&1 ||
    { echo "wheel: $build cannot be packed: see build/wheel.log" >&2; exit 1; }
  torch=$(basename "$staging"/build/mezzo/torch*)
  [[ ! -e $staging/mezzo/$torch ]] || { echo "wheel: $build is one more build for torch ${torch#torch}; name one of them" >&2; exit 1; }
  mv "$staging/build/mezzo/_version.py" "$staging/build/mezzo/$torch" "$staging/mezzo"
  [[ -e $staging/mezzo/$torch/libmezzo_cuda.so ]] ||
    echo "wheel: torch ${torch#torch}: without kernels for GPUs. Build with a CUDA torch and nvcc to have them."
  [[ -e $staging/mezzo/$torch/mezzo_parquet.so ]] ||
    echo "wheel: torch ${torch#torch}: without Parquet. Install pyarrow in the environment of $build and build again to have it."
done

# The metadata comes from pyproject.toml. The tag says which symbols of the system's libraries are needed; torch brings libgomp.
# Debian 12's pip does not know -C, the short name of --config-settings.
"$bin/python" -m pip wheel . --no-deps --no-build-isolation --disable-pip-version-check --quiet --wheel-dir "$staging/made" \
  --config-settings wheel.cmake=false --config-settings wheel.platlib=true --config-settings wheel.packages="$staging/mezzo"
made=$(echo "$staging"/made/mezzo-*.whl)
tag=$("$bin/auditwheel" show --json --ldpaths "$staging" "$made" 2>build/wheel.log | sed -n 's/.*"sym_tag": "\(.*\)".*/\1/p') ||
  { echo "wheel: auditwheel cannot read the wheel: see build/wheel.log" >&2; exit 1; }
name=$("$bin/wheel" tags --remove --platform-tag "$tag" "$made")
mkdir -p "$output" && rm -f "$output"/mezzo-*.whl && mv "$staging/made/$name" "$output"
echo "$output/$name"
