#!/usr/bin/env bash
# Everything that needs a card, each within its own time: OUT=folder tests/measure/on_card.sh [part...]
# `first` checks and compiles side by side, then times variants of the kernels one after the other; `again` does so for
# attention, page selection and whole steps alone.
set -u
cd "$(dirname "$0")/../.."
export PYTHONUNBUFFERED=1 PYTHONPATH=".${PYTHONPATH:+:$PYTHONPATH}"
OUT="${OUT:-/tmp/card}"
LOGS="$OUT/logs"
mkdir -p "$LOGS"
PYTEST="python3 -m pytest -q --no-header -p no:cacheprovider --maxfail=8"

part() { # name, seconds, lines shown, command...
    local name=$1 seconds=$2 lines=$3 from=$SECONDS left=$((${END:-1000000} - SECONDS))
    shift 3
    ((seconds <= left)) || seconds=$((left > 1 ? left : 1))
    timeout "$seconds" "$@" >"$LOGS/$name.log" 2>&1
    local rc=$?
    {
        echo "== $name: rc $rc after $((SECONDS - from)) s"
        tail -n "$lines" "$LOGS/$name.log"
    } >"$LOGS/$name.end"
    cat "$LOGS/$name.end"
}
tests_of() { # file, processes
    part "test_$1" 170 4 $PYTEST -n "${2:-1}" "tests/kernels/test_triton_$1.py"
}
together() { # parts, at the same time
    local pids=()
    for each in "$@"; do
        $each &
        pids+=($!)
    done
    wait "${pids[@]}"
}

test_decode() { tests_of decode_attention 4; }
test_linear() { tests_of linear 2; }
test_elementwise() { tests_of elementwise 2; }
test_coarse() { tests_of coarse 2; }
test_selection() { tests_of page_selection; }
test_scores() { tests_of page_scores; }
test_sample() { tests_of sample; }
test_codec() { tests_of kv_codec 2; }
test_blocks() { tests_of block_scores; }
test_prefill() { tests_of prefill_attention 2; }
graphs() { part graphs 170 6 $PYTEST -n "${GRAPHS:-4}" tests/gpu; }
doubtful() { # kernel, processes: all of its tests, neighbours in one process as they share kernels, with what fails
    part "test_$1" 130 60 $PYTEST --tb=short -n "$2" --dist worksteal "tests/kernels/test_triton_$1.py"
}
compile_chain() { COMPILERS=4 part compile_chain 150 1 python3 tests/measure/chain_kernel.py --compile; }
compile_decode() { COMPILERS=6 part compile_decode 170 1 python3 tests/measure/decode_kernel.py --compile; }
compile_selector() { COMPILERS=4 part compile_selector 150 1 python3 tests/measure/selector_kernel.py --compile; }
compile_steps() { part compile_steps 170 8 python3 tests/measure/step_card.py --lengths 8k; }
chain() { part chain 60 46 python3 tests/measure/chain_kernel.py --out "$LOGS/chain.json"; }
compile_apart() { COMPILERS=3 part compile_apart 130 1 python3 tests/measure/chain_kernel.py --apart --compile; }
apart() { part apart 50 46 python3 tests/measure/chain_kernel.py --apart --out "$LOGS/apart.json"; }
decode() { part decode "${DECODE:-90}" 48 python3 tests/measure/decode_kernel.py --seconds 40 --json "$LOGS/decode.json"; }
selector() { part selector 60 24 python3 tests/measure/selector_kernel.py --variants; }
codec() { part codec 80 24 python3 tests/measure/selector_kernel.py --codec; }
steps() {
    part steps "${STEPS:-110}" 20 python3 tests/measure/step_card.py --lengths "${LENGTHS:-8k,128k,512k}" \
        --formats "${FORMATS:-bf16}" --seconds 85 --out "$LOGS/steps.json"
}
first() {
    together test_decode test_linear test_elementwise test_coarse test_selection test_scores test_sample graphs \
        compile_chain compile_decode compile_selector compile_steps >"$LOGS/together.txt"
    for name in steps chain selector decode; do $name >/dev/null; done
    # The reply shows the end of what is printed: what decides most comes last.
    cat "$LOGS"/compile_*.end "$LOGS"/test_*.end "$LOGS/graphs.end" "$LOGS"/{selector,decode,chain,steps}.end
}

