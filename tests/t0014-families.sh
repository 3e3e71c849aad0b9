#!/bin/sh
# Every family from a config alone: published models have the sizes that their files have, and a tiny
# model of each is made, trained and read again.
. "$(dirname "$0")/lib.sh"

echo '{"tokens":[1,2,3,4,5,6,7,8,9,10,11,12]}' >"$TMP/d.jsonl"
export D="$TMP/d.jsonl"

test_case 'published models have their published number of parameters, within half a percent' '
	bad=0 n=0
	while read -r name want; do
	    # what does not fit here is planned, too, and refused after that
	    got=$(tw-train --init random --config-json "$DATA/configs/$name.json" --plan "$D" 2>err |
	        sed -n "s/^parameters  *//p" | tr -d ,)
	    n=$((n + 1))
	    [ -n "$got" ] && [ $((200 * (got > want ? got - want : want - got))) -le "$want" ] && continue
	    echo "$name: ${got:-none} parameters, $want published"
	    cat err
	    bad=$((bad + 1))
	done <"$DATA/configs/sizes.txt"
	echo "$n models"
	[ $bad = 0 ] && [ $n -ge 53 ]
'

# small NAME CONFIG: a tiny model of a config alone
small()
{
	test_case "$1 from its config alone: made, trained, saved, read, sampled" "
		tw-train --init random --config-json '$2' --steps 2 -o run \"\$D\"
		[ ! -e run/latest/README.md ]
		tw-train -m run --lora r=2 --steps 1 -o again \"\$D\"
		echo '{\"tokens\":[1,2,3,4]}' | tw-sample -m run --adapter again --max-tokens 3 --temperature 0 >out
		grep -q '\"completion\":{\"tokens\":\\[[0-9]' out
	"
}
for c in "$DATA"/models/*/config.json; do
	small "$(basename "$(dirname "$c")")" "$c"
done
BASE='"hidden_size":32,"num_attention_heads":4,"rms_norm_eps":1e-5,"max_position_embeddings":128'
cat >"$TMP/chatglm.json" <<X
{"model_type":"chatglm","hidden_size":32,"ffn_hidden_size":48,"num_layers":2,"num_attention_heads":4,"kv_channels":8,
"multi_query_attention":true,"multi_query_group_num":2,"padded_vocab_size":100,"seq_length":128,"layernorm_epsilon":1e-5}
X
for f in internlm2 internlm3; do
	cat >"$TMP/$f.json" <<X
{"model_type":"$f",$BASE,"num_key_value_heads":2,"intermediate_size":48,"num_hidden_layers":2,"vocab_size":100,"bias":true,
"rope_scaling":{"type":"dynamic","factor":2.0}}
X
done
for f in chatglm internlm2 internlm3; do
	small $f "$TMP/$f.json"
done

test_case 'with dynamic angles a text is as long as their base is chosen for' '
	i=0
	while [ $i -lt 200 ]; do echo $((i % 90 + 1)); i=$((i + 1)); done | paste -sd, | sed "s/.*/{\"tokens\":[&]}/" >long.jsonl
	test_exit 1 tw-train --init random --config-json "$TMP/internlm3.json" --steps 1 -o a long.jsonl 2>err
	test_text err "200 tokens is longer than the model"
	test_text err "128 positions"
	sed "s/\"factor\":2.0/&,\"length\":200/" "$TMP/internlm3.json" >three.json
	tw-train --init random --config-json three.json --steps 1 -o b long.jsonl
	grep -q "\"length\":200" b/latest/config.json
'
test_case 'a model is needed, but for random weights of a config' '
	test_exit 2 tw-train --init random -o a "$D" 2>err
	test_text err "--model"
	test_exit 2 tw-train --merge --adapter x -o a 2>err
	test_text err "MODEL is needed"
'
test_done
