#!/usr/bin/env bash
# Sets up, builds, and runs every benchmark, one after the other; each writes a page of
# benchmarks/results. Takes hours if the processor has no instructions for bf16. --quick: checks
# that all of them run, on tiny models, into a temporary folder. NAME...: only these, e.g. bash
# benchmarks/run.sh training roofline
set -euo pipefail
cd "$(dirname "$0")/.."
all=(micro autocast_overhead tokenizer startup serve training optimize model_families int8 roofline flat curves threads scaling slow_link saving restarts gpu)
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
