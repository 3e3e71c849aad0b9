# train.sh - what the scripts about tw-train share; sourced after lib.sh. BASE is a tiny model with
# random weights, and d.jsonl 24 token records of 5 to 28 tokens, most with weights.
BASE=$TMP/base

# config >FILE: a qwen3 of 31,200 parameters.
config()
{
    cat <<'EOF'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": false,
 "bos_token_id": 1, "eos_token_id": 2, "head_dim": 16, "hidden_act": "silu", "hidden_size": 32,
 "initializer_range": 0.2, "intermediate_size": 64, "max_position_embeddings": 512,
 "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
 "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "rope_scaling": null, "sliding_window": null,
 "tie_word_embeddings": true, "torch_dtype": "float32", "use_cache": true, "vocab_size": 200}
EOF
}

# records N SEED: token records.
records()
{
    awk -v n="$1" -v seed="$2" 'BEGIN {
        x = seed * 7919 + 1
        for (i = 0; i < n; i++) {
            len = 5 + (i * 7 + seed) % 24; t = w = ""
            for (k = 0; k < len; k++) {
                x = (x * 1103515245 + 12345) % 2147483648
                t = t (k ? "," : "") int(x / 65536) % 200
                w = w (k ? "," : "") (k < 3 ? 0 : k % 5 == 4 ? 0.5 : 1)
            }
            printf "{\"id\":%d,\"tokens\":[%s]%s}\n", i, t, i % 3 ? ",\"weights\":[" w "]" : ""
        }
    }'
}

# values KEY EVENT <metrics.jsonl: its value in each such line.
values()
{
    grep "\"event\":\"${2:-step}\"" | sed -n "s/.*\"$1\":\([^,}]*\).*/\1/p"
}

# same_run A B: the same final weights and, but for times and memory, the same metrics.
same_run()
{
    for f_ in "$1"/latest/*.safetensors "$1"/latest/trainer/*.safetensors; do
        [ ! -e "$f_" ] || cmp "$f_" "$2${f_#"$1"}" || return 1
    done
    test_equal "$(readlink "$1/latest")" "$(readlink "$2/latest")"
    for r_ in "$1" "$2"; do
        grep -v '"event":"start"' "$r_/metrics.jsonl" |
            sed 's/"\(time\|tokens_per_s\|memory\|mfu\)":[^,}]*//g' >"$r_.metrics"
    done
    cmp "$1.metrics" "$2.metrics"
}

# near X Y REL: fails unless |X - Y| <= REL * |Y|.
near()
{
    awk -v x="$1" -v y="$2" -v r="$3" 'BEGIN {
        d = x - y; d = d < 0 ? -d : d; a = y < 0 ? -y : y
        if (!(d <= r * a)) { print x " is not " y; exit 1 }
    }'
}

# ints FILE NAME: the values of an I32 tensor of a safetensors file, one a line.
ints()
{
    head_=$(od -An -tu8 -N8 "$1" | tr -d ' ')
    at_=$(dd if="$1" bs=1 skip=8 count="$head_" 2>/dev/null |
        sed "s/.*\"$2\":{[^}]*\"data_offsets\":\[\([0-9]*\),\([0-9]*\)\].*/\1 \2/")
    set -- "$1" $at_
    od -An -v -w4 -td4 -j $((8 + head_ + $2)) -N $(($3 - $2)) "$1" | tr -d ' '
}

# golden_records DIR: the two rows of a checkpoint of data/models as token records.
golden_records()
{
    ints "$1/expected.safetensors" input_ids >ids
    ints "$1/expected.safetensors" labels >labels
    paste ids labels | awk -v n="$(($(wc -l <ids) / 2))" '{
        t = t (t == "" ? "" : ",") $1; w = w (w == "" ? "" : ",") ($2 != -100)
        if (NR % n == 0) { print "{\"tokens\":[" t "],\"weights\":[" w "]}"; t = w = "" }
    }'
}

# close_to GOT WANT: as many lines (WANT decides), each within 1e-4.
close_to()
{
    paste "$2" "$1" | awk '{ d = ($1 - $2) / $1; d = d < 0 ? -d : d; if (!(d <= 1e-4)) bad++
        if (d > worst) worst = d } END { print "worst", worst + 0, "of", NR; exit bad || NR < 7 }'
}

make_base()
{
    mkdir -p "$TMP/shape"
    config >"$TMP/shape/config.json"
    records 24 1 >"$TMP/d.jsonl"
    tw-train -m "$TMP/shape" --init random --lr 0 --steps 1 --keep 1 -o "$TMP/make" "$TMP/d.jsonl" &&
        cp -r "$TMP/make/step-1" "$BASE" && rm -rf "$BASE/trainer" "$TMP/make"
}
