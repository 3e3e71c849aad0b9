#!/bin/sh
# t7002-loss-exec.sh - a loss that is a command, and a reference policy of one's own
. "$(dirname "$0")/lib.sh"
M=$DATA/models/qwen3
C=$TW_BUILD/examples/loss-exec
PY=$TOP/examples/loss-exec.py
export M C PY
command -v python3 >/dev/null || PY=

# Token records with weights, rollouts with advantages, pairs.
i=0
while [ $i -lt 12 ]; do
    echo "{\"tokens\":[$((10 + i)),$((40 + i * 3)),77,$((100 + i)),9,$((30 + i))],\"weights\":[0,0,1,0.3,0,1.7]}"
    i=$((i + 1))
done >"$TMP/in.jsonl"
tw-sample -q -m "$M" -n 4 --max-tokens 5 --temperature 1.3 "$TMP/in.jsonl" |
    tw-reward -q --exec 'while read -r line; do echo $((${#line} % 3)); done' --advantage grpo >"$TMP/rolls"
i=0
while [ $i -lt 8 ]; do
    echo "{\"chosen\":{\"tokens\":[$((10 + i)),20,31,40],\"weights\":[0,0,1,1]},\"rejected\":{\"tokens\":[$((10 + i)),20,90,91],\"weights\":[0,0,1,1]}}"
    i=$((i + 1))
done >"$TMP/pairs"
train() # RUN, options..
{
    r_=$1
    shift
    tw-train -q -m "$M" --lora r=4 --lr 1e-2 --batch 4 --micro-tokens 40 -o "$r_" "$@"
}
numbers() # RUN: its metrics but for what depends on the machine or names the command
{
    grep '"event":"step"' "$1/metrics.jsonl" |
        sed 's/"\(time\|tokens_per_s\|memory\|wait_s\|busy_s\)":[^,}]*,*//g; s/"profiling[^,}]*,*//g; s/,*"exec[^,}]*//g; s/,}/}/'
}

test_case 'a command that does what a built-in loss does: the same bits' '
	for kind in "cross_entropy in.jsonl 2" "grpo rolls 3"; do
	    set -- $kind
	    train built --loss $1 --epochs $3 --publish off "$TMP/$2"
	    numbers built >want
	    for cmd in "$C" $PY; do
		train run --loss $1 --loss-exec "$cmd $1" --epochs $3 --publish off "$TMP/$2"
		cmp built/latest/adapter_model.safetensors run/latest/adapter_model.safetensors
		numbers run >got
		diff want got
		rm -rf run
	    done
	    rm -rf built
	done
'
test_case 'what goes out: one line a step, as the page says' '
	printf "#!/bin/sh\nwhile read -r l; do echo \"\$l\" >>sent; echo \"\$l\" | \$C grpo; done\n" >tee.sh
	chmod +x tee.sh
	train run --loss grpo,beta=0.1 --loss-exec ./tee.sh --steps 3 "$TMP/rolls"
	test "$(wc -l <sent)" = 3
	test "$(grep -c "^{\"step\":[123],\"loss\":\"grpo\",\"supervised\":[0-9]*,\"sequences\":\[{\"id\":[0-9]*,\"positions\":\[6," sent)" = 3
	grep -q "\"old_logprobs\":\[-.*\"ref_logprobs\":\[-.*\"advantage\":.*\"temperature\":1.3.*\"scale\":" sent
	rm sent
	train pairs --loss dpo --loss-exec "head -n 1 >sent; exit 3" --steps 1 "$TMP/pairs" 2>err || :
	grep -q "\"side\":\"chosen\",.*\"nll_scale\":.*\"side\":\"rejected\"" sent
'
test_case 'its metrics stand in the line of the step' '
	[ -n "$PY" ] || test_skip "no python3"
	train run --loss-exec "$PY focal" --epochs 4 "$TMP/in.jsonl"
	test "$(grep -c "\"exec/tokens\":12}" run/metrics.jsonl)" = 12
	first=$(sed -n "s/.*\"step\":1,.*\"loss\":\([^,]*\),.*/\1/p" run/metrics.jsonl)
	last=$(sed -n "s/.*\"step\":12,.*\"loss\":\([^,]*\),.*/\1/p" run/metrics.jsonl)
	awk "BEGIN { exit !($last < 0.9 * $first) }"
