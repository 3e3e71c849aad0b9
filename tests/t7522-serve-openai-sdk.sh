#!/bin/sh
# The official openai client, unmodified.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"
. "$(dirname "$0")/sdk.sh"

test_case 'openai: models, chats, streams, completions, tools, errors' '
	sdk_or_skip openai openai
	serve_start
	env -u HTTP_PROXY -u http_proxy PYTHONDONTWRITEBYTECODE=1 timeout --foreground 600 "$PY" "$TOP/tests/serve_openai_sdk.py" \
	    "$URL" tiny >said
	test_text said "all well"
'
test_done
