# lib.sh - for tests/tNNNN-name.sh, which source it first:
#
#     . "$(dirname "$0")/lib.sh"
#     test_case 'a bad line is named' '
#         printf "{\n" >in.jsonl
#         test_exit 1 tw-encode in.jsonl >out 2>err
#         test_text err "in.jsonl:1"
#     '
#     test_done
#
# Each case runs in a fresh folder, in a subshell under set -e; its output is shown if it fails.
# TOP is the source, DATA its tests/data, TMP a folder that the cases of one script share.
TOP=$(cd "$(dirname "$0")/.." && pwd)
TW_BUILD=${TW_BUILD:-$TOP/build}
NAME=$(basename "$0" .sh)
DATA=$TOP/tests/data
ROOT=$TW_BUILD/test-tmp/$NAME
TMP=$ROOT/shared
for v_ in $(env | sed -n 's/^\(TW_[A-Z0-9_]*\)=.*/\1/p'); do
    case $v_ in TW_BUILD | TW_TEST_*) ;; *) unset "$v_" ;; esac
done
unset HF_TOKEN HF_ENDPOINT HF_HUB_OFFLINE MODELSCOPE_API_TOKEN MODELSCOPE_ENDPOINT
rm -rf "$ROOT"
mkdir -p "$TMP" "$ROOT/home" || exit 1
export PATH="$TW_BUILD/bin:$TW_BUILD/tests:$PATH" TW_SHARE="$TOP/share" TW_CACHE="$ROOT/cache"
export HOME="$ROOT/home" LC_ALL=C TOP DATA TMP TW_BUILD
export ASAN_OPTIONS="${ASAN_OPTIONS:-verify_asan_link_order=0}"
n_=0 bad_=0

# test_case NAME SCRIPT
test_case()
{
    n_=$((n_ + 1))
    mkdir -p "$ROOT/$n_"
    (
        set -e
        cd "$ROOT/$n_"
        eval "$2"
    ) >>"$ROOT/$n_.log" 2>&1
    case $? in
    0) echo "ok $n_ - $1" ;;
    77) echo "ok $n_ - $1 # SKIP $(cat "$ROOT/$n_/skip_")" ;;
    *)
        bad_=$((bad_ + 1))
        echo "not ok $n_ - $1"
        tail -n 30 "$ROOT/$n_.log" | sed 's/^/# /'
        return 0
        ;;
    esac
    rm -rf "${ROOT:?}/$n_"
}

# test_exit STATUS COMMAND..: runs it; fails unless it ends with STATUS.
test_exit()
{
    want_=$1
    shift
    got_=0
    "$@" || got_=$?
    [ "$got_" = "$want_" ] || {
        echo "status $got_, not $want_: $*" >>"$ROOT/$n_.log"
        for f_ in out err; do [ ! -s $f_ ] || sed "s/^/$f_: /" $f_ | head -n 10 >>"$ROOT/$n_.log"; done
        return 1
    }
}

# test_text FILE TEXT: fails unless FILE holds TEXT; test_no_text: unless it does not.
test_text()
{
    grep -qF -e "$2" "$1" || {
        echo "$1 does not hold: $2"
        head -c 2000 "$1"
        return 1
    }
}
test_no_text()
{
    ! grep -F -e "$2" "$1" || return 1
}

# test_equal A B: fails unless the two strings are equal.
test_equal()
{
    [ "$1" = "$2" ] || {
        printf '%s\n' "got:  $1" "want: $2"
        return 1
    }
}

# test_skip REASON: ends the case without a verdict.
test_skip()
{
    echo "$1" >"$ROOT/$n_/skip_"
    exit 77
}

test_done()
{
    echo "1..$n_"
    [ $bad_ = 0 ] && rm -rf "$ROOT"
    [ $bad_ = 0 ]
    exit
}