coarse_again() { doubtful coarse 4; }
decode_again() { doubtful decode_attention 8; }
again() {
    together decode_again coarse_again compile_again compile_apart compile_selector compile_steps >"$LOGS/together.txt"
    DECODE=60 STEPS=40
    for name in steps decode apart selector; do $name >/dev/null; done
    cat "$LOGS"/compile_*.end "$LOGS"/test_*.end "$LOGS"/{selector,apart,decode,steps}.end
}
compile_again() { COMPILERS=8 part compile_decode 130 1 python3 tests/measure/decode_kernel.py --compile; }

linear() { part linear 100 60 python3 tests/measure/linear_kernel.py; }
prefill() { part prefill 110 14 python3 tests/measure/prefill_kernel.py; }
bench() {
    part bench 200 40 python3 -m app.cli bench --shape "${SHAPE:-llama-3-8b}" --lengths "${LENGTHS:-8k,128k}" \
        --modes exact,balanced --formats "${FORMATS:-bf16}" --what "${WHAT:-tpot,ttft}" --out "$OUT"
}
profile() { part profile 90 60 python3 tests/measure/profile_card.py; }

# What `second` runs: the starter model as models/starter.gguf, gguf on PYTHONPATH for argmax and compiles.
ada_of() { # shape, _compile or nothing, seconds
    part "ada$2_$1" "$3" 16 python3 tests/measure/ada.py --shapes "$1" --seconds 40 ${2:+--compile} \
        --out "$LOGS/ada$2_$1.json"
}
compile_ada_llama() { ada_of llama-3-8b _compile 115; }
compile_ada_qwen() { ada_of qwen3-4b _compile 115; }
compile_restore() {
    part compile_restore 115 4 python3 -m app.cli bench --what ttft --lengths 8k --formats k4v4,fp8 --modes exact,balanced
}
compile_torch() { part compile_torch 115 6 python3 -m app.cli bench --what torch --lengths 8k; }
ada() { for shape in llama-3-8b qwen3-4b; do ada_of "$shape" "" 55; done; }
argmax() { part argmax 110 12 python3 tests/measure/argmax.py --threads 3 --out "$LOGS/argmax.json"; }
compiles() { part compiles 140 8 python3 tests/measure/question_compiles.py --seconds 100 --out "$LOGS/compiles.json"; }
peers() { # torch's attention in our engine, transformers
    part peers 110 12 python3 -m app.cli bench --what torch,transformers --peer-seconds 60 --lengths "${PEERS:-8k,32k,128k}" \
        --out "$LOGS/peers"
}
restore() {
    part restore 75 12 python3 -m app.cli bench --what ttft,restore --lengths "${RESTORE:-32k}" --formats k4v4,fp8 \
        --modes exact,balanced --out "$LOGS/restore"
}
second() {
    END=$((SECONDS + ${WITHIN:-278})) PEERS=${PEERS:-8k,128k} # no part runs past END
    together compile_ada_llama compile_ada_qwen compile_restore compile_torch argmax compiles >"$LOGS/together.txt"
    for name in ada restore peers; do $name >/dev/null; done
    cat "$LOGS"/compile_{restore,torch}.end "$LOGS"/ada_compile_*.end "$LOGS"/{compiles,argmax,peers,restore}.end \
        "$LOGS"/ada_{qwen3-4b,llama-3-8b}.end
}

for name in "${@:-first}"; do $name; done
tar -czf "$OUT/logs.tgz" -C "$OUT" logs && rm -r "$LOGS"
