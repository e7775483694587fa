#!/usr/bin/env bash
# After build.sh: the checks that need a GPU. Ranks of NCCL on one GPU, tests in C++ and Python, operators under
# compute-sanitizer, benchmarks. cpp runs six programs, python and sanitizer two each. Each program ends within 4 minutes,
# and the next one runs even if it fails. A program's output goes to results/NAME.txt, a line of it to
# results/summary.txt. Ends with 1 if one failed.
#   bash gpu.sh [PART…] [-- FLAG…]     parts: nccl cpp python sanitizer benchmarks; flags of benchmarks/gpu.py
#   bash gpu.sh --without-gpu [PART…]  checks that all runs: tests that need a GPU skip, benchmarks are tiny
# MEZZO_PYTHON: as for build.sh. MEZZO_LIMIT: seconds of each program, 235 by default. A second call of benchmarks goes on
# with the rows that the first one had no time for.
set -uo pipefail
cd "$(dirname "$0")" || exit 1
python=${MEZZO_PYTHON:-python3}
limit=${MEZZO_LIMIT:-235}
parts=() flags=() has_gpu=1
while (($#)); do
  case $1 in
    --) shift; flags=("$@"); break ;;
    --without-gpu) has_gpu=0 ;;
    nccl | cpp | python | sanitizer | benchmarks) parts+=("$1") ;;
    *) echo "gpu: what is \"$1\"? Parts are nccl, cpp, python, sanitizer and benchmarks" >&2; exit 2 ;;
  esac
  shift
done
((${#parts[@]})) || parts=(nccl cpp python sanitizer benchmarks)
if [[ ! -d build ]]; then
  echo "gpu: nothing is built here; run bash build.sh first" >&2
  exit 1
fi
if ((has_gpu)) && ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  echo "gpu: $python has no torch that sees a GPU here; --without-gpu runs what needs none" >&2
  exit 1
fi

export MEZZO_PROGRAM=$PWD/build/bin/mezzo MEZZO_SHARED=$PWD/shared HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
mkdir -p results
{
  date
  cat mezzo/.commit
  nvidia-smi
  "$python" -c 'import torch; print(torch.__version__, torch.version.cuda, torch.cuda.is_available() and torch.cuda.get_device_name())'
} >results/machine.txt 2>&1
failed=0

say() { printf '%-26s %-22s %s\n' "$@" | tee -a results/summary.txt; }

# What gtest and pytest say of themselves at the end.
counts_of() {
  grep -Eo '\[  (PASSED|SKIPPED|FAILED)  ?\] [0-9]+ tests?|^[0-9: ]*[0-9]+ (passed|failed|skipped|error).* in [0-9.]+s.*|ERROR SUMMARY: .*|RACECHECK SUMMARY: .*' "$1" |
    tail -n 4 | tr -s ' \n' ' '
}

# part NAME COMMAND…
part() {
  local name=$1 begin=$SECONDS status=0 outcome=passed
  shift
  timeout --kill-after=5 "$limit" "$@" >"results/$name.txt" 2>&1 </dev/null || status=$?
  if ((status)); then
    failed=1
    outcome="FAILED ($status)"
    ((status != 124 && status != 137)) || outcome="STOPPED at $limit s"
  fi
  say "$name" "$outcome" "$((SECONDS - begin)) s; $(counts_of "results/$name.txt")"
}

tests() { # NAME… of ctest
  for name in "$@"; do
    part "$name" ctest --test-dir build --no-tests=error -V -R "^${name//./\\.}\$"
  done
}

say "$(date '+%F %T')" "${parts[*]}" "$(cat mezzo/.commit)"
for part_name in "${parts[@]}"; do
  case $part_name in
    nccl)
      ranks=(--device cuda:0)
      ((has_gpu)) || ranks=(--device cpu --steps 40)
      part nccl "$python" mezzo/scripts/bundle/nccl.py --mezzo "$MEZZO_PROGRAM" --results results/nccl "${ranks[@]}" ;;
    cpp) tests cuda_kernel_tests encoder_tests core_tests text_tests device_tests distributed_tests ;;
    python)
      [[ ! -d third_party/python || ! -d build/python ]] || cp -r third_party/python/. build/python
      if ctest --test-dir build -N -R '^python\.cuda_training$' | grep -q 'Total Tests: 1' &&
        "$python" -c 'import numpy, pytest, safetensors, transformers' 2>results/python.txt; then
        tests python.amp python.cuda_training
      else
        say python "left out" "no Python headers when it was built, or a package is missing: $(tail -n 1 results/python.txt 2>/dev/null)"
      fi ;;
    sanitizer)
      PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
      if ! command -v compute-sanitizer >/dev/null; then
        say sanitizer "left out" "there is no compute-sanitizer on the path"
      elif ((has_gpu)); then
        for tool in memcheck racecheck; do
          # Memory that LibTorch keeps for itself would hide what lies beyond a tensor; its own kernels
          # are many, and not looked at.
          part "$tool" env PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$tool" --error-exitcode 9 \
            --kernel-regex kns=mezzo build/bin/encoder_tests --gtest_filter='*OperatorOnDeviceTest*_on_cuda'
        done
      else
        say sanitizer "left out" "there is no GPU"
      fi ;;
    benchmarks)
      ((has_gpu)) || flags=(--device cpu --quick --candidates "varlen, recorded" grouped "${flags[@]}")
      part benchmarks "$python" mezzo/benchmarks/gpu.py --results results --minutes $(((limit - 30) / 60)) "${flags[@]}" ;;
  esac
done
((failed == 0)) && say "all" "passed" "" || say "all" "NOT PASSED" "see results/"
exit "$failed"