'
# An answer of one line to every step, with the right number of lists: answer N LIST LOSS.
cat >"$TMP/say" <<'X'
#!/bin/sh
while read -r line; do echo "$1"; done
X
chmod +x "$TMP/say"
test_case 'an answer that is none ends the run, names what is wrong, and leaves the checkpoint' '
	one="[1,1,1]"
	all="[$one,$one,$one,$one]"
	bad() # answer, message
	{
	    rm -rf run
	    test_exit 1 train run --loss-exec "\"$TMP/say\" \"$1\"" --steps 2 "$TMP/in.jsonl" 2>err
	    test "$(wc -l <err)" = 1
	    test_text err "tw-train: --loss-exec: "
	    test_text err "$2"
	    test ! -e run/latest
	}
	bad "what?" "answered step 1 with what is no JSON object: "
	bad "[1]" "answered step 1 with what is no JSON object: [1]"
	bad "{}" "answered step 1 with no \"loss\""
	bad "{\\\"loss\\\":1}" "with no \"dlogp\""
	bad "{\\\"loss\\\":1e999,\\\"dlogp\\\":$all}" "with a \"loss\" that means nothing"
	bad "{\\\"loss\\\":NaN,\\\"dlogp\\\":$all}" "no JSON object"
	bad "{\\\"loss\\\":1,\\\"dlogp\\\":[$one]}" "1 lists in dlogp, for 4 sequences"
	bad "{\\\"loss\\\":1,\\\"dlogp\\\":[$one,$one,[1],$one]}" "dlogp[2] that is not a list of 3 numbers, one a trained token"
	bad "{\\\"loss\\\":1,\\\"dlogp\\\":[$one,$one,$one,[1,true,1]]}" "dlogp[3][1] that is neither a finite number nor null"
	bad "{\\\"loss\\\":1,\\\"dlogp\\\":$all,\\\"metrics\\\":{\\\"a\\\":\\\"b\\\"}}" "\"metrics\" that are not all numbers"
	bad "{\\\"loss\\\":1,\\\"dlogp\\\":$all,\\\"grad\\\":[]}" "a \"grad\" that means nothing"
'
test_case 'a command that dies, hangs or says too much: the checkpoint stays, --resume goes on' '
	train whole --loss-exec "$C" --epochs 2 "$TMP/in.jsonl"
	cat >dies.sh <<X
#!/bin/sh
n=0
while read -r l; do n=\$((n + 1)); [ \$n -le 4 ] || exit 7; echo "\$l" | $C; done
X
	chmod +x dies.sh
	test_exit 1 train run --loss-exec ./dies.sh --save-every 2 --epochs 2 "$TMP/in.jsonl" 2>err
	test_text err "\"./dies.sh\" ended with status 7 before it answered step 5"
	test "$(readlink run/latest)" = step-4
	test_exit 1 train run --loss-exec "$C" --save-every 2 --epochs 2 --resume "$TMP/in.jsonl" 2>err
	test_text err "--loss-exec: the run was started with ./dies.sh"
	train run --loss-exec "$C" --save-every 2 --epochs 2 --resume --force "$TMP/in.jsonl"
	cmp whole/latest/adapter_model.safetensors run/latest/adapter_model.safetensors
	test_exit 1 train r2 --loss-exec "no-such-command" "$TMP/in.jsonl" 2>err
	test_text err "ended with status 127 before it answered step 1"
	test_exit 1 train r3 --loss-exec "kill -9 \$\$" "$TMP/in.jsonl" 2>err
	test_text err "ended with signal 9 before"
	test_exit 1 train r4 --loss-exec "sleep 60; :" --loss-timeout 0.3 "$TMP/in.jsonl" 2>err
	test_text err "gave no answer to step 1 in 0.3 s: does it flush each line? (--loss-timeout)"
	test_exit 1 train r5 --loss-exec "while read -r l; do printf \"%s\\n\\n\" \"\$(echo \"\$l\" | $C)\"; done" "$TMP/in.jsonl" 2>err
	test_text err "answered step 1 with more than one line"
	tw-train -m "$M" --lora r=4 --steps 1 -o r6 --loss-exec "$C; exit 5" "$TMP/in.jsonl" 2>err
	test_text err "ended with status 5"
	tw-train -m "$M" --lora r=4 --steps 1 -o r7 --loss-exec "$C; sleep 60" "$TMP/in.jsonl" 2>err
	test_text err "ended with signal 9"
'
test_case 'null where there is no number: the step is skipped and counted' '
	one="[1,1,1]"
	test_exit 1 train run --max-skips 2 --loss-exec "\"$TMP/say\" \"{\\\"loss\\\":null,\\\"dlogp\\\":[$one,$one,$one,$one]}\"" --epochs 3 "$TMP/in.jsonl" 2>err
	test_text err "3 steps in a row had a gradient that is not finite (--max-skips 2)"
	test "$(grep -c "\"event\":\"skip\",.*\"loss\":null" run/metrics.jsonl)" = 3
	test_exit 1 train run2 --max-skips 0 --loss-exec "\"$TMP/say\" \"{\\\"loss\\\":1,\\\"dlogp\\\":[$one,$one,[1,null,1],$one]}\"" "$TMP/in.jsonl" 2>err
	test_text err "1 steps in a row had a gradient that is not finite"
