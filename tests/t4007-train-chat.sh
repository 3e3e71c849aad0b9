#!/bin/sh
# From conversations to an answer: what was trained is what is sampled.
. "$(dirname "$0")/lib.sh"
. "$TOP/tests/train.sh"

chats()
{
    for i in 1 2 3 4 5 6 7 8; do
        echo "{\"messages\":[{\"role\":\"user\",\"content\":\"Question number $i?\"},{\"role\":\"assistant\",\"content\":\"The answer is $((i * 37)) and $i apples.\"}]}"
    done
}
# answers OPTIONS..: all eight come back, word for word.
answers()
{
    chats | sed 's/,{"role":"assistant".*/]}/' | tw-sample "$@" --temperature 0 --max-tokens 30 >out
    n=$(for i in 1 2 3 4 5 6 7 8; do
        grep -c "\"text\":\"The answer is $((i * 37)) and $i apples.\"" out || :
    done | grep -c 1)
    test_equal "$n" 8
}

test_case 'all weights from nothing, eight rows by heart' '
	chats >c.jsonl
	tw-train -m tiny --init random --lr 2e-3 --batch 8 --epochs 120 --save-every 1000 -o run c.jsonl
	answers -m run
	for f in tokenizer.json tokenizer_config.json chat_template.jinja generation_config.json; do
	    cmp "$TOP/share/models/tiny/$f" run/latest/$f
	done
'
test_case 'an adapter, through a pipe of shards, and merged' '
	[ -f "$TOP/share/models/tiny/model.safetensors" ] || test_skip "no weights"
	chats | tw-encode -m tiny | tw-train -m tiny --lora r=16,alpha=32 --lr 5e-3 --batch 8 --epochs 60 --save-every 1000 -o run
	values loss <run/metrics.jsonl | tail -n 1 | awk "{ exit !(\$1 < 0.05) }"
	answers -m tiny --adapter run
	tw-train --merge -m tiny --adapter run -o merged 2>err
	test_text err "merged as BF16"
	answers -m merged
	! answers -m tiny
'
test_case 'only what the assistant said is trained' '
	chats >c.jsonl
	tw-encode -m tiny --format jsonl c.jsonl >t.jsonl
	tw-train -m tiny --init random --batch 8 --steps 1 -o a c.jsonl
	tw-train -m tiny --init random --batch 8 --steps 1 -o b t.jsonl
	test_equal "$(values loss <a/metrics.jsonl)" "$(values loss <b/metrics.jsonl)"
	cmp a/latest/model.safetensors b/latest/model.safetensors
	grep -q "\"weights\":\[0,0,.*0,1,1" t.jsonl
	echo "{\"text\":\"The answer is 37.\"}" >x.jsonl
	tw-train -m tiny --init random --batch 8 --steps 1 -o c x.jsonl
'
test_case 'a shard of another tokenizer is refused' '
	chats | tw-encode -m tiny -o t.tws
	cp -rL "$TOP/share/models/tiny" other
	sed "s/\"apple\"/\"apqle\"/; s/\"content\": *\"<|im_end|>\"/\"content\":\"<|im_fin|>\"/" other/tokenizer.json >x
	cmp -s x other/tokenizer.json && test_skip "nothing to change in the tokenizer" || :
	mv x other/tokenizer.json
	test_exit 1 tw-train -m other --init random -o r t.tws 2>err
	grep -q "another tokenizer" err || grep -q tokenizer err
'
test_case 'an adapter of another template, tokenizer or end is told when it is used' '
	cp -R "$TW_SHARE/models/tiny" base
	chmod -R u+w base
	echo "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"Hello\"}]}" >c.jsonl
	tw-train -q -m base --lora r=2 --steps 1 -o run c.jsonl
	tw-sample -m base --adapter run --max-tokens 1 c.jsonl >out 2>err
	test_no_text err "another"
	sed -i "s/assistant/ASSISTANT/" base/chat_template.jinja
	sed -i "s/\"eos_token_id\"/ \"eos_token_id\"/" base/generation_config.json
	tw-sample -m base --adapter run --max-tokens 1 c.jsonl >out 2>err
	test_text err "adapter run was trained with another chat_template.jinja than that of base, which is used"
	test_text err "another generation_config.json"
	test_no_text err "another tokenizer.json"
'
test_done
