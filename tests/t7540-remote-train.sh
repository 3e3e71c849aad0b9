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
test_case 'labels, and a loss of ones own' '
	chats 12 | awk "{ sub(/}\$/, \",\\\"label\\\":\" (NR % 2 ? \"true\" : \"false\") \"}\"); print }" >k.jsonl
	serve_start --state st
	o="--lora r=2 --lr 1e-3 --batch 4 --steps 3 --loss kto"
	tw-train -m tiny $o -o here k.jsonl
	far tw-train -m tiny $o -o there k.jsonl
	same here there
	cc -O1 -o own "$TOP/examples/loss-exec.c" -lm
	o="--lora r=2 --lr 1e-3 --batch 4 --steps 3"
	tw-train -m tiny $o --loss-exec ./own -o here-own k.jsonl
	far tw-train -m tiny $o --loss-exec ./own -o there-own k.jsonl
	same here-own there-own
	test_equal "$(numbers there-own)" "$(numbers here-own)"
'
test_case 'kill -9 of the trainer, and of the server, and on with --resume: the same bytes' '
	chats 32 >t.jsonl
	o="--lora r=2 --lr 1e-3 --batch 4 --epochs 4 --schedule linear --save-every 2"
	tw-train -m tiny $o -o here t.jsonl
	export SERVE_LISTEN=unix:$PWD/s
	serve_start --state st
	TW_SERVER=$URL tw-train -m tiny $o -o there t.jsonl &
	until [ -e there/latest ]; do kill -0 $!; sleep 0.05; done
	kill -9 $! && wait $! || :
	test -s there/.session
	test ! -e there/step-32
	TW_SERVER=$URL tw-train -m tiny $o --resume -o there t.jsonl &
	trainer=$!
	was=$(readlink there/latest)
	while [ "$(readlink there/latest)" = "$was" ]; do kill -0 $trainer; sleep 0.05; done
	serve_stop KILL
	serve_start --state st
	wait $trainer
	same here there
	test_equal "$(numbers there)" "$(numbers here)"
	test ! -e there/.session
	# the server keeps what the run keeps
	ask "
