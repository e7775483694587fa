#!/usr/bin/env bash
# Sets up, builds, and runs every benchmark, one after the other; each writes a page of
# benchmarks/results. Takes hours. The list "others" names the pages that other commands make.
#   bash benchmarks/run.sh                      all of them
#   bash benchmarks/run.sh training roofline    only these
#   bash benchmarks/run.sh --quick              whether all of them run: tiny models, pages in a temporary folder
set -euo pipefail
cd "$(dirname "$0")/.."
all=(micro autocast_overhead tokenizer startup serve training optimize model_families int8 roofline flat curves threads scaling slow_link saving restarts gpu)
others=(
  "regression: python benchmarks/regression.py REVISION"
  "defaults: python benchmarks/defaults.py"
  "newcomer: python benchmarks/newcomer.py"
  "crash_test: python tools/crash_test.py --trials 3000 --jobs 2 --results benchmarks/results"
  "fuzzing: python tools/fuzz.py --seconds 3600 --log tests/fuzz/runs.jsonl --results benchmarks/results"
)
flags=() names=()
for argument in "$@"; do
  case $argument in
    --quick) flags=(--quick --results "$(mktemp -d)") ;;
    -*) echo "run.sh: unknown flag $argument; there is --quick, and names out of: ${all[*]}" >&2; exit 2 ;;
    *)
      [[ " ${all[*]} " == *" $argument "* ]] || { echo "run.sh: no benchmark $argument; there are: ${all[*]}" >&2; exit 2; }
      names+=("$argument") ;;
  esac
done
((${#names[@]})) || names=("${all[@]}")

bash scripts/build.sh -DMEZZO_BUILD_BENCHMARKS=ON >build.log 2>&1 ||
  { tail -n 30 build.log >&2; echo "run.sh: the build failed; see build.log" >&2; exit 1; }

failed=()
for name in "${names[@]}"; do
  if [[ $name == slow_link ]] && { ((EUID != 0)) || [[ ! -e /dev/net/tun ]]; }; then
    echo "== slow_link: left out, it needs root and /dev/net/tun" >&2
    continue
  fi
  if [[ $name == gpu ]] && ! nvidia-smi -L >/dev/null 2>&1; then
    echo "== gpu: left out, there is no GPU here" >&2
    continue
  fi
  echo "== $name" >&2
  .venv/bin/python "benchmarks/$name.py" "${flags[@]}" || failed+=("$name")
done
((${#failed[@]} == 0)) || { echo "run.sh: failed: ${failed[*]}" >&2; exit 1; }
echo "run.sh: pages in ${flags[2]:-benchmarks/results}" >&2
if ((${#names[@]} == ${#all[@]})); then
  echo "run.sh: it does not make the folders of other machines, nor these pages:" >&2
  printf '  %s\n' "${others[@]}" >&2
fi
