#!/bin/sh
# kill -9 at random moments: every resume ends with the bytes of the unbroken run.
. "$(dirname "$0")/lib.sh"
. "$TOP/tests/train.sh"
test_case 'a model with random weights' make_base

# kills OPTIONS..: 20 kills of one run, then its end.
kills()
{
    tw-train -m "$BASE" -o whole "$@" "$TMP/d.jsonl" || return 1
    n=0 seed=1
    while [ $n -lt 20 ]; do
        seed=$(((seed * 1103515245 + 12345) % 2147483648))
        tw-train -m "$BASE" -o r "$@" --resume "$TMP/d.jsonl" 2>>err &
        pid=$!
        sleep "$(awk -v x=$seed 'BEGIN { print 0.02 + x % 1000 / 1000 * 0.6 }')"
        kill -9 $pid 2>/dev/null || { wait $pid; break; }
        wait $pid || :
        n=$((n + 1))
    done
    echo "$n kills; $(grep -c 'going on' err || :) times from a checkpoint"
    tw-train -m "$BASE" -o r "$@" --resume "$TMP/d.jsonl" 2>>err
    same_run whole r
    [ "$(grep -c 'going on' err)" -ge 3 ]
    test_no_text err "is skipped"
    ! ls -A r | grep "^.ckpt"
}
test_case 'an adapter' '
	kills --lora r=2,dropout=0.2 --batch 2 --steps 600 --save-every 3 --keep 2
'
test_case 'all weights' '
	kills --batch 2 --steps 300 --save-every 2 --keep 2 --schedule cosine,warmup=5
'
test_case 'all weights, bf16, evaluated' '
	records 5 9 >e.jsonl
	kills --dtype bf16 --batch 2 --steps 300 --save-every 2 --keep 2 --eval e.jsonl --eval-every 7 --keep-best
'
test_done
