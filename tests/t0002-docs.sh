#!/bin/sh
# What documents the commands agrees with them.
. "$(dirname "$0")/lib.sh"
cmds=$(ls "$TW_BUILD"/bin/tw-* 2>/dev/null)

test_case 'make man would change nothing' '
	cp "$TOP"/man/tw-*.1 . 2>/dev/null || test_skip "no pages"
	sh "$TOP/man/options.sh" "$TW_BUILD/bin" .
	for page in tw-*.1; do cmp "$page" "$TOP/man/$page" || { echo "run make man"; exit 1; }; done
'
test_case 'every command has a page, every page a command' '
	for c in $cmds; do
	    [ -f "$TOP/man/$(basename "$c").1" ] || { echo "no man/$(basename "$c").1"; bad=1; }
	done
	[ -z "$bad" ]
'
test_case 'the pages are well-formed' '
	command -v groff >/dev/null || test_skip "no groff"
	for page in "$TOP"/man/*.[157]; do
	    groff -t -man -Tutf8 -rLL=78n -ww -z "$page" 2>>warnings        # as man(1) does in 80 columns
	    for s in NAME DESCRIPTION; do grep -q "^.SH $s" "$page" || echo "$page: no $s" >>warnings; done
	done
	cat warnings
	[ ! -s warnings ]
'
test_case 'help, words and man name the same options' '
	for c in $cmds; do
	    "$c" --help >help
	    ! grep -n " \$" help || exit 1
	    "$c" --help=words | awk -F "\t" "/^--/ { print \$1 }" | sort >words
	    "$c" --help=man | sed -n "s/\\\\//g; s/^.*fB\(--[a-z0-9-]*\)fR.*/\1/p" | sort >man
	    grep -oE "^ +(-., )?--[a-z0-9-]+" help | grep -oE -e "--.*" | sort >from_help
	    cmp words from_help
	    cmp words man
	    test_equal "$(sort -u words)" "$(cat words)"
	    test_equal "$("$c" --version)" "$(basename "$c") $(sed -n "s/^VERSION = //p" "$TOP/Makefile")"
	done
'
test_case 'no letter and no name has two meanings in a command' '
	for c in $cmds; do
	    "$c" --help=words | cut -f 1 | sort | uniq -d | grep . && exit 1 || :
	done
'
test_case 'completion in bash asks the command' '
	command -v bash >/dev/null || test_skip "no bash"
	ln -s "$TW_BUILD/tests/opt" tw-train
	cat >ask.sh <<\EOF
	. "$TOP/completions/tw.bash"
	try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _tw ./tw-train; echo "${COMPREPLY[*]}"; }
	try ./tw-train --sch
	try ./tw-train --schedule ""
	try ./tw-train --schedule = co
	touch data.jsonl; try ./tw-train da
EOF
	bash ask.sh >out
	printf "%s\n" --schedule "constant linear cosine" "constant cosine" data.jsonl >want
	diff out want
'
test_case 'completion in fish asks the command' '
	command -v fish >/dev/null || test_skip "no fish"
	mkdir d && cd d && ln -s "$TW_BUILD/tests/opt" tw-train && touch data.jsonl
	cat >../ask.fish <<\EOF
	source $TOP/completions/tw.fish
	for line in "./tw-train --sch" "./tw-train --schedule " "./tw-train --schedule=co" "./tw-train da"
	    complete -C "$line" | cut -f 1
	end
EOF
	PATH="$PWD:$PATH" fish ../ask.fish >../out
	printf "%s\n" --schedule constant cosine linear --schedule=constant --schedule=cosine data.jsonl >../want
	diff ../out ../want
'
test_case 'what zsh is told has the form that _arguments takes' '
	command -v zsh >/dev/null || test_skip "no zsh"
	ln -s "$TW_BUILD/tests/opt" tw-train
	cat >ask.zsh <<\EOF
	_arguments() { shift; print -rl -- "$@"; }
	_tw() { . "$TOP/completions/_tw"; }
	words=(./tw-train); _tw
EOF
	zsh -f ask.zsh >out
	grep -q -e "^\*--schedule=\[.*\]:constant|linear|cosine:(constant linear cosine)$" out
	grep -q -e "^\*-b\[.*\]:N:_files" out
	grep -q -e "^\*--resume\[" out
	test_equal "$(tail -n 1 out)" "*:file:_files"
'
test_done
