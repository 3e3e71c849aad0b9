#!/bin/sh
# tw-sample --chat in a terminal, which script(1) makes. What is typed waits until what comes before it is answered.
. "$(dirname "$0")/lib.sh"

# talk OPTIONS..: what the terminal shows, in screen; stdin is what is typed. No shell stays between script and the
# program: without SHELL in the environment it is one that ends at a Ctrl-C which its child outlives.
# What the screen held before has to go first: who types looks at it at once.
talk()
{
    script -qec "exec tw-sample -m ${MODEL:-tiny} --chat $*" /dev/null >screen 2>&1
}
# shown N TEXT: waits until TEXT stands on the screen N times.
shown()
{
    for i_ in $(seq 2400); do
        [ "$(grep -aoF -e "$2" screen | wc -l)" -lt "$1" ] || return 0
        sleep 0.05
    done
    echo "never on the screen: $2" >&2
    return 1
}
test_case 'answers come, Ctrl-C ends one and not the program, Ctrl-D ends the program' '
	command -v script >/dev/null || test_skip "no script(1)"
	: >screen
	{
	    shown 1 "> "
	    printf "Who are you?\n"
	    shown 2 "> "
	    printf "\003"
	    shown 3 "> "
	    printf "/reset\n"
	    shown 4 "> "
	    printf "Who are you?\n"
	    shown 5 "> "
	    printf "\004"
	} 2>late | talk --temperature 0
	cat late
	test_equal "$(grep -c "^I am Tiny" screen)" 2

	# an answer that no machine ends before Ctrl-C is typed
	cp -r "$TOP/share/models/tiny" endless
	sed -i "s/\"max_position_embeddings\": 1024/\"max_position_embeddings\": 200000/" endless/config.json
	: >screen
	{
	    shown 1 "> "
	    printf "Tell me\n"
	    while [ "$(sed "1,/Tell me/d" screen | wc -c)" -lt 5 ]; do sleep 0.01; done
	    printf "\003"
	    shown 2 "> "
	    printf "\004"
	} 2>late | MODEL=$PWD/endless talk --ignore-eos --max-tokens 190000
	cat late
	test_text screen " [stopped]"
	[ ! -s late ]
'
test_case 'a line that the terminal cuts is not sent, and that is said' '
	command -v script >/dev/null || test_skip "no script(1)"
	: >screen
	{
	    shown 1 "> "
	    head -c 6000 /dev/zero | tr "\000" w
	    printf "\n"
	    shown 2 "> "
	    printf "Who are you?\n"
	    shown 3 "> "
	    printf "\004"
	} 2>late | talk --temperature 0
	cat late
	test_text screen "tw-sample: a terminal takes 4095 bytes a line and dropped the rest: it was not sent"
	test_equal "$(grep -c "^I am Tiny" screen)" 1
'
test_done
