#!/bin/sh
# The examples for the official client run as they are and learn.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"
. "$(dirname "$0")/sdk.sh"

example()
{
    sdk_or_skip tinker-examples tinker==0.38.0 jinja2
    serve_start --state st
    env -u HTTP_PROXY -u http_proxy TINKER_BASE_URL="$URL" TINKER_API_KEY=tml-test TINKER_TELEMETRY=0 STEPS="$2" \
        PYTHONDONTWRITEBYTECODE=1 timeout --foreground 600 "$PY" "$TOP/examples/serve/$1.py" >said 2>err || { cat said err; return 1; }
}
test_case 'sft.py: the loss falls and the new name is said' '
	example sft 24
	awk "/^step/ { l[++n] = \$4 } END { exit !(n == 24 && l[20] < l[1] / 4) }" said
	grep -q "night shift" said
'
test_case 'grpo.py: the reward rises, and the server draws it' '
	example grpo 8
	awk "/^step/ { l[++n] = \$4 } END { exit !(n == 8 && l[7] + l[8] > l[1] + l[2]) }" said
	ask "
run = get(\"overview\")[\"runs\"][0][\"id\"]
assert [x[0] for x in get(\"runs/%s/points\" % run)[\"reward\"]] == list(range(1, 9))
"
'
test_case 'tenants.py: four kinds of work at once' '
	example tenants 6
	test_equal "$(grep -c -E "^(anna|ben|cleo|dan) " said)" 4
	test_text said "all four in"
'
test_done
