#!/bin/sh
# How much of its parser each fuzz target reaches with its committed inputs, in lines; less than 70 %
# is a failure. Needs clang, llvm-profdata and llvm-cov; `make fuzz-cover` builds what it runs.
# usage: cover.sh BUILD TARGET..
cd "$(dirname "$0")/../.." || exit 1
b=$1
shift

# sources TARGET: the files of its parser.
sources()
{
    case $1 in
    card) echo lib/run/fetch_card.c ;;
    config) echo lib/nn/config*.c ;;
    csv) echo lib/data/csv.c ;;
    json) echo lib/base/json.c lib/base/json_scan.c ;;
    jsonl) echo lib/base/jsonl.c ;;
    rank) echo lib/data/tok_rank.c lib/data/tok_conf.c ;;
    safetensors) echo lib/data/weights.c ;;
    serve_http) echo lib/serve/httpd.c lib/serve/httpd_req.c lib/serve/route.c ;;
    serve_json) echo lib/serve/read.c lib/serve/read_json.c lib/serve/read_sample.c lib/serve/datum.c ;;
    serve_keys) echo lib/serve/keys.c ;;
    serve_oai) echo lib/serve/oai_read.c ;;
    serve_proto) echo lib/serve/read_proto.c lib/serve/proto.c lib/serve/result_json.c lib/serve/datum.c ;;
    shard) echo lib/data/shard.c lib/data/shard_map.c ;;
    *) echo lib/data/"$1"*.c ;;         # gguf, jinja, tok
    esac
}

bad=0
for t; do
    t=$(basename "$t")
    p=$b/cover-$t
    LLVM_PROFILE_FILE=$p.raw "$b/fuzz/$t" -runs=0 "tests/fuzz/corpus/$t" >"$p.log" 2>&1 &&
        llvm-profdata merge -o "$p.data" "$p.raw" || { cat "$p.log"; exit 1; }
    # shellcheck disable=SC2046
    llvm-cov report "$b/fuzz/$t" -instr-profile="$p.data" $(sources "$t") |
        awk -v t="$t" '/^TOTAL/ { printf "%-12s %s of %s lines\n", t, $10, $8; ok = $10 + 0 >= 70 }
            END { exit !ok }' || bad=1
done
exit $bad
