#!/bin/sh
# The same scripts with TW_SERVER: no word of them changes, and neither does what they end with.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"

# example NAME ROWS: here and on a server; the adapters have the same bytes, and what is printed is the same.
example()
{
    export ROWS=$2 TOKENS=8
    mkdir here there
    OUT=$PWD/here bash "$TOP/examples/$1.sh" >here.txt
    serve_start --state st
    TW_SERVER=$URL OUT=$PWD/there bash "$TOP/examples/$1.sh" >there.txt
    cat here.txt
    cmp here.txt there.txt
    cmp here/run/latest/adapter_model.safetensors there/run/latest/adapter_model.safetensors
    test -s there/run/latest/trainer/server.json
}

test_case 'sft.sh' 'example sft 8'
test_case 'dpo.sh' 'example dpo 16'
test_case 'grpo.sh' 'example grpo 16'
test_case 'serve/tenants.sh: four at once, each with what it would have had alone' '
	serve_start --state st
	export ROWS=16
	mkdir a
	TW_SERVER=$URL OUT=$PWD/a bash "$TOP/examples/serve/tenants.sh" >said
	test_text said "dan: 16 records scored"
	awk -f "$TOP/examples/sums.awk" -v n=16 -v as=chat >t.jsonl
	tw-train -q -m tiny --lora r=16,alpha=32 --lr 1e-3 --batch 8 --epochs 2 -o alone t.jsonl
	cmp a/anna/latest/adapter_model.safetensors alone/latest/adapter_model.safetensors
	tw-sample -q -m tiny --score t.jsonl >alone.jsonl
	cmp a/dan.jsonl alone.jsonl
'
test_done
