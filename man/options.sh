#!/bin/sh
# options.sh BIN: writes the OPTIONS of each tw-*.1 in this folder again, between its two markers,
# from what BIN/tw-* --help=man prints. `make man` calls it.
bin=$1
dir=${2:-$(dirname "$0")}
for page in "$dir"/tw-*.1; do
    name=$(basename "$page" .1)
    [ -x "$bin/$name" ] || continue
    "$bin/$name" --help=man >"$page.options" || exit 1
    awk -v from="$page.options" '
        /^\.\\" begin OPTIONS/ {
            print
            while ((getline line <from) > 0)
                print line
            inside = found = 1
        }
        /^\.\\" end OPTIONS/ { inside = 0 }
        !inside
        END { exit !found || inside }' "$page" >"$page.new" || {
        echo "$page: no begin OPTIONS and end OPTIONS markers" >&2
        rm -f "$page.new" "$page.options"
        exit 1
    }
    rm -f "$page.options"
    if cmp -s "$page" "$page.new"; then rm -f "$page.new"; else mv "$page.new" "$page"; fi
done