'
test_case 'the command is started once, has no other life than the run, and is not hit by its Ctrl-C' '
	printf "#!/bin/sh\necho \$\$ >>pids\nexec $C\n" >one.sh; chmod +x one.sh
	train run --loss-exec ./one.sh --epochs 2 "$TMP/in.jsonl"
	test "$(wc -l <pids)" = 1
	! kill -0 "$(cat pids)" 2>/dev/null
	rm pids
	tw-train -q -m "$M" --lora r=4 --batch 1 --epochs 100000 --publish off --loss-exec ./one.sh -o r2 "$TMP/in.jsonl" &
	p=$!
	while ! grep -q "\"step\":3," r2/metrics.jsonl 2>/dev/null; do sleep 0.05; done
	kill -INT $p
	test_exit 130 wait $p
	test -L r2/latest
	! kill -0 "$(cat pids)" 2>/dev/null
'
test_case '--ref: the base is what it is anyway; an adapter, or another model, is not' '
	train base --loss dpo --epochs 3 "$TMP/pairs"
	train same --loss dpo --epochs 3 --ref "$M" "$TMP/pairs"
	cmp base/latest/adapter_model.safetensors same/latest/adapter_model.safetensors
	for ref in base "$DATA/models/qwen3/adapter"; do
	    rm -rf other
	    train other --loss dpo --epochs 3 --ref $ref "$TMP/pairs"
	    ! cmp -s base/latest/adapter_model.safetensors other/latest/adapter_model.safetensors
	    grep "\"step\":1," other/metrics.jsonl | grep -q "\"logps/ref_chosen\":"
	    ! grep -q "\"step\":1,.*\"loss\":0.69314718055994" other/metrics.jsonl
	done
	for k in k1 k2 k3; do
	    train g-$k --loss grpo,beta=0.2,kl=$k --ref base --publish off "$TMP/rolls"
	    train h-$k --loss grpo,beta=0.2,kl=$k --publish off "$TMP/rolls"
	    grep -q "\"step\":1,.*\"kl\":0.0," h-$k/metrics.jsonl
	    ! grep -q "\"step\":1,.*\"kl\":0.0," g-$k/metrics.jsonl
	done
'
test_case '--ref of a run that trains all weights is a second copy: before any update nothing differs' '
	full() { r=$1; shift; tw-train -q -m "$M" --lr 1e-3 --batch 4 -o $r "$@"; }
	test_exit 2 full r0 --loss dpo "$TMP/pairs" 2>err
	test_text err "it needs --lora, or --ref MODEL"
	full r1 --loss dpo --ref "$M" --epochs 2 "$TMP/pairs"
	grep -q "\"step\":1,.*\"loss\":0.69314718055994" r1/metrics.jsonl
	! grep -q "\"step\":2,.*\"loss\":0.69314718055994" r1/metrics.jsonl
	full r2 --loss dpo --ref r1 "$TMP/pairs"
	! grep -q "\"step\":1,.*\"loss\":0.69314718055994" r2/metrics.jsonl
	full r3 --loss dpo --ref "$M/adapter" "$TMP/pairs"
	! grep -q "\"step\":1,.*\"loss\":0.69314718055994" r3/metrics.jsonl
	for o in "" "--ref $M" "--ref $M/adapter"; do
	    tw-train -m "$M" --lora r=4 --loss dpo $o --plan "$TMP/pairs" | sed -n "s/^memory: total .* \([0-9]*\) bytes/\1/p"
	done >totals
	tw-train -m "$M" --loss dpo --ref "$M" --plan "$TMP/pairs" | grep -q "^memory: reference "
	set -- $(cat totals)
	test $1 = $2
	test $3 -gt $2
'
test_case '--ref that cannot be compared is refused, and what a run had it keeps' '
	test_exit 1 train r1 --loss dpo --ref tiny "$TMP/pairs" 2>err
	test_text err "--ref: "
	test_text err "has a vocabulary of "
	test_exit 2 train r2 --loss simpo --ref "$M" "$TMP/pairs" 2>err
	test_text err "--ref: simpo looks at no reference"
	test_exit 2 train r3 --loss grpo --ref "$M" "$TMP/rolls" 2>err
	test_text err "grpo looks at no reference: give it a beta above 0"
	test_exit 1 train r4 --loss dpo --ref /nowhere "$TMP/pairs" 2>err
	test_text err "/nowhere: no such folder"
	train r5 --loss dpo --steps 1 "$TMP/pairs"
	test_exit 1 train r5 --loss dpo --steps 1 --resume --ref "$M/adapter" "$TMP/pairs" 2>err
	test_text err "--ref: the run was started with nothing, this is adapter "
'
test_case 'label smoothing by the option' '
	train a --epochs 2 "$TMP/in.jsonl"
	train b --epochs 2 --loss cross_entropy,label_smoothing=0 "$TMP/in.jsonl"
	train c --epochs 2 --loss cross_entropy,label_smoothing=0.2 "$TMP/in.jsonl"
	cmp a/latest/adapter_model.safetensors b/latest/adapter_model.safetensors
	! cmp -s a/latest/adapter_model.safetensors c/latest/adapter_model.safetensors
	test_exit 2 train d --loss cross_entropy,dft=on,label_smoothing=0.1 "$TMP/in.jsonl" 2>err
	test_text err "exclude each other"
'
test_done
