#!/usr/bin/env bash
# Everything that needs a card, each within its own time: OUT=folder tests/measure/on_card.sh [part...]
set -u
cd "$(dirname "$0")/../.."
export PYTHONUNBUFFERED=1 PYTHONPATH=.
OUT="${OUT:-/tmp/card}"
mkdir -p "$OUT"

part() { # name, seconds, command...
    local name=$1 seconds=$2 from=$SECONDS
    shift 2
    timeout "$seconds" "$@" >"$OUT/$name.log" 2>&1
    echo "== $name: rc $? after $((SECONDS - from)) s"
    tail -n "${LINES_SHOWN:-14}" "$OUT/$name.log"
}

tests() {
    local pids=()
    for file in ${FILES:-tests/kernels/test_triton_*.py}; do
        part "$(basename "$file" .py)" 170 python3 -m pytest -q -x --no-header -p no:cacheprovider "$file" &
        pids+=($!)
    done
    wait "${pids[@]}"
}
graphs() { part graphs 100 python3 -m pytest -q --no-header -p no:cacheprovider tests/gpu; }
linear() { part linear 100 python3 tests/measure/linear_kernel.py; }
decode() { part decode 110 python3 tests/measure/decode_kernel.py --json "$OUT/decode.json"; }
prefill() { part prefill 110 python3 tests/measure/prefill_kernel.py; }
selector() { part selector 80 python3 tests/measure/selector_kernel.py; }
bench() {
    part bench 150 python3 -m app.cli bench --shape llama-3-8b --lengths "${LENGTHS:-8k,128k}" --modes exact,balanced \
        --formats "${FORMATS:-bf16}" --what "${WHAT:-tpot,ttft}" --out "$OUT"
}
profile() { part profile 90 python3 tests/measure/profile_card.py; }

for name in "${@:-tests graphs linear decode prefill selector bench profile}"; do
    for each in $name; do "$each"; done
done
