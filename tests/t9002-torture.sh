#!/bin/sh
# What users and disks do to files: each command ends with a line that names the file, and with no
# output under a final name. Cuts and flipped bits stand at fixed places, so a failure comes again.
. "$(dirname "$0")/lib.sh"

cp -R "$DATA/models/qwen3" "$TMP/m"
cp -R "$TW_SHARE/models/tiny" "$TMP/tiny"
chmod -R u+w "$TMP/m" "$TMP/tiny"
cd "$TMP" || exit 1
for i in 1 2 3 4 5 6; do echo '{"tokens":[5,6,7,8,9],"weights":[0,1,1,0.5,1]}'; done >tok.jsonl
for i in 1 2 3; do
    printf '%s\r\n' '{"messages":[{"role":"user","content":"Hi \u00e9 \ud83d\ude00"},{"role":"assistant","content":"Hello"}],"n":1.50}'
done >chat.jsonl
printf 'text,n\r\n"a ""b""\n c",d\r\n1,2\r\n' >row.csv
tar czf a.tar.gz chat.jsonl
cp "$DATA/gguf/blocks.gguf" "$DATA/gguf/kblocks.gguf" .
tw-encode -q -m ./tiny -o c.tws chat.jsonl

test_case 'what is not there, and a folder: named in one line' '
	cd "$TMP"
	mkdir -p folder
	for f in missing folder; do
	    for c in "tw-preprocess -o out" "tw-encode -m tiny -o out" "tw-sample -m m -o out" "tw-reward exact -o out" \
	        "tw-train -m m -o out" "tw-train -m m -o out --eval $f tok.jsonl"; do
	        test_exit 1 $c $f 2>err
	        test_equal "$(wc -l <err | tr -d " ")" 1
	        test_text err "$f: "
	        grep -q "folder\|cannot open" err
	        [ ! -e out ]
	    done
	    test_exit 5 tw-fetch -d -o out $f 2>err
	    [ ! -e out ]
	    for c in "tw-encode -m $f -o out" "tw-sample -m $f -o out" "tw-train -m $f -o out" \
	        "tw-sample -m m --adapter $f -o out" "tw-train -m m --adapter $f -o out"; do
	        test_exit 1 $c tok.jsonl 2>err
	        test_equal "$(wc -l <err | tr -d " ")" 1
	        test_text err "$f"
	        [ ! -e out ]
	    done
	done
'
test_case 'a folder that may not be looked into is not one without a model' '
	[ "$(id -u)" != 0 ] || command -v setpriv >/dev/null || test_skip "no setpriv(1)"
	nobody=
	[ "$(id -u)" != 0 ] || nobody="setpriv --reuid=65534 --regid=65534 --clear-groups"
	mkdir -p closed/in
	cp "$DATA"/models/qwen3/config.json closed/in/
	chmod 000 closed/in
	$nobody test -r "$PWD" || test_skip "others may not come here"
	for f in closed/in closed/in/deeper; do
	    for o in "-m $f" "-m tiny --adapter $f"; do
	        test_exit 1 $nobody tw-sample $o /dev/null 2>err
	        test_equal "$(cat err)" "tw-sample: $f: cannot open: Permission denied"
	    done
	done
	chmod 700 closed/in
'
test_case 'an output that cannot be made is named before any work' '
	cd "$TMP"
	for c in "tw-preprocess -q" "tw-encode -m tiny" "tw-sample -m m" "tw-reward exact" "tw-fetch -d"; do
	    test_exit 1 $c -o no/such/out tok.jsonl 2>err
	    test_equal "$(cat err | sed "s/^tw-[a-z]*: //")" "no/such/out: cannot create: No such file or directory"
	done
'

# tried COMMAND..: ends by itself, and if it fails, in one line that names something and with nothing made.
tried()
{
    status=0
    rm -rf out
    "$@" >o 2>err </dev/null || status=$?
    [ $status -lt 7 ] || { echo "status $status: $*"; cat err; return 1; }
    ! grep -E "Sanitizer|runtime error" err || return 1
    [ $status != 0 ] || return 0
    [ "$(grep -vc "(columns \|skipped\|left out\|not in the rendering\|records in" err)" = 1 ] || { cat err; return 1; }
    grep -q "^$1: ." err
    case "$*" in *train*) [ ! -e out/latest ] ;; *) [ ! -e out ] ;; esac
}
# broken FILE COMMAND..: the command with FILE cut at, and flipped at, places near its head and all over.
broken()
{
    file=$1
    shift
    cp "$file" whole
    n=$(wc -c <whole | tr -d ' ')
    for at in 0 1 7 8 9 20 60 $((n / 9)) $((n / 5)) $((n / 3)) $((n / 2)) $((n - 9)) $((n - 1)); do
        head -c $at whole >"$file"
        tried "$@" || { echo "$file cut to $at"; cp whole "$file"; return 1; }
        [ $at -lt $n ] || continue
        for byte in '\000' '\377' '"' '9'; do
            cp whole "$file"
            printf "$byte" | dd of="$file" bs=1 seek=$at conv=notrunc 2>/dev/null
            tried "$@" || { echo "$file with $byte at $at"; cp whole "$file"; return 1; }
        done
    done
    cp whole "$file"
}
for f in 'm/model.safetensors tw-sample -m m --max-tokens 1 -o out tok.jsonl' \
    'm/config.json tw-sample -m m --max-tokens 1 -o out tok.jsonl' \
    'm/adapter/adapter_config.json tw-sample -m m --adapter m/adapter --max-tokens 1 -o out tok.jsonl' \
    'm/adapter/adapter_model.safetensors tw-train -m m --adapter m/adapter --steps 1 -o out tok.jsonl' \
    'tiny/tokenizer.json tw-encode -m ./tiny -o out chat.jsonl' \
    'tiny/tokenizer_config.json tw-encode -m ./tiny -o out chat.jsonl' \
    'tiny/chat_template.jinja tw-encode -m ./tiny -o out chat.jsonl' \
    'tiny/generation_config.json tw-sample -m ./tiny --max-tokens 1 -o out chat.jsonl' \
    'c.tws tw-encode -m ./tiny --decode -o out c.tws' \
    'c.tws tw-train -m ./tiny --steps 1 -o out c.tws' \
    'tok.jsonl tw-train -m m --steps 1 -o out tok.jsonl' \
    'chat.jsonl tw-preprocess -q -o out chat.jsonl' \
    'chat.jsonl tw-encode -m ./tiny -o out chat.jsonl' \
    'row.csv tw-fetch -d -o out row.csv' \
    'blocks.gguf tw-fetch -o out blocks.gguf' \
    'kblocks.gguf tw-fetch -o out kblocks.gguf' \
    'a.tar.gz tw-fetch -d -o out a.tar.gz'; do
    test_case "${f%% *}, cut and with bytes changed: $(echo "$f" | cut -d ' ' -f 2)" '
	cd "$TMP"
	broken '"$f"'
'
done
test_done
