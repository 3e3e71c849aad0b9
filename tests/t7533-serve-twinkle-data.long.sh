#!/bin/sh
# Datasets that twinkle_client, unmodified, keeps on the server, against tw-preprocess and tw-encode.
# The client imports torch, which is gigabytes: TW_TEST_SDK_SITE (a site-packages folder) may have that already.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"
. "$(dirname "$0")/sdk.sh"

test_case 'remote dataset, map, encode, loader: what the commands give, and it trains' '
	sdk_or_skip twinkle torch transformers peft datasets requests pydantic safetensors
	sdk_also twinkle_client twinkle-kit==0.5.1
	sdk_also PIL pillow
	mkdir -p data/sub
	tw-fetch -d "$TOP/examples/data/identity.json" >data/identity.jsonl
	echo "{\"instruction\": \"a\", \"input\": \"\", \"output\": \"b\"}" >data/sub/other.jsonl
	tw-preprocess self-cognition,name=Twinkle,author=MS data/identity.jsonl |
		tw-encode -m tiny --max-length 512 --format jsonl >want.jsonl
	serve_start --state st --data data
	env -u HTTP_PROXY -u http_proxy TWINKLE_SERVER_URL="$URL" TWINKLE_SERVER_TOKEN=tml-test HF_HUB_OFFLINE=1 \
		PYTHONDONTWRITEBYTECODE=1 timeout --foreground 900 "$PY" "$TOP/tests/serve_twinkle_data.py" data want.jsonl
	serve_stop
	test_equal $STATUS 0
'
test_done
