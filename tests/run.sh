#!/bin/sh
# Runs test programs and scripts (the arguments), JOBS at once, each TEST_S seconds at most. Shows a
# line for each, what failed in it, and ends with "N passed, N failed, N skipped".
cd "$(dirname "$0")/.." || exit 1
out=${TW_BUILD:-$PWD/build}/test-out
export TW_BUILD="${TW_BUILD:-$PWD/build}" TEST_S="${TEST_S:-900}"

if [ "$1" = --one ]; then
    name=$(basename "$2" .sh)
    tap=$out/$name.tap
    start=$(date +%s)
    case $2 in
    *.sh) timeout -k 10 "$TEST_S" sh "$2" >"$tap" 2>"$tap.err" </dev/null ;;
    *) timeout -k 10 "$TEST_S" "$2" >"$tap" 2>"$tap.err" </dev/null ;;
    esac
    status=$?
    # a program that died, or that did not say how many cases it has, failed in one more case
    awk -v status=$status -v name="$name" -v took=$(($(date +%s) - start)) -v limit="$TEST_S" '
        function bad(s) { text = text "    " s "\n" }
        /^ok .*# SKIP/ { skip++; skipped = skipped "    " $0 "\n"; notes = ""; next }
        /^ok /         { pass++; notes = ""; next }
        /^not ok /     { fail++; text = text notes; bad($0); notes = ""; after = 1; next }
        /^1\.\./       { plan = substr($0, 4) + 0; planned = 1; next }
        /^#/           { if (after) bad($0); else notes = notes "    " $0 "\n"; next }
        END {
            if (status == 124 || status == 137) { fail++; bad("took more than " limit " s") }
            else if (!planned || plan != pass + fail + skip) {
                fail++; bad("ended early with status " status " after " pass + fail + skip " cases")
            } else if (status && !fail) { fail++; bad("status " status " although no case failed") }
            printf "%s %s: %d passed, %d failed, %d skipped, %d s\n%s%s", fail ? "FAIL" : "ok  ",
                name, pass, fail, skip, took, text, skipped
            exit fail > 0
        }' "$tap" >"$out/$name.sum"
    [ $? = 0 ] || sed 's/^/    | /' "$tap.err" | tail -n 40 >>"$out/$name.sum"
    cat "$out/$name.sum"
    exit 0
fi

rm -rf "$out" && mkdir -p "$out" || exit 1
[ $# = 0 ] || printf '%s\n' "$@" | xargs -P "${JOBS:-2}" -n 1 sh tests/run.sh --one
find "$out" -name '*.sum' -exec cat {} + | awk '
    /^(FAIL|ok  ) [^ ]+: [0-9]+ passed/ { n++; p += $3; f += $5; s += $7 }
    END { f += want - n; printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 }' want=$#
