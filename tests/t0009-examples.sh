#!/bin/sh
# What the manual pages show runs, and prints what they say it prints.
#
# Over an example, between .nf and .fi, stands `.\" run`, or why it is not run here: `.\" not run: a hub`. Lines
# `.\" prep COMMAND` before .nf make what it needs. All of a page is one script, in one folder. A comment in it is what
# has been printed by then, with .. for what is left out.
. "$(dirname "$0")/lib.sh"

shown()
{
	awk '/^\.\\" run/ { run = 1; next }
	    /^\.\\" prep / && run { sub(/^[^ ]* prep /, ""); print; next }
	    /^\.nf/ { text = 1; next }
	    /^\.fi/ { run = text = 0 }
	    run && text' "$1" | sed "s/[\\](aq/'/g; s/[\\]-/-/g; s/[\\]e/\\\\/g"
}
# What is to be printed, as patterns of grep.
said()
{
	sed -n 's/^ *# //p' | sed 's/[][\\.*^$]/\\&/g; s/\\\.\\\./.*/g'
}

# Lines of commands in PAGE that are neither run nor excused.
unmarked()
{
	awk '/^\.\\" (run|not run: ..)/ { marked = 1 }
	    /^\.nf/ { text = 1 }
	    text && !marked && /(^|[ (])(tw[\\]?-[a-z]+|jq|curl) / { print FILENAME ":" FNR ": " $0 }
	    /^\.fi/ { text = marked = 0 }' "$1"
}
cat >"$TMP/page" <<\X
.nf
    tw\-reward \-\-list
.fi
.\" not run: a hub
.nf
    tw\-fetch hf://a/b
.fi
.\" run
.\" prep x=1
.nf
    echo \(aqa[1]\(aq $x
    # a[1] ..
    # ..a.1..
.fi
X
cat >"$TMP/script" <<\X
x=1
    echo 'a[1]' $x
    # a[1] ..
    # ..a.1..
X

test_case 'an example of a command is run, or it is said why not' '
	for page in "$TOP"/man/*.[157]; do unmarked "$page"; done >found
	cat found
	[ ! -s found ]
	test_equal "$(unmarked "$TMP/page")" "$TMP/page:2:     tw\\-reward \\-\\-list"
'
test_case 'what is run, and that what a page says is printed is looked for as it stands' '
	shown "$TMP/page" | cmp - "$TMP/script"
	said <"$TMP/script" >want
	echo "a[1] 1" >out
	grep -qe "$(sed -n 1p want)" out
	! grep -qe "$(sed -n 2p want)" out || exit 1
'
for page in "$TOP"/man/*.[157]; do
	grep -q '^\.\\" run' "$page" || continue
	PAGE=$page
	export PAGE
	test_case "$(basename "$page")" '
		shown "$PAGE" >"$TMP/example"
		sh -e "$TMP/example" >"$TMP/out" 2>&1 || { cat "$TMP/example" "$TMP/out"; exit 1; }
		said <"$TMP/example" >"$TMP/want"
		while read -r line; do
		    grep -qe "$line" "$TMP/out" || { echo "not printed: $line"; cat "$TMP/out"; exit 1; }
		done <"$TMP/want"
	'
done
test_case 'every command shows something that runs' '
	for c in "$TW_BUILD"/bin/tw-*; do
	    shown "$TOP/man/$(basename "$c").1" | grep -q "$(basename "$c")" || { echo "$c"; exit 1; }
	done
'
test_done
