#!/bin/sh
# The source keeps its own rules: who includes whom, which functions are never called, how long a
# file is.
. "$(dirname "$0")/lib.sh"

cd "$TOP" || exit 1
dirs=$(for d in lib cmd kernels; do [ ! -d $d ] || echo $d; done)

# The layer of an include or a path, lowest first.
layers='
function layer(p) {
    return p ~ /^base\// ? 1 : p ~ /^(data|nn)\// ? 2 : p ~ /^(run|kernels)\// ? 3 : p ~ /^serve\// ? 4 : p ~ /^cmd\// ? 5 : 0
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    split($0, part, "\"")
    from = FILENAME; sub(/^lib\//, "", from)
    to = part[2]
    if (to !~ /\//) next                          # beside itself
    if (layer(to) > layer(from)) print FILENAME ":" FNR ": includes " to " from below"
    if (from ~ /^data\// && to ~ /^nn\//) print FILENAME ":" FNR ": data does not include nn"
}'
test_case 'no file includes what stands above it' '
	cd "$TOP"
	find $dirs -name "*.[ch]" -exec awk "$layers" {} + >"$TMP/upward"
	cat "$TMP/upward"
	[ ! -s "$TMP/upward" ]
'
test_case 'the layers test finds an upward include' '
	mkdir -p lib/base lib/data
	printf "#include \"nn/ops.h\"\n" >lib/data/x.c
	printf "#include \"data/tok.h\"\n#include \"err.h\"\n" >lib/base/y.c
	find lib -name "*.c" -exec awk "$layers" {} + >found
	test_equal "$(wc -l <found | tr -d " ")" 2
'
test_case 'banned functions are poisoned' '
	printf "int f(const char *s);\nint f(const char *s)\n{\n    return atoi(s);\n}\n" >x.c
	test_exit 1 cc -c -I"$TOP/lib" -include base/banned.h x.c 2>err
	test_text err "poisoned"
'
test_case 'the library neither exits nor prints to stdout' '
	cd "$TOP"
	# opt.c ends a command, mem.c has no memory left to go on with: these two may
	grep -nE "[^_a-z](exit|printf|puts|putchar|perror) ?\(" -r lib --include="*.c" |
	    grep -vE "^lib/base/(opt|mem)\.c:|:[0-9]+: *(/?\*|//)|_exit" >"$TMP/prints" || :
	cat "$TMP/prints"
	[ ! -s "$TMP/prints" ]
'
test_case 'no file is longer than 500 lines' '
	cd "$TOP"
	find $dirs tests/unit -name "*.[ch]" -o -name "*.cu" -o -name "*.cuh" | xargs wc -l |
	    awk "\$2 != \"total\" && \$1 > 500" >"$TMP/long"
	cat "$TMP/long"
	[ ! -s "$TMP/long" ]
'
long_functions='
FNR == 1 { start = 0 }
/^\{/ { start = FNR }
/^\}/ {
    if (start && FNR - start > 61) print FILENAME ":" start ": a function of " FNR - start - 1 " lines"
    start = 0
}'
test_case 'no function is longer than 60 lines' '
	cd "$TOP"
	find $dirs tests/unit -name "*.c" -exec awk "$long_functions" {} + >"$TMP/functions"
	cat "$TMP/functions"
	[ ! -s "$TMP/functions" ]
'
# Style asks for 100 columns; what is a word too long is not worth a failure.
test_case 'no line is much longer than 100 columns and none ends in a blank' '
	cd "$TOP"
	find $dirs \( -name "*.[ch]" -o -name "*.cu" -o -name "*.cuh" \) -exec awk "
	    (length > 112 && !/^#/) || /[ \t]\$/ { print FILENAME \":\" FNR \": \" \$0 }" {} + >"$TMP/wide"
	head "$TMP/wide"
	[ ! -s "$TMP/wide" ]
'
test_case 'the top level holds what the README names and nothing that a test left there' '
	cd "$TOP"
	git ls-files >"$TMP/files" 2>/dev/null && [ -s "$TMP/files" ] || test_skip "not a git checkout"
	sed "s,/.*,," "$TMP/files" | sort -u | grep -v "^\." | tr "\n" " " >"$TMP/top"
	test_equal "$(cat "$TMP/top")" "LICENSE Makefile README cmd completions examples kernels lib man share tests "
'
test_done
