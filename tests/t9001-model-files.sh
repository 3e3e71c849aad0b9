#!/bin/sh
# Damaged and hostile model files and shards: every command that opens them refuses, by name.
. "$(dirname "$0")/lib.sh"

M=$TMP/model
P='{"prompt":"hello world"}'
T='{"text":"hello world hello"}'

# refused FOLDER TEXT: tw-train and tw-sample end with status 1 and say TEXT.
refused()
{
    echo "$T" >in.jsonl
    test_exit 1 tw-train -m "$1" -o run --steps 1 in.jsonl >out 2>err
    test_text err "tw-train: "
    test_text err "$2"
    [ ! -e run/latest ]
    rm -rf run
    echo "$P" >in.jsonl
    test_exit 1 tw-sample -m "$1" --max-tokens 1 in.jsonl >out 2>err
    test_text err "tw-sample: "
    test_text err "$2"
    [ ! -s out ]
}

# bytes FILE: its size.
bytes()
{
    wc -c <"$1" | tr -d ' '
}

# index FILE FILE: an index that names them for the tensors of the folder m.
index()
{
    printf '{"metadata":{},"weight_map":{"model.norm.weight":"%s","x":"%s"}}' "$1" "$2" \
        >m/model.safetensors.index.json
}

test_case 'a GGUF file becomes a folder that trains and samples' '
    test_equal "$(tw-fetch -o "$M" "$DATA/gguf/blocks.gguf")" "$M"
    echo "$T" >in.jsonl
    tw-train -m "$M" -o run --steps 1 in.jsonl
    echo "$P" | tw-sample -m run --max-tokens 2 >out
    test_text out "\"prompt_tokens\":[0,264,263,"
'
test_case 'a SentencePiece GGUF file as well' '
    tw-fetch -o m "$DATA/gguf/kblocks.gguf"
    echo "{\"prompt\":\"abc cab\"}" | tw-sample -m m --max-tokens 2 >out
    test_text out "\"prompt_tokens\":[1,13,6,9,11]"
'
test_case 'bf16 weights take half the space' '
    tw-fetch --dtype bf16 -o m "$DATA/gguf/blocks.gguf"
    [ "$(bytes m/model.safetensors)" -lt "$(($(bytes "$M/model.safetensors") * 6 / 10))" ]
    echo "$P" | tw-sample -m m --max-tokens 2 >out
'
test_case 'without room for the weights nothing is left behind' '
    (ulimit -f 20; test_exit 1 tw-fetch -o m "$DATA/gguf/blocks.gguf" >out 2>err)
    test_text err "model.safetensors: cannot reserve"
    test_equal "$(ls -A)" "$(printf "err\nout")"
'
test_case 'a model that lacks its last bytes is refused with both sizes' '
    cp -R "$M" m
    n=$(bytes m/model.safetensors)
    truncate -s -4 m/model.safetensors
    refused m "m/model.safetensors: truncated: the header describes $n bytes, the file has $((n - 4))"
'
test_case 'a model that lacks its last page is refused' '
    cp -R "$M" m
    n=$(bytes m/model.safetensors)
    truncate -s -4096 m/model.safetensors
    refused m "m/model.safetensors: truncated: the header describes $n bytes, the file has $((n - 4096))"
'
test_case 'a model with bytes too many is refused' '
    cp -R "$M" m
    n=$(bytes m/model.safetensors)
    echo more >>m/model.safetensors
    refused m "describes $n bytes, the file has $((n + 5))"
'
test_case 'an index that leads out of the folder is refused' '
    cp -R "$M" m
    mv m/model.safetensors m/a.st
    cp m/a.st outside.safetensors
    for name in ../outside.safetensors "$PWD/outside.safetensors" a/../../outside.safetensors; do
        index a.st "$name"
        refused m "shard name \"$name\" leads out of the folder"
    done
'
test_case 'a link that leads out of the folder is refused' '
    cp -R "$M" m
    mv m/model.safetensors outside.safetensors
    ln -s ../outside.safetensors m/a.st
    index a.st a.st
    refused m "the link leads out"
'
test_case 'an index with a shard that is not there names it' '
    cp -R "$M" m
    mv m/model.safetensors m/a.st
    index a.st b.st
    refused m "m/b.st"
'
test_case 'a shard that was cut off is refused, from a file and from a pipe' '
    for i in 1 2 3; do echo "$T"; done | tw-encode -m "$M" -o d.tws
    tw-train -m "$M" -o whole --steps 1 d.tws
    head -c $(($(bytes d.tws) - 8)) d.tws >cut.tws
    test_exit 1 tw-train -m "$M" -o run --steps 1 cut.tws >out 2>err
    test_text err "cut off"
    rm -rf run
    head -c $(($(bytes d.tws) - 8)) d.tws >cut.tws
    test_exit 1 tw-train -m "$M" -o run --steps 1 <cut.tws >out 2>err
    test_text err "cut off"
'
test_case 'shards of another tokenizer are refused' '
    tw-fetch -o m "$DATA/gguf/kblocks.gguf"
    echo "{\"text\":\"abc\"}" | tw-encode -m m -o d.tws
    test_exit 1 tw-train -m "$M" -o run --steps 1 d.tws >out 2>err
    test_text err "tokenizer"
'
test_case 'shards may follow each other' '
    echo "$T" | tw-encode -m "$M" -o a.tws
    cat a.tws a.tws | tw-train -m "$M" -o run --batch 1
    test_equal "$(grep -c "\"event\":\"step\"" run/metrics.jsonl)" 2
'
test_done
