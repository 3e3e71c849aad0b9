#!/bin/sh
# Recipes of the cookbook, unmodified and without a network, against the built-in model: losses fall.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"
. "$(dirname "$0")/sdk.sh"

# recipe MODEL MODULE SETTING..: runs it and leaves log/metrics.jsonl.
recipe()
{
    SERVE_MODEL=$1 serve_start --state st --name Qwen/Qwen3-8B-Base
    shift
    TINKER_BASE_URL="$URL" TINKER_API_KEY=tml-x TINKER_TELEMETRY=0 NO_PROXY=127.0.0.1 HF_HUB_OFFLINE=1 \
        HF_DATASETS_OFFLINE=1 HF_HOME="$PWD/hf" PYTHONDONTWRITEBYTECODE=1 timeout --foreground 800 "$PY" -m "$@" \
        model_name=Qwen/Qwen3-8B-Base log_path="$PWD/log" >recipe.out 2>&1 || { tail -n 30 recipe.out; return 1; }
    serve_stop
    test_equal "$STATUS" 0
}
# column NAME: its numbers, a line each.
column()
{
    "$PY" -c "
import json, sys
for l in open(\"log/metrics.jsonl\"):
    v = json.loads(l).get(sys.argv[1])
    if v is not None: print(v)" "$1" >"$2"
}
cookbook()
{
    sdk_or_skip cookbook tinker==0.38.0 chz datasets torch transformers termcolor blobfile cloudpickle aiohttp \
        pillow tiktoken sympy pylatexenc math-verify
    "$PY" -c 'import tinker_cookbook' 2>/dev/null || "${PY%python}pip" install -q --no-deps tinker_cookbook==0.6.1
    "$PY" "$TOP/tests/serve_cookbook.py" "$TW_SHARE/models/tiny"
}
test_case 'sl_loop' '
	cookbook
	recipe tiny tinker_cookbook.recipes.sl_loop batch_size=8 max_steps=8 learning_rate=2e-3 max_length=128
	column train_mean_nll nll
	awk "NR == 1 { first = \$1 } { last = \$1 } END { exit !(NR == 8 && last < first / 5) }" nll
'
test_case 'preference.dpo.train' '
	cookbook
	recipe tiny tinker_cookbook.recipes.preference.dpo.train batch_size=8 max_steps=6 learning_rate=1e-3 \
	    max_length=128 behavior_if_log_dir_exists=delete renderer_name=role_colon
	column dpo_loss loss
	awk "NR == 1 { first = \$1 } { last = \$1 } END { exit !(NR == 6 && first > 0.69 && last < 0.1) }" loss
'
test_case 'examples/serve/dpo.py: a custom loss of torch' '
	cookbook
	serve_start --state st
	env -u HTTP_PROXY -u http_proxy TINKER_BASE_URL="$URL" TINKER_API_KEY=tml-test TINKER_TELEMETRY=0 STEPS=6 \
	    PYTHONDONTWRITEBYTECODE=1 timeout --foreground 300 "$PY" "$TOP/examples/serve/dpo.py" >said 2>err || { cat said err; return 1; }
	awk "NR == 1 { first = \$4 } { last = \$4; right = \$6 } END { exit !(NR == 6 && first > 0.69 && last < 0.2 && right == 1) }" said
'
for loss in stable_reinforce importance_sampling; do
	test_case "rl_loop with $loss" '
		cookbook
		"$PY" "$TOP/tests/serve_cookbook.py" --text >text.jsonl
		tw-train -q -m tiny -o pre --lora r=16,alpha=32 --lr 2e-3 --batch 8 --steps 25 text.jsonl
		tw-train -q --merge -m tiny --adapter pre -o boxed
		recipe boxed tinker_cookbook.recipes.rl_loop batch_size=6 group_size=16 max_steps=16 max_tokens=12 \
		    learning_rate=1e-3 loss_fn='$loss'
		column reward/total reward
		awk "NR <= 4 { first += \$1 / 4 } NR > 12 { last += \$1 / 4 }
		    END { print first, last; exit !(NR == 16 && last > first) }" reward
	'
done
test_done
