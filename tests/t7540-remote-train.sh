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
test_done
