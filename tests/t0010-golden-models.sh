#!/bin/sh
# Models against the answers of the reference implementation, in tests/data/models.
. "$(dirname "$0")/lib.sh"
. "$TOP/tests/golden_bf16.sh"

for dir in "$DATA"/models/*/; do
	[ -f "$dir/expected.json" ] || continue
	test_case "$(basename "$dir") equals the reference" "golden-models '$dir'"
done
test_case 'in bf16 as near as roundings allow' 'golden_bf16 cpu "$DATA"/models/*/'
test_done
