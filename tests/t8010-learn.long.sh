#!/bin/sh
# t8010-learn.long.sh - reinforcement and preferences teach what they are meant to, on what was not trained on
#
# One seed here; TW_TEST_SEEDS='1 2 3' runs more. Seed 1, on two busy cores (Zen 4, 2026-11-28):
#     greedy, 200 held-out sums   30.5 -> 100 %, 101 s
#     rewards shuffled            30.5 -> 31 %
#     DPO, 128 held-out pairs     all told apart; log-probability of a chosen reply -0.7348 -> -0.4582
#                                 (may fall by 0.5; even odds of two forms are -0.69)
. "$(dirname "$0")/lib.sh"
SUMS=$TOP/examples/sums.awk
SEEDS=${TW_TEST_SEEDS:-1}

# right ADAPTER: percent of 200 held-out sums, greedy
right()
{
    tw-sample -q -m tiny --adapter "$1" --temperature 0 --max-tokens 24 "$TMP/test.jsonl" |
        tw-reward -q exact,key=reply | awk '/"reward":1/ { n++ } END { print n / NR * 100 }'
}

# The rewards of each 64 records in another order, as "luck": of the batch, not of the group.
cat >"$TMP/shuffle" <<'E2'
#!/bin/bash
RANDOM=$1
while :; do
    record=() reward=()
    while [ ${#record[@]} -lt 64 ] && IFS= read -r r; do
        record+=("$r")
        r=${r##*\"reward\":}
        reward+=("${r%%,*}")
    done
    for ((i = ${#record[@]} - 1; i >= 0; i--)); do
        k=$((RANDOM % (i + 1)))
        printf '{"luck":%s,%s\n' "${reward[k]}" "${record[i]#\{}"
        reward[k]=${reward[i]}
    done
    [ ${#record[@]} = 64 ] || exit 0
done
E2
cat >"$TMP/luck" <<'E2'
#!/bin/sh
while IFS= read -r r; do r=${r#*\"luck\":}; echo "${r%%,*}"; done
E2
chmod +x "$TMP/shuffle" "$TMP/luck"
awk -f "$SUMS" -v n=200 -v part=test >"$TMP/test.jsonl"

# rl SEED RUN MIDDLE: 32 steps of 8 groups of 8; MIDDLE gives the advantages
rl()
{
    awk -f "$SUMS" -v n=256 -v seed=$((100 + $1)) |
        tw-sample -q -m tiny --policy "$2" -n 8 --max-lag 0 --max-tokens 24 --seed "$1" |
        tw-reward -q exact,key=reply | eval "$3" |
        tw-train -q -m tiny --adapter "$TMP/start$1" --lr 1e-3 --loss grpo --batch 64 --seed "$1" -o "$2"
}

test_case 'GRPO lifts held-out sums by 30 points from a start of 20 to 60 %, in 4 minutes' '
	for s in $SEEDS; do
	    awk -f "$SUMS" -v n=16 -v seed=$s -v as=chat |
	        tw-train -q -m tiny --lora r=16,alpha=32 --lr 1e-3 --schedule cosine,warmup=5 --epochs 2 --seed $s -o "$TMP/start$s"
	    right "$TMP/start$s" >"$TMP/before$s"
	    t=$(date +%s)
	    rl $s run$s "tw-reward -q exact,key=reply --advantage grpo"
	    t=$(($(date +%s) - t))
	    echo "seed $s: $(cat "$TMP/before$s") -> $(right run$s), $t s" | tee -a "${TW_TEST_REPORT:-/dev/null}" >line
	    cat line
	    awk "{ exit !(\$3 >= 20 && \$3 <= 60 && \$5 + 0 >= \$3 + 30) }" line
	    [ $t -le 240 ]
	done
'
test_case 'the same with the rewards shuffled gains less than 5 points' '
	for s in $SEEDS; do
	    rl $s run$s "\"$TMP/shuffle\" $s | tw-reward -q --exec \"$TMP/luck\" --advantage grpo"
	    test "$(grep -c "\"event\":\"step\"" run$s/metrics.jsonl)" = 32
	    echo "seed $s shuffled: $(cat "$TMP/before$s") -> $(right run$s)" | tee -a "${TW_TEST_REPORT:-/dev/null}" >line
	    cat line
	    awk "{ exit !(\$6 < \$4 + 5) }" line
	done
'

# chosen [ADAPTER]: mean log-probability of the chosen replies of the held-out pairs
chosen()
{
    sed 's/,"chosen":"\([^"]*\)".*/\1/; s/}\]\(.*\)$/},{"role":"assistant","content":"\1"}]}/' eval.jsonl |
        tw-encode -q -m tiny --format jsonl | tw-sample -q -m tiny "$@" --score | awk '
            function list(key, to,    t) { t = $0; sub(".*\"" key "\":\\[", "", t); sub(/\].*/, "", t); return split(t, to, ",") }
            { n = list("logprobs", p); list("weights", w); for (i = 2; i <= n; i++) if (w[i] > 0) s += p[i] }
            END { printf "%.4f\n", s / NR }'
}
test_case 'DPO tells 95 % of the held-out pairs apart; the chosen replies stay likely' '
	for s in $SEEDS; do
	    awk -f "$SUMS" -v n=256 -v seed=$s -v as=pair -v ask="What is %d + %d?" >pairs.jsonl
	    awk -f "$SUMS" -v n=128 -v seed=$s -v part=test -v as=pair -v ask="What is %d + %d?" >eval.jsonl
	    tw-train -q -m tiny --lora r=16,alpha=32 --lr 5e-4 --loss dpo,beta=0.1 --epochs 2 --seed $s --shuffle $s \
	        --eval eval.jsonl -o dpo$s pairs.jsonl
	    tail -n 1 dpo$s/metrics.jsonl | sed "s/.*accuracies\":\([0-9.]*\).*/\1/" >accuracy
	    echo "seed $s DPO: accuracy $(cat accuracy), chosen $(chosen) -> $(chosen --adapter dpo$s)" |
	        tee -a "${TW_TEST_REPORT:-/dev/null}" >line
	    cat line
	    awk "{ exit !(\$5 + 0 >= 0.95 && \$9 >= \$7 - 0.5) }" line
	done
'
test_done
