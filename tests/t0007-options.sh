#!/bin/sh
# Every option of every command: that a test uses it, and what the common ones do in each command.
. "$(dirname "$0")/lib.sh"
cmds=$(cd "$TW_BUILD/bin" && ls -d tw-*)
jobs=$(echo "$cmds" | grep -v tw-serve)     # those that read records; a server has none

# used COMMAND: the options that stand in a test of COMMAND, one a line; a line that runs another
# command alone does not count.
used()
{
    for s_ in "$TOP"/tests/t[0-9]*.sh; do
        ! grep -q -e "$1" "$s_" || cat "$s_"
        [ "$1" != tw-serve ] || ! grep -q serve_start "$s_" || cat "$s_"
    done | sed -e :a -e '/\\$/{N;s/\\\n//;ta' -e '}' |
        awk -v c="$1" '!/^test_case/ && (index($0, c) || !/tw-[a-z]+ /)' |
        grep -oE -e '(^|[^-a-z])--?[a-z][-a-z0-9]*' | sed 's/^[^-]//' | sort -u
}
test_case 'every option of every command stands in a test of it' '
	for c in $cmds; do
	    used "$c" >used
	    # a letter is as good as the name: both have the same help
	    "$c" --help=words | awk -F "\t" "{ n = substr(\$1, 1, 2) == \"--\" ? \$1 : \"\"
	        if (n) name[\$2 \"\t\" \$3] = n; else print name[\$2 \"\t\" \$3] \"\t\" \$1 }" >letters
	    "$c" --help=words | cut -f 1 | grep -e "^--" | while read -r o; do
	        grep -qxF -e "$o" used && continue
	        l=$(awk -F "\t" -v o="$o" "\$1 == o { print \$2 }" letters)
	        [ -n "$l" ] && grep -qxF -e "$l" used && continue
	        echo "$c $o"
	    done
	done >unused
	cat unused
	[ ! -s unused ]
'

# What each command does with records of its own: job COMMAND OPTION.. <records
echo '{"a":1}' >"$TMP/tw-fetch"
echo '{"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello"}]}' >"$TMP/tw-preprocess"
cp "$TMP/tw-preprocess" "$TMP/tw-encode"
echo '{"tokens":[5,6,7,8],"id":"a"}' >"$TMP/tw-train"
cp "$TMP/tw-train" "$TMP/tw-sample"
echo '{"answer":"4","completion":{"text":"4"},"group":0,"group_size":1,"sample":0}' >"$TMP/tw-reward"
job()
{
    c_=$1
    shift
    case $c_ in
    tw-fetch) tw-fetch -d "$@" - ;;
    tw-preprocess) tw-preprocess "$@" ;;
    tw-encode) tw-encode -m tiny --format jsonl "$@" ;;
    tw-train) tw-train -m "$DATA/models/qwen3" --batch 1 -o run "$@" && cat run/latest/*.safetensors ;;
    tw-sample) tw-sample -m "$DATA/models/qwen3" --max-tokens 3 "$@" ;;
    tw-reward) tw-reward exact "$@" ;;
    *) echo "no job for $c_" >&2 && false ;;
    esac
}
# other COMMAND: a line of a configuration that changes what the job writes.
other()
{
    case $1 in
    tw-fetch) echo 'slice = 1:' ;;
    tw-preprocess) echo 'filter = length,min=100' ;;
    tw-encode) echo 'train-on = all' ;;
    tw-train) echo 'lr = 0.5' ;;
    tw-sample) echo 'seed = 7' ;;
    tw-reward) printf '%s\\n' 'exec-weight = 2' 'exec = while read -r l; do echo 0.5; done' ;;
    esac
}
test_case '--help and --version print to stdout and do nothing else' '
	for c in $cmds; do
	    "$c" --help >out 2>err </dev/null
	    test_text out "usage: $c "
	    "$c" -h | cmp out -
	    "$c" --version >out 2>>err
	    test_equal "$(cat out)" "$("$c" -V)"
	    [ ! -s err ]
	done
'
test_case '--config of every command: read, and refused by file and line' '
	for c in $jobs; do
	    rm -rf run
	    job "$c" <"$TMP/$c" >plain 2>err
	    other "$c" >c.conf
	    rm -rf run
	    job "$c" --config c.conf <"$TMP/$c" >changed 2>err || :     # no row may be kept
	    ! cmp -s plain changed || { echo "$c: $(cat c.conf) changed nothing"; exit 1; }
	    echo "nonsense = 1" >c.conf
	    test_exit 2 job "$c" --config c.conf <"$TMP/$c" >out 2>err
	    test_text err "$c: c.conf:1: unknown option"
	    [ ! -s out ]
	done
'
test_case '--log-every of every command: a line of progress without a terminal; --quiet: nothing' '
	for c in $jobs; do
	    # what comes slowly is read as it comes; some need a while to begin
	    slow() { for i in $(seq 60); do cat "$TMP/$c" && sleep 0.3; [ $i -lt 5 ] || ! $1 || break; done; }
	    rm -rf run
	    slow "grep -qv records.in err" | job "$c" --log-every 0.5 >out 2>err
	    [ -s out ]
	    grep -v "records in" err | grep -E "^$c: [a-z ]* [1-9][0-9]*( |\$)" || { echo "$c shows no progress"; cat err; exit 1; }
	    rm -rf run
	    slow true | job "$c" --log-every 0.5 --quiet >out 2>err
	    [ -s out ]
	    [ ! -s err ] || { cat err; exit 1; }
	    rm -rf run
	    { slow true; sleep 1; } | job "$c" >out 2>err
	    # the end of a run of more than a second, and nothing before it but what was detected or scored
	    test_equal "$(grep -v "(columns \|mean reward" err | wc -l | tr -d " ")" 1
	    test_text err "5 records in"
	done
'
test_case '--verbose of every command says more, on stderr' '
	for c in $jobs; do
	    rm -rf run
	    job "$c" <"$TMP/$c" >plain 2>quiet
	    rm -rf run
	    job "$c" --verbose <"$TMP/$c" >out 2>err
	    cmp plain out
	    [ "$(wc -l <err)" -gt "$(wc -l <quiet)" ] || { echo "$c says nothing more"; exit 1; }
	done
'
test_case 'a closed stdin or stdout is an error, and no file takes its place' '
	for c in $jobs; do
	    rm -rf run
	    test_exit 1 job "$c" <&- >out 2>err
	    grep -q "^$c: stdin:.* cannot" err
	    [ ! -s out ]
	    rm -rf run
	    job "$c" <"$TMP/$c" >plain 2>err
	    rm -rf run
	    job "$c" <"$TMP/$c" >out 2>&-
	    cmp plain out
	    [ "$c" != tw-train ] || continue        # prints nothing
	    test_exit 1 job "$c" <"$TMP/$c" >&- 2>err
	    grep -qE "$c: stdout: cannot write: Bad file descriptor" err
	done
'
test_done
