#!/bin/sh
# The official client of Twinkle, unmodified, against the server: our examples with it run as they are and learn.
# It imports torch, which is gigabytes: TW_TEST_SDK_SITE (a site-packages folder) may have that already.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"
. "$(dirname "$0")/sdk.sh"

example()
{
    sdk_or_skip twinkle torch transformers peft datasets requests pydantic safetensors pillow
    sdk_also twinkle_client twinkle-kit==0.5.1
    serve_start --state st --name Org/Model
    env -u HTTP_PROXY -u http_proxy TWINKLE_SERVER_URL="$URL" TWINKLE_SERVER_TOKEN=tml-test STEPS="$2" HF_HUB_OFFLINE=1 \
        PYTHONDONTWRITEBYTECODE=1 timeout --foreground 900 "$PY" "$TOP/examples/serve/$1.py" >said 2>err || { cat said err; return 1; }
}
test_case 'twinkle_sft.py: the loss falls through a resume, and the new name is said' '
	example twinkle_sft 24
	awk "/^step/ { l[++n] = \$4 } END { exit !(n == 24 && l[20] < l[1] / 4) }" said
	grep "^before:" said | grep -qv "night shift"
	grep "^after:" said | grep -q "night shift"
	test_text said "resumed after 24 micro-batches, 192 samples"
	test_equal "$(grep -c "^run session_" said)" 2
'
test_case 'twinkle_embed.py: sentences that belong together find each other, those that were held out, too' '
	example twinkle_embed 16
	awk "/^before:/ { b = \$2 } /^after:/ { a = \$2 } /^step/ { n++ } END { exit !(n == 16 && b < 0.3 && a > 0.8) }" said
'
test_case 'twinkle_grpo.py: the first ratio is 1, and the reward rises' '
	example twinkle_grpo 10
	awk "/^step/ { r[++n] = \$4; q[n] = \$8 } END { exit !(n == 10 && r[9] + r[10] > r[1] + r[2] && q[1] < 1.001) }" said
'
test_done
