#!/usr/bin/env bash
# Packs what scripts/build.sh built into a wheel for pip, dist/mezzo-*.whl, and compiles nothing. Each further folder is a build
# with another minor version of torch, whose libraries the wheel then holds as well.
#   bash scripts/wheel.sh [BUILD…]
set -euo pipefail
cd "$(dirname "$0")/.."
builds=("$@")
((${#builds[@]})) || builds=(build/release)
bash scripts/setup.sh wheel
bin=${MEZZO_VENV:-.venv}/bin

staging=$(mktemp -d) # not below build/, which git ignores: scikit-build-core would leave it out
trap 'rm -rf "$staging"' EXIT
cp -r python/mezzo "$staging"
rm -rf "$staging/mezzo/__pycache__"
for build in "${builds[@]}"; do
  compgen -G "$build/python/mezzo/torch*/mezzo" >/dev/null && cmake --install "$build" --component python --prefix "$staging" >build/wheel.log ||
    { echo "wheel: $build holds no build for Python; run bash scripts/build.sh first" >&2; exit 1; }
done
[[ -n $(compgen -G "$staging/mezzo/torch*/mezzo_parquet.so") ]] ||
  echo "wheel: without Parquet. Install pyarrow in ${MEZZO_VENV:-.venv} and run scripts/build.sh again to have it."

# The metadata comes from pyproject.toml. The tag says which symbols of the system's libraries are needed; torch brings libgomp.
# Debian 12's pip does not know -C, the short name of --config-settings.
"$bin/python" -m pip wheel . --no-deps --no-build-isolation --disable-pip-version-check --quiet --wheel-dir "$staging/made" \
  --config-settings wheel.cmake=false --config-settings wheel.platlib=true --config-settings wheel.packages="$staging/mezzo"
made=$(echo "$staging"/made/mezzo-*.whl)
tag=$("$bin/auditwheel" show --json --ldpaths "$staging" "$made" 2>build/wheel.log | sed -n 's/.*"sym_tag": "\(.*\)".*/\1/p') ||
  { echo "wheel: auditwheel cannot read the wheel: see build/wheel.log" >&2; exit 1; }
mkdir -p dist && rm -f dist/mezzo-*.whl
name=$("$bin/wheel" tags --remove --platform-tag "$tag" "$made")
mv "$staging/made/$name" dist
echo "dist/$name"
