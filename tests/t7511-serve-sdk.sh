#!/bin/sh
# The official clients, unmodified, of three ages: all of training, losses, checkpoints, sampling, listing.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"
. "$(dirname "$0")/sdk.sh"

sdk_run()
{
    serve_start --state st --name Org/Model "$@"
    env -u HTTP_PROXY -u http_proxy TINKER_BASE_URL="$URL" TINKER_API_KEY=tml-x TINKER_TELEMETRY=0 \
        PYTHONDONTWRITEBYTECODE=1 timeout --foreground 600 "$PY" "$TOP/tests/serve_sdk.py" Org/Model
    serve_stop
    test_equal "$STATUS" 0
}
test_case 'tinker 0.38.0' '
	sdk_or_skip tinker-0.38.0 tinker==0.38.0
	sdk_run
'
test_case 'tinker 0.38.0 by its own transport' '
	sdk_or_skip tinker-0.38.0 tinker==0.38.0
	export TW_TEST_PYQWEST=1
	sdk_run
'
test_case 'tinker 0.25.0' '
	sdk_or_skip tinker-0.25.0 tinker==0.25.0
	sdk_run
'
test_case 'tinker 0.16.1, which speaks JSON alone' '
	sdk_or_skip tinker-0.16.1 tinker==0.16.1
	sdk_run --max-adapters 2
'
test_done
