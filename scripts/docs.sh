#!/usr/bin/env bash
# Builds the documentation site in build/docs; open build/docs/index.html. Needs a build of the program and the Python package
# (bash scripts/build.sh). Arguments go to Sphinx.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ ! -x build/release/bin/mezzo || ! -e build/release/python/mezzo/_version.py ]]; then
  echo "docs: build/release has no program and no Python package, from which the reference is made; run bash scripts/build.sh" >&2
  exit 1
fi
bash scripts/setup.sh docs
venv=${MEZZO_VENV:-.venv}
mkdir -p build/doxygen
doxygen Doxyfile
PYTHONPATH=$venv/docs:build/release/python "$venv/bin/python" -m sphinx -q -E -W --keep-going -c docs -d build/docs.cache . build/docs "$@"
echo '<!doctype html><meta charset="utf-8"><title>mezzo</title><meta http-equiv="refresh" content="0; url=docs/index.html">' >build/docs/index.html
echo "docs: build/docs/index.html"
