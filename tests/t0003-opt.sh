#!/bin/sh
# Options, as every command has them. The command is the program of tests/unit/opt.c.
. "$(dirname "$0")/lib.sh"

# The value of option NAME in what the command prints: value NAME ARGUMENT..
value()
{
	name_=$1
	shift
	opt -m x "$@" | head -n 1 | tr ',{}' '\n\n\n' | sed -n "s/^\"$name_\"://p"
}

test_case 'long and short forms, values with and without =' '
	test_equal "$(value batch-size --batch-size 3)" 3
	test_equal "$(value batch-size --batch-size=4)" 4
	test_equal "$(value batch-size -b5)" 5
	test_equal "$(value batch-size -b 6)" 6
	test_equal "$(value batch-size -rb 7)" 7
	test_equal "$(value resume -rvb 7)" true
	test_equal "$(value resume --resume=off)" false
	test_equal "$(value schedule --schedule cosine)" "\"cosine\""
	test_equal "$(value schedule)" "\"linear\""
	test_equal "$(value seed --seed -9223372036854775808)" -9223372036854775808
	test_equal "$(value publish --publish on)" true
	test_equal "$(value model --model==)" "\"=\""
'
test_case 'of an option that takes one value the last wins' '
	test_equal "$(value batch-size -b 6 --batch-size 8)" 8
'
test_case 'a repeated option keeps its order' '
	opt -m x --stop b --stop=a --stop "" >out
	test_text out "\"stop\":[\"b\",\"a\",\"\"]"
'
test_case 'options and operands mix, -- ends options, - is an operand' '
	opt a -m x - b -r -- -c --resume >out
	printf "operand %s\n" a - b -c --resume >want
	sed 1d out | diff - want
'
test_case 'an unknown option is named with the nearest' '
	test_exit 2 opt -m x --bath-size 3 2>err
	test_text err "tw-train: unknown option --bath-size; did you mean --batch-size?"
	test_exit 2 opt -m x --schedul=cosine 2>err
	test_text err "did you mean --schedule?"
	test_exit 2 opt -m x --xyzzy 2>err
	test_text err "unknown option --xyzzy; see tw-train --help"
	test_exit 2 opt -m x -z 2>err
	test_text err "unknown option -z; see tw-train --help"
	test_equal "$(wc -l <err | tr -d " ")" 1
'
test_case 'a bad value is named with what is allowed' '
	test_exit 2 opt -m x --batch-size 0 2>err
	test_text err "tw-train: --batch-size: 0 is out of range: 1 to 1048576"
	for v in 1.5 x "" " 1" 1k 99999999999999999999; do test_exit 2 opt -m x -b "$v" 2>err; done
	test_text err "is not a whole number"
	for v in nan inf x "" 1e-4x; do test_exit 2 opt -m x --lr "$v" 2>err; done
	test_text err "--lr: '\''1e-4x'\'' is not a number"
	test_exit 2 opt -m x --schedule triangle 2>err
	test_text err "--schedule: unknown value '\''triangle'\'', not one of constant|linear|cosine"
	test_exit 2 opt -m x --publish maybe 2>err
	test_text err "--publish: '\''maybe'\'' is neither on nor off"
	test_exit 2 opt -m x --batch-size 2>err
	test_text err "tw-train: --batch-size: needs a value, N"
'
test_case 'an empty name, of an option or an operand, is refused: a variable of a script that is not set' '
	for v in "--model=" "-m" "--server"; do
	    test_exit 2 opt -m x "$v" "" 2>err
	    test_equal "$(wc -l <err | tr -d " ")" 1
	done
	test_text err "tw-train: --server: an empty value; needs URL"
	test_exit 2 opt -m x --config "" 2>err
	test_text err "tw-train: --config: an empty value; needs FILE"
	test_exit 2 env TW_CONFIG= opt -m x 2>err
	test_text err "tw-train: TW_CONFIG: an empty value; needs FILE"
	echo "model =" >c.conf
	test_exit 2 opt --config c.conf 2>err
	test_text err "tw-train: c.conf:1: an empty value; needs MODEL"
	test_exit 2 opt -m x a "" b 2>err
	test_text err "tw-train: operand 2 is empty; see tw-train --help"
	for c in tw-fetch tw-preprocess tw-encode tw-train tw-sample tw-reward tw-serve; do
	    test_exit 2 $c "" 2>err
	    test_text err "$c: operand 1 is empty"
	done
	test_exit 2 tw-serve -m tiny --state "" 2>err
	test_text err "tw-serve: --state: an empty value; needs DIR"
	test_equal "$(ls)" "$(printf "c.conf\nerr")"
'
test_case 'a needed option is asked for' '
	test_exit 2 opt a 2>err
	test_text err "tw-train: --model MODEL is needed; see tw-train --help"
	TW_MODEL=y opt a >out
	test_text out "\"model\":\"y\""
