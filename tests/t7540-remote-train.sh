#!/bin/sh
# With TW_SERVER set, tw-train trains on a server, and what comes out is what it would have made here.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"

# far COMMAND..: with the server of this case.
far() { TW_SERVER=$URL "$@"; }
chats() { awk -f "$TOP/examples/sums.awk" -v n="$1" -v as=chat; }
pairs() { awk -f "$TOP/examples/sums.awk" -v n="$1" -v as=pair; }
# The numbers of a run that do not depend on the clock or on the machine.
numbers() { sed 's/"time":[^,]*,//; s/"tokens_per_s":[^,}]*//; s/,"memory":[^,}]*//; s/"wait_s.*//' "$1/metrics.jsonl" | grep -v '"event":"start"'; }
same() { cmp "$1/latest/adapter_model.safetensors" "$2/latest/adapter_model.safetensors" && cmp "$1/latest/adapter_config.json" "$2/latest/adapter_config.json"; }

test_case 'conversations: the same adapter, the same numbers, an ordinary folder' '
	chats 24 >t.jsonl
	chats 5 >e.jsonl
	o="--lora r=4,alpha=8 --lr 1e-3 --batch 8 --epochs 2 --schedule cosine,warmup=1 --clip 0.5 --eval e.jsonl --save-every 2"
	tw-train -m tiny $o -o here t.jsonl
	serve_start --state st
	far tw-train -m tiny $o -o there t.jsonl
	same here there
	test_equal "$(numbers there)" "$(numbers here)"
	for f in tokenizer.json chat_template.jinja trainer/state.json trainer/manifest.json; do test -s there/latest/$f; done
	tw-sample -m tiny --adapter here --temperature 0 --max-tokens 8 e.jsonl | cut -d, -f1-20 >a
	tw-sample -m tiny --adapter there --temperature 0 --max-tokens 8 e.jsonl | sed "s/\"there\"/\"here\"/" | cut -d, -f1-20 >b
	cmp a b
'
test_case 'every kind of loss: pairs against the base, a weighted one, attention alone' '
	pairs 12 >p.jsonl
	pairs 4 >e.jsonl
	serve_start --state st
	for l in dpo,beta=0.1 simpo orpo cpo; do
	    o="--lora r=2,alpha=4 --lr 1e-3 --batch 4 --steps 3 --loss $l --eval e.jsonl"
	    tw-train -m tiny $o -o here-$l p.jsonl
	    far tw-train -m tiny $o -o there-$l p.jsonl
	    same here-$l there-$l
	    test_equal "$(numbers there-$l)" "$(numbers here-$l)"
	done
	chats 12 >t.jsonl
	for l in cross_entropy,dft=on; do
	    o="--lora r=2,targets=q_proj+k_proj+v_proj+o_proj --lr 1e-3 --batch 4 --steps 3 --loss $l --loss-scale sequence"
	    tw-train -m tiny $o -o here-$l t.jsonl
	    far tw-train -m tiny $o -o there-$l t.jsonl
	    cmp here-$l/latest/adapter_model.safetensors there-$l/latest/adapter_model.safetensors
	done
'
test_case 'rollouts at their temperature, from an adapter, against another one' '
	chats 8 >t.jsonl
	awk -f "$TOP/examples/sums.awk" -v n=6 >q.jsonl
	serve_start --state st
	a="--lora r=2 --lr 1e-3 --batch 4 --steps 2"
	tw-train -m tiny $a -o start t.jsonl
	far tw-train -m tiny $a -o start-far t.jsonl
	tw-sample -m tiny -n 4 --max-tokens 6 --temperature 0.7 q.jsonl | tw-reward length,min=9,max=10,span=12 --advantage grpo >r.jsonl
	for l in grpo,beta=0.04 gspo cispo; do
	    ref=; [ "$l" != grpo,beta=0.04 ] || ref=--ref
	    o="--lr 1e-3 --batch 8 --loss $l --publish off"
	    tw-train -m tiny $o --adapter start ${ref:+$ref start} -o here-$l r.jsonl
	    far tw-train -m tiny $o --adapter start-far ${ref:+$ref start-far} -o there-$l r.jsonl
	    cmp here-$l/latest/adapter_model.safetensors there-$l/latest/adapter_model.safetensors
	done
'
test_case 'the pipe of reinforcement, all of it on the server' '
	awk -f "$TOP/examples/sums.awk" -v n=12 >q.jsonl
	pipe()
	{
	    tw-sample -m tiny --policy $1 -n 4 --max-lag 0 --max-tokens 6 q.jsonl | tw-reward length,min=9,max=10,span=12 --advantage grpo |
	        tw-train -m tiny --lora r=2 --lr 1e-3 --loss grpo --batch 16 -o $1
	}
	pipe here
	serve_start --state st
	far pipe there
	same here there
	test -s there/policy/step-3/trainer/server.json
	test_exit 1 tw-sample -m tiny --adapter there/policy/step-3 q.jsonl 2>err
	test_text err "its weights are on the server http:"
'
test_done
