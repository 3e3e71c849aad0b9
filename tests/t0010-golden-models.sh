#!/bin/sh
# Models against the answers of the reference implementation, in tests/data/models.
. "$(dirname "$0")/lib.sh"

for dir in "$DATA"/models/*/; do
	[ -f "$dir/expected.json" ] || continue
	test_case "$(basename "$dir") equals the reference" "golden-models '$dir'"
done
test_done