'
test_case 'argument over TW_TRAIN_X over TW_X over --config over default' '
	echo "batch-size = 2" >c
	test_equal "$(value batch-size)" 16
	test_equal "$(value batch-size --config c)" 2
	test_equal "$(TW_BATCH_SIZE=3 value batch-size --config c)" 3
	test_equal "$(TW_TRAIN_BATCH_SIZE=4 TW_BATCH_SIZE=3 value batch-size --config c)" 4
	test_equal "$(TW_TRAIN_BATCH_SIZE=4 TW_BATCH_SIZE=3 value batch-size --config c -b 5)" 5
	test_equal "$(TW_CONFIG=c value batch-size)" 2
	test_equal "$(TW_TRAIN_CONFIG=c TW_CONFIG=none value batch-size)" 2
'
test_case 'lists: a stronger source replaces a weaker one' '
	printf "stop = a\nstop = b b\n" >c
	opt -m x --config c >out && test_text out "\"stop\":[\"a\",\"b b\"]"
	TW_STOP="c
d" opt -m x --config c >out && test_text out "\"stop\":[\"c\",\"d\"]"
	TW_STOP=c opt -m x --config c --stop e >out && test_text out "\"stop\":[\"e\"]"
'
test_case 'errors of the environment name the variable' '
	TW_TRAIN_LR=abc test_exit 2 opt -m x 2>err
	test_text err "tw-train: TW_TRAIN_LR: '\''abc'\'' is not a number"
	TW_RESUME=perhaps test_exit 2 opt -m x 2>err
	test_text err "tw-train: TW_RESUME: "
'
test_case 'variables that are no options, or reserved, are left alone' '
	TW_UNKNOWN_THING=1 TW_TRAIN_OTHER=2 TW_DEBUG=0 TW_CACHE=/x opt -m x >out
	test_equal "$(TW_SERVER=https://host value server)" null
	test_equal "$(TW_TRAIN_SERVER=u value server)" "\"u\""
'
test_case 'a configuration file: comments, blanks, CRLF, quotes as they stand' '
	printf "# a comment\n\n  model =  my model \r\nlr=0.5\nresume = on\n" >c
	opt --config c >out
	test_text out "\"model\":\"my model\""
	test_text out "\"lr\":0.5"
	test_text out "\"resume\":true"
'
test_case 'errors of a configuration file name file and line' '
	printf "lr = 0.5\nbacth-size = 2\n" >c
	test_exit 2 opt -m x --config c 2>err
	test_text err "tw-train: c:2: unknown option '\''bacth-size'\''; did you mean '\''batch-size'\''?"
	printf "lr = 7\n" >c
	test_exit 2 opt -m x --config c 2>err
	test_text err "tw-train: c:1: 7 is out of range: 0 to 1"
	printf "\nlr\n" >c
	test_exit 2 opt -m x --config c 2>err
	test_text err "tw-train: c:2: expected '\''name = value'\'', not '\''lr'\''"
	printf "config = d\n" >c
	test_exit 2 opt -m x --config c 2>err
	test_text err "tw-train: c:1:"
	test_exit 2 opt -m x --config none 2>err
	test_text err "tw-train: none: cannot open: No such file"
'
test_case 'help, version, words, man' '
	opt --help >out
	test_text out "usage: tw-train [OPTION].. [FILE..]"
	test_text out "(default 16)"
	test_text out "  -m, --model MODEL           start from MODEL (needed)"
	test_text out "stop at TEXT (may be repeated)"
	test_text out "  tw-train -m tiny data.jsonl"
	! grep -n "^.\{101\}" out
	opt -h | cmp - out
	opt --help=words >out
	grep -q "^--schedule	constant|linear|cosine	" out
	grep -q "^-b	N	" out
	opt --help=man >out
	test_text out "\\fB\\-b\\fR, \\fB\\-\\-batch\\-size\\fR \\fIN\\fR"
	test_text out "Default: linear."
	test_exit 2 opt --help=pdf 2>err
	test_text err "unknown form '\''pdf'\''"
	opt -V >out
	test_text out "tw-train $(sed -n "s/^VERSION = //p" "$TOP/Makefile")"
'
test_case 'an error is one line; TW_DEBUG adds our place' '
	test_exit 1 opt -m x fail >out 2>err
	test_equal "$(cat err)" "tw-train: data.jsonl:17: it is bad"
	test_exit 1 opt -m x lost >out 2>err
	test_equal "$(cat err)" "tw-train: hf://a/b: not found"
	TW_DEBUG=1 test_exit 1 opt -m x fail >out 2>err
	test_text err "it is bad [tests/unit/opt.c:"
'
test_case 'a full disk is a failure' '
	[ -c /dev/full ] || test_skip "no /dev/full"
	test_exit 1 opt -m x >/dev/full 2>err
	test_text err "tw-train: stdout: cannot write: No space left on device"
	test_exit 1 opt --help >/dev/full 2>err
	test_exit 1 opt -m x fail >/dev/full 2>err
	test_equal "$(cat err)" "tw-train: data.jsonl:17: it is bad"
'
test_case 'a closed pipe is quiet' '
	{ opt -m x; echo $? >status; } 2>err | :
	[ ! -s err ]
'
test_done