runs = get(\"training_runs\", key=\"tml-user-%d\" % os.getuid())[\"training_runs\"]
left = [c[\"checkpoint_id\"] for r in runs for c in get(\"training_runs/%s/checkpoints\" % r[\"training_run_id\"], key=\"tml-user-%d\" % os.getuid())[\"checkpoints\"]]
left.sort(key=lambda name: int(name.split(\"-\")[1]))
assert left[-3:] == [\"weights/step-28\", \"weights/step-30\", \"weights/step-32\"] and len(left) <= 4, left
"
	far tw-train -m tiny $o --resume -o there t.jsonl 2>err
	test_text err "is finished: step 32 was its last"
'
test_case 'a line that loses requests and answers: nothing is done twice' '
	command -v python3 >/dev/null || test_skip "no python3"
	chats 16 >t.jsonl
	awk -f "$TOP/examples/sums.awk" -v n=5 >q.jsonl
	o="--lora r=2 --lr 1e-3 --batch 4 --loss cross_entropy,dft=on --save-every 2"
	tw-train -m tiny $o -o here t.jsonl
	tw-sample -m tiny --max-tokens 8 q.jsonl >here.jsonl
	serve_start --state st
	python3 "$TOP/tests/serve_flaky.py" "$URL" >line &
	line=$!
	trap "kill -9 $PID $line 2>/dev/null || :" EXIT
	until [ -s line ]; do kill -0 $line; sleep 0.05; done
	TW_SERVER=$(cat line) tw-train -m tiny $o -o there t.jsonl
	same here there
	TW_SERVER=$(cat line) tw-sample -m tiny --max-tokens 8 q.jsonl >there.jsonl
	cmp here.jsonl there.jsonl
	ask "
assert metric(\"tw_optimizer_steps_total\") == 4, metric(\"tw_optimizer_steps_total\")
"
'
test_case 'Ctrl-C saves, on the server too, and what follows is as it would have been' '
	chats 32 >t.jsonl
	o="--lora r=2 --lr 1e-3 --batch 4 --epochs 4 --save-every 100"
	serve_start --state st
	far tw-train -m tiny $o -o whole t.jsonl
	TW_SERVER=$URL tw-train -m tiny $o -o cut t.jsonl &
	until [ "$(wc -l <cut/metrics.jsonl)" -gt 4 ]; do kill -0 $!; sleep 0.05; done 2>/dev/null
	kill -INT $!
	test_exit 130 wait $!
	far tw-train -m tiny $o --resume -o cut t.jsonl
	same whole cut
'
test_case 'all weights, where the server has --full: the same bytes, and on with --resume' '
	chats 24 >t.jsonl
	pairs 8 >p.jsonl
	cp -r "$TW_SHARE/models/tiny" other
	serve_start --state st --full
	o="--lr 1e-4 --batch 8 --clip 0.5 --save-every 2"
	tw-train -m tiny $o --steps 4 -o here t.jsonl
	far tw-train -m tiny $o --steps 2 -o there t.jsonl
	far tw-train -m tiny $o --steps 4 --resume --force -o there t.jsonl
	cmp here/latest/model.safetensors there/latest/model.safetensors
	cmp here/latest/config.json there/latest/config.json
	tw-sample -m there --temperature 0 --max-tokens 4 t.jsonl >/dev/null
	o="--lr 1e-4 --batch 4 --steps 2 --loss dpo,beta=0.1"
	tw-train -m tiny $o --ref tiny -o here-dpo p.jsonl
	far tw-train -m tiny $o --ref tiny -o there-dpo p.jsonl
	cmp here-dpo/latest/model.safetensors there-dpo/latest/model.safetensors
	test_exit 2 far tw-train -m tiny $o --ref other -o r p.jsonl 2>err
	test_text err "tw-train: --ref: a server that trains all weights"
'
test_case 'what a server does not do is refused by name' '
	chats 4 >t.jsonl
	serve_start --state st
	refuse() { name=$1; shift; test_exit 2 far tw-train -m tiny --lora r=2 -o r "$@" t.jsonl 2>err; test_text err "tw-train: $name: "; test ! -e r; }
	refuse --lora --lora r=2,dropout=0.1
	refuse --lora --lora r=2,rslora=on
	refuse --lora --lora r=2,init=gaussian
	refuse --lora --lora r=2,targets=q_proj
	refuse --optimizer --optimizer sgd
	refuse --loss --loss cross_entropy,label_smoothing=0.1
	refuse --dtype --dtype f32
	refuse --device --device cpu
	refuse --threads --threads 1
	refuse --micro-tokens --micro-tokens 64
	refuse --recompute --recompute layer
	refuse --plan --plan
	cp -r "$TW_SHARE/models/tiny" other
	refuse --ref --loss dpo --ref other
	test_exit 1 far tw-train -m tiny --steps 1 -o whole t.jsonl 2>err
	test_text err "full-parameter training is not offered by this server: send a lora_config, or start it with --full"
	tw-train -m tiny --lora r=2 --steps 1 -o own t.jsonl
	test_exit 1 far tw-train -m tiny --adapter own -o r t.jsonl 2>err
	test_text err "own/step-1 was trained on this machine"
	test_exit 1 far tw-train -m tiny --lora r=2 --steps 1 --resume -o own t.jsonl 2>err
	far tw-train -m tiny --lora r=2 --steps 1 -o far t.jsonl
	test_exit 1 tw-train -m tiny --lora r=2 --steps 1 --resume -o far t.jsonl 2>err
	test_text err "was trained on the server $URL"
	tw-train -m tiny --adapter far --steps 1 -o from-far t.jsonl
'
test_case 'another model, no key, a wrong key, nobody there' '
	chats 4 >t.jsonl
	cp -r "$TW_SHARE/models/tiny" other
	printf "tml-right a rights=train,sample\ntml-few b rights=sample\n" >keys
	chmod 600 keys
	serve_start --state st --keys keys
	try() { test_exit 1 far tw-train -m ${M:-tiny} --lora r=2 --steps 1 -o r t.jsonl 2>err; test_no_text err tml-; }
	try
	test_text err "the server wants a key: put it into TW_API_KEY"
	TW_API_KEY=tml-wrong try
	test_text err "the server does not know the key in TW_API_KEY"
	TW_API_KEY=tml-few try
	test_text err "right"
	M=other TW_API_KEY=tml-right try
	test_text err "the server has tiny, and no other"
	mkdir -p x
	mv other x/tiny
	sed "s/\"x\":90,\"y\":91/\"x\":91,\"y\":90/" x/tiny/tokenizer.json >y
	mv y x/tiny/tokenizer.json
	M=x/tiny TW_API_KEY=tml-right try
	test_text err "model has another tokenizer than MODEL"
	TW_API_KEY=tml-right far tw-train -m tiny --lora r=2 --steps 1 -o r t.jsonl
	serve_stop
	test_exit 1 far tw-sample -m tiny t.jsonl 2>err
	test_text err "the server does not answer"
	test_exit 1 env TW_SERVER=ftp://x tw-sample -m tiny t.jsonl 2>err
	test_text err "TW_SERVER: is none of"
'
test_done
