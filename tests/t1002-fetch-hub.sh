#!/bin/sh
# tw-fetch and hubs: a server on loopback that answers like them, and misbehaves on request.
. "$(dirname "$0")/lib.sh"
. "$TOP/tests/hub.sh"

# a model: two small files and one of 1 MiB, which the hub redirects to its second server
model()
{
    hub_file hf/models/org/m/config.json 1000
    hub_file hf/models/org/m/sub/notes.txt 70
    hub_file hf/models/org/m/model.safetensors 1048576
}
repo=cache/hub/hf/models/org/m
same()
{
    diff -r "$1" hub/hf/models/org/m
}

test_case 'a model arrives whole; a second run asks once and fetches nothing' '
	hub_start
	model
	: >hub/hf/models/org/m/empty
	d=$(tw-fetch hf://org/m)
	same "$d"
	: >hub/log
	test_equal "$(tw-fetch hf://org/m)" "$d"
	test_equal "$(hub_count GET)" 1
'
test_case 'a commit that is cached needs no request, a branch takes the cache when nobody answers' '
	hub_start
	model
	d=$(tw-fetch hf://org/m)
	: >hub/log
	test_equal "$(tw-fetch hf://org/m@$(basename "$d"))" "$d"
	test_equal "$(tw-fetch --revision "$(basename "$d")" hf://org/m)" "$d"
	test_equal "$(tw-fetch --offline hf://org/m)" "$d"
	test_equal "$(HF_HUB_OFFLINE=1 tw-fetch hf://org/m)" "$d"
	test_equal "$(hub_count GET)" 0
	HF_ENDPOINT=http://127.0.0.1:9 tw-fetch hf://org/m >out 2>err
	test_equal "$(cat out)" "$d"
	test_text err "cannot connect to 127.0.0.1 port 9: taking the snapshot of"
	test_exit 5 tw-fetch --offline hf://org/other 2>err
	test_text err "is not in the cache, and this run is offline"
'
test_case 'a hub that hangs is given up after 10 s, then the cache is taken' '
	hub_start
	model
	d=$(tw-fetch hf://org/m)
	behave "{\"hang\": true}"
	t=$(date +%s)
	tw-fetch hf://org/m >out 2>err
	[ $(($(date +%s) - t)) -le 40 ]         # on a machine that has other things to do, too
	test_equal "$(cat out)" "$d"
	test_text err "does not answer in time: taking the snapshot of"
'
test_case 'a branch that moved is a new folder, the old one stays' '
	hub_start
	model
	d=$(tw-fetch hf://org/m)
	echo "{}" >hub/hf/models/org/m/config.json
	e=$(tw-fetch hf://org/m)
	[ "$d" != "$e" ]
	same "$e"
	[ "$(wc -c <"$d/config.json")" = 1000 ]
	test_exit 5 tw-fetch hf://org/m@gone 2>err
	test_text err "there is no revision \"gone\""
'
test_case 'F01: a cut transfer is a failure, and never takes the name' '
	hub_start
	model
	behave "{\"cut\": {\"model.safetensors\": 0.6}, \"norange\": true}"
	test_exit 3 tw-fetch hf://org/m >out 2>err
	test_equal "$(cat out)" ""
	test_text err "model.safetensors: 127.0.0.1 closed the connection early"
	test_equal "$(find cache -name model.safetensors)" ""
'
test_case 'F01: a short file under the final name is fetched again' '
	hub_start
	model
	d=$(tw-fetch hf://org/m)
	head -c 600000 hub/hf/models/org/m/model.safetensors >"$d/model.safetensors"
	tw-fetch hf://org/m >out
	same "$d"
	mkdir -p dir
	head -c 600000 hub/hf/models/org/m/model.safetensors >dir/model.safetensors
	test_equal "$(tw-fetch -o dir hf://org/m)" dir
	rm -r dir/.tw-fetch
	same dir
'
test_case 'F02: a broken transfer goes on where it stopped' '
	hub_start
	model
	behave "{\"cut\": {\"model.safetensors\": 0.5}}"
	test_exit 3 tw-fetch hf://org/m 2>err
	behave "{}"
	: >hub/log
	d=$(tw-fetch hf://org/m 2>err)
	same "$d"
	test_equal "$(hub_count "\"range\": \"bytes=524288-\"")" 2
	test_equal "$(hub_count "\"server\": \"cdn\"")" 1
	test_equal "$(grep -c "if_range...... *[0-9a-f]\{64\}" hub/log)" 2
	test_equal "$(cat err)" ""
'
test_case 'F02: a lost connection is mended within the run' '
	hub_start
	model
	behave "{\"status\": {\"signature\": [502, {}, 2]}}"
	d=$(tw-fetch hf://org/m 2>err)
	same "$d"
	test_equal "$(hub_count "\"status\": 502")" 2
'
test_case 'F02: killed at any time, the next run goes on' '
	hub_start
	model
	behave "{\"slow\": 600}"
	tw-fetch hf://org/m &
	p=$!
	until [ "$(cat $repo/parts/*.part 2>/dev/null | wc -c)" -gt 1000 ]; do sleep 0.05; done
	kill -9 $p
	wait $p || true
	n=$(cat $repo/parts/*.part | wc -c)
	[ "$n" -gt 1000 ]
	behave "{}"
	: >hub/log
	d=$(tw-fetch hf://org/m 2>err)
	same "$d"
	grep -q "bytes=[1-9][0-9]*-" hub/log
'
test_case 'F02: a server without ranges starts again, and that is said' '
	hub_start
	model
	behave "{\"cut\": {\"model.safetensors\": 0.5}}"
	test_exit 3 tw-fetch hf://org/m 2>err
	behave "{\"norange\": true}"
	d=$(tw-fetch hf://org/m 2>err)
	same "$d"
	test_text err "starts again from the beginning"
'
test_case 'F02: never a splice of two versions (a file of a URL that changed)' '
	hub_start
	hub_file web/a.bin 1000000
	behave "{\"cut\": {\"a.bin\": 0.5}}"
	test_exit 3 tw-fetch "$HUB/web/a.bin" 2>err
	tr 0123456789 9876543210 <hub/web/a.bin >b
	mv b hub/web/a.bin
	behave "{}"
	f=$(tw-fetch "$HUB/web/a.bin" 2>err)
	cmp "$f" hub/web/a.bin
	test_text err "starts again from the beginning"
'
test_case 'F02: without a version to compare nothing is pieced together' '
	hub_start
	hub_file web/a.bin 1000000
	behave "{\"cut\": {\"a.bin\": 0.5}, \"noetag\": true}"
	test_exit 3 tw-fetch "$HUB/web/a.bin" 2>err
	behave "{\"noetag\": true}"
	: >hub/log
	cmp "$(tw-fetch "$HUB/web/a.bin")" hub/web/a.bin
	test_equal "$(hub_count "bytes=")" 0
'
test_case 'F03: right size, wrong bytes' '
	hub_start
	model
	behave "{\"flip\": {\"model.safetensors\": 500000, \"config.json\": 5}}"
	test_exit 6 tw-fetch hf://org/m 2>err
	sum=$(sha256sum <hub/hf/models/org/m/model.safetensors | cut -c1-64)
	test_text err "model.safetensors: damaged: its digest is "
	test_text err "and should be $sum"
	test_text err "config.json: damaged"
	test_equal "$(find cache -name model.safetensors -o -name config.json)" ""
'
test_case 'F03: the only file that fails is named, too' '
	hub_start
	model
	behave "{\"flip\": {\"config.json\": 5}}"
	test_exit 6 tw-fetch --include config.json hf://org/m 2>err
	test_text err "tw-fetch: hf://org/m: config.json: damaged: its digest is"
	test_exit 6 tw-fetch hf://org/m 2>err
	test_text err "tw-fetch: hf://org/m: 1 of 3 files failed: config.json: damaged: its digest is"
'
test_case 'F03: --verify reads what is there' '
	hub_start
	model
	d=$(tw-fetch hf://org/m)
	printf X | dd of="$d/model.safetensors" bs=1 seek=77777 conv=notrunc 2>/dev/null
	printf X | dd of="$d/config.json" bs=1 seek=7 conv=notrunc 2>/dev/null
	tw-fetch --verify hf://org/m >out 2>err
	same "$d"
	test_text err "model.safetensors: its digest is"
	test_text err "config.json: its digest is"
	tw-fetch --verify hf://org/m >out 2>err
	test_equal "$(cat err)" ""
'
test_case 'F04: 429 pauses every worker for the time the server names' '
	hub_start
	for i in 1 2 3 4 5 6 7 8 9; do hub_file hf/models/org/m/f$i 500; done
	behave "{\"status\": {\"resolve\": [429, {\"Retry-After\": \"1\"}, 3]}}"
	d=$(tw-fetch --jobs 1 hf://org/m 2>err)
	same "$d"
	test_equal "$(grep -c "127.0.0.1 limits requests: waiting 1 s" err)" 3
	command -v python3 >/dev/null
	python3 - <<-X
	import json
	log = [json.loads(l) for l in open("hub/log")]
	limited = [r["t"] for r in log if r["status"] == 429]
	assert len(limited) == 3
	for r in log:
	    assert not any(t + 0.001 < r["t"] < t + 1 for t in limited), r
	X
'
test_case 'F04: many workers, one pause, then one request before the rest' '
	hub_start
	for i in 1 2 3 4 5 6 7 8 9; do hub_file hf/models/org/m/f$i 500; done
	behave "{\"status\": {\"resolve\": [429, {\"RateLimit\": \"\\\\\"api\\\\\";r=0;t=2\"}, 10]}}"
	d=$(tw-fetch --jobs 8 hf://org/m 2>err)
	same "$d"
	python3 - <<-X
	import json
	log = [json.loads(l) for l in open("hub/log")]
	bad = sorted(r["t"] for r in log if r["status"] == 429)
	good = sorted(r["t"] for r in log if r["status"] == 200 and "resolve" in r["path"])
	# each worker may have been on its way when the first answer came; then one asks, and again
	assert sum(t < bad[0] + 1.9 for t in bad + good) <= 8, (bad, good)
	assert bad[9] - bad[8] > 1.9 and good[0] - bad[9] > 1.9, (bad, good)
	X
'
test_case 'F04: the total of waiting is limited; other refusals are not repeated' '
	hub_start
	model
	behave "{\"status\": {\"revision\": [429, {\"Retry-After\": \"100\"}, -1]}}"
	test_exit 3 tw-fetch --max-wait 5 hf://org/m 2>err
	test_text err "asks to wait 100 s more, past the limit of 5 s"
	behave "{\"status\": {\"config.json\": [404, {\"X-Error-Code\": \"EntryNotFound\"}, -1]}}"
	: >hub/log
	test_exit 5 tw-fetch hf://org/m 2>err
	test_equal "$(hub_count "resolve")" 3
'
test_case 'F05: the token goes to the hub, never to where it redirects, never to a log' '
	hub_start
	model
	behave "{\"token\": \"hf_geheim\"}"
	d=$(HF_TOKEN=" hf_geheim " tw-fetch -v hf://org/m 2>err)
	same "$d"
	test_equal "$(hub_count "Bearer hf_geheim")" "$(hub_count "\"server\": \"hub\"")"
	test_equal "$(grep "\"server\": \"cdn\"" hub/log | grep -c "\"auth\": null")" 1
	test_no_text err geheim
	test_no_text err signature
	behave "{\"token\": \"other\"}"
	HF_TOKEN=hf_geheim test_exit 4 tw-fetch -v hf://org/n 2>err
	test_no_text err geheim
	HF_TOKEN="a b" test_exit 1 tw-fetch hf://org/m 2>err
	test_text err "HF_TOKEN: is no access token"
	! grep -r geheim cache || false
'
test_case 'F06: endpoints: blank, slash, without scheme' '
	hub_start
	model
	tw-fetch hf://org/m >/dev/null
	HF_ENDPOINT="   " tw-fetch --offline hf://org/m >/dev/null
	HF_ENDPOINT=" $HUB/ " tw-fetch hf://org/m >/dev/null 2>err
	test_equal "$(cat err)" ""
	HF_ENDPOINT="${HUB#http://}" test_exit 1 tw-fetch hf://org/m 2>err
	test_text err "HF_ENDPOINT: is \"127.0.0.1:"
	test_text err "it needs a scheme"
	MODELSCOPE_ENDPOINT=modelscope.cn test_exit 1 tw-fetch ms://org/m 2>err
	test_text err "MODELSCOPE_ENDPOINT: is"
'
test_case 'F08: a listed name that leaves the folder is refused' '
	hub_start
	model
	for name in ../x /etc/x a/../../x; do
		behave "{\"evil\": \"$name\"}"
		test_exit 6 tw-fetch hf://org/m 2>err
		test_text err "the hub lists \"$name\""
	done
	[ ! -e cache/hub/hf/models/org/x ]
'
test_case 'F09: gated, private, missing and refused are told apart' '
	hub_start
	model
	behave "{\"status\": {\"/api/\": [401, {}, -1]}}"
	test_exit 4 tw-fetch hf://org/m 2>a
	test_text a "private or missing: check the name, or set HF_TOKEN"
	HF_TOKEN=x test_exit 4 tw-fetch hf://org/m 2>b
	test_text b "does not accept the token in HF_TOKEN"
	behave "{\"status\": {\"/api/\": [401, {\"X-Error-Code\": \"GatedRepo\"}, -1]}}"
	test_exit 4 tw-fetch hf://org/m 2>c
	test_text c "gated: accept its licence at $HUB/org/m and set HF_TOKEN"
	behave "{\"status\": {\"/api/\": [403, {\"X-Error-Code\": \"GatedRepo\"}, -1]}}"
	HF_TOKEN=x test_exit 4 tw-fetch hf://org/m 2>d
	test_text d "has not accepted its licence: accept it at $HUB/org/m"
	behave "{\"status\": {\"/api/\": [403, {}, -1]}}"
	HF_TOKEN=x test_exit 4 tw-fetch hf://org/m 2>e
	test_text e "may not read this"
	behave "{}"
	test_exit 5 tw-fetch hf://org/none 2>f
	test_text f "no such model on $HUB"
	behave "{\"status\": {\"/api/\": [500, {}, -1]}}"
	test_exit 3 tw-fetch hf://org/m 2>g
	test_text g "answers with status 500"
	test_equal "$(cat a b c d e f g | sort -u | wc -l)" 7
'
test_case 'F10: one failed file fails the run, is named, and does not stop the others' '
	hub_start
	model
	behave "{\"status\": {\"notes.txt\": [500, {}, -1]}}"
	test_exit 3 tw-fetch hf://org/m >out 2>err
	test_equal "$(cat out)" ""
	test_text err "1 of 3 files failed: sub/notes.txt: $HUB answers with status 500"
	[ -n "$(find cache -name model.safetensors)" ]
	behave "{}"
	: >hub/log
	tw-fetch hf://org/m >/dev/null
	test_equal "$(hub_count resolve)" 1
'
test_case 'F10: the percentage is of all files' '
	hub_start
	hub_file hf/models/org/m/a 90000
	hub_file hf/models/org/m/b 90000
	hub_file hf/models/org/m/c 8820000
	behave "{\"slow\": 1}"
	tw-fetch --jobs 1 --log-every 0.3 hf://org/m >out 2>err
	test_text err "of 9,000,000 bytes"
	grep -q "([01] %)" err
'
test_case 'F11: four processes fetch one model once' '
	hub_start
	model
	behave "{\"slow\": 600}"
	all=
	for i in 1 2 3 4; do
		tw-fetch hf://org/m >out$i 2>err$i &
		all="$all $!"
	done
	until [ "$(cat err? | grep -c "another process fetches it: waiting")" = 3 ]; do sleep 0.05; done
	behave "{}"
	for p in $all; do wait $p; done
	for i in 2 3 4; do cmp out1 out$i; done
	same "$(cat out1)"
	test_equal "$(hub_count "\"server\": \"cdn\"")" 1
	test_equal "$(hub_count "resolve")" 3
'
test_case 'F11: when the one that fetches is killed, the next goes on' '
	hub_start
	model
	behave "{\"slow\": 600}"
	tw-fetch hf://org/m >out1 2>err1 &
	p=$!
	until ls $repo/parts/*.part >/dev/null 2>&1; do sleep 0.05; done
	tw-fetch hf://org/m >out2 2>err2 &
	q=$!
	until grep -q waiting err2; do sleep 0.05; done
	kill -9 $p
	behave "{}"
	wait $q
	same "$(cat out2)"
	[ ! -s out1 ]
'
test_case 'F12: everything goes to the endpoint, also the next page of a list' '
	hub_start
	model
	for i in 1 2 3 4 5 6 7; do hub_file hf/models/org/m/f$i $i; done
	behave "{\"nosizes\": true, \"elsewhere\": true}"
	d=$(tw-fetch -v hf://org/m 2>err)
	same "$d"
	test_equal "$(grep -c contacts err)" 2
	test_text err "contacts $HUB"
	test_text err "contacts $CDN"
	test_equal "$(hub_count "cursor=")" 3
'
test_case 'F12: --allow-host limits where a redirect may lead' '
	hub_start
	model
	tw-fetch --allow-host 127.0.0.1 hf://org/m >/dev/null
	rm -rf cache
	test_exit 4 tw-fetch --allow-host "${HUB#http://}" hf://org/m 2>err
	test_text err "is not one that --allow-host names"
	test_equal "$(hub_count "\"server\": \"cdn\"")" 1
'
test_case '--include and --exclude choose files; more are added later' '
	hub_start
	model
	d=$(tw-fetch --include "*.json" hf://org/m)
	test_equal "$(ls "$d")" config.json
	tw-fetch --exclude "*.safetensors" hf://org/m >/dev/null
	test_equal "$(ls "$d" | tr "\n" " ")" "config.json sub "
	tw-fetch --include "sub/*" --include "*.safetensors" --exclude "*.txt" hf://org/m >/dev/null
	same "$d"
	test_equal "$(hub_count "config.json")" 1
'
test_case 'files of another snapshot with the same content are not fetched again' '
	hub_start
	model
	tw-fetch hf://org/m >/dev/null
	echo new >hub/hf/models/org/m/README.md
	: >hub/log
	d=$(tw-fetch hf://org/m)
	same "$d"
	test_equal "$(hub_count "resolve")" 1
'
test_case 'the other commands take hf:// by themselves' '
	hub_start
	model
	command -v tw-encode >/dev/null || test_skip "no tw-encode"
	echo "{}" >in.jsonl
	test_exit 1 tw-encode -m hf://org/m in.jsonl 2>err      # it is no real model
	same $repo/????????????????????????????????????????
'
test_case 'a repository of GGUF files: the one that is chosen becomes a folder' '
	hub_start
	mkdir -p hub/hf/models/org/g
	cp "$DATA/gguf/blocks.gguf" hub/hf/models/org/g/a-Q4.gguf
	cp "$DATA/gguf/blocks.gguf" hub/hf/models/org/g/a-Q8.gguf
	test_exit 1 tw-fetch hf://org/g 2>err
	test_text err "is one of 2 GGUF files: choose one with --include"
	test_equal "$(hub_count resolve)" 0
	d=$(tw-fetch --include "*Q8.gguf" hf://org/g)
	[ -f "$d/config.json" ] && [ -f "$d/model.safetensors" ]
	test_equal "$(hub_count resolve)" 1
	tw-fetch -o out --include "*Q8.gguf" hf://org/g
	cmp out/model.safetensors "$d/model.safetensors"
	test_equal "$(hub_count resolve)" 1
'
test_case 'ModelScope: a model, its token, its refusals' '
	hub_start
	hub_file ms/models/org/m/config.json 1000
	hub_file ms/models/org/m/sub/w.bin 300000
	d=$(MODELSCOPE_API_TOKEN=ms_geheim tw-fetch ms://org/m 2>err)
	diff -r "$d" hub/ms/models/org/m
	test_text hub/log "\"cookie\": \"m_session_id=ms_geheim\""
	test_text hub/log "\"auth\": \"Bearer ms_geheim\""
	: >hub/log
	test_equal "$(tw-fetch ms://org/m)" "$d"
	test_equal "$(hub_count GET)" 1
	test_equal "$(tw-fetch --offline ms://org/m)" "$d"
	test_equal "$(tw-fetch ms://org/m@v1)" "$d"
	test_exit 5 tw-fetch ms://org/none 2>err
	test_text err "(record not found)"
	test_exit 5 tw-fetch ms://org/m@gone 2>err
	behave "{\"status\": {\"/api/\": [403, {}, -1]}}"
	test_exit 4 tw-fetch ms://org/none 2>err
	test_text err "set MODELSCOPE_API_TOKEN"
	behave "{\"flip\": {\"w.bin\": 9}}"
	rm -rf cache
	test_exit 6 tw-fetch ms://org/m 2>err
	test_text err "w.bin: damaged"
'
test_case 'data sets of both hubs: rows by subset and split' '
	hub_start
	mkdir -p hub/ms/datasets/swift/self hub/hf/datasets/org/d/one hub/hf/datasets/org/d/two
	printf "{\"query\":\"who\"}\n{\"query\":\"you\"}\n" >hub/ms/datasets/swift/self/self_cognition.jsonl
	echo "{}" >hub/ms/datasets/swift/self/dataset_infos.json
	echo "# About" >hub/ms/datasets/swift/self/README.md
	tw-fetch -d ms://swift/self | cmp hub/ms/datasets/swift/self/self_cognition.jsonl -
	test_equal "$(tw-fetch -d ms://swift/self --slice 1:)" "{\"query\":\"you\"}"
	for s in one two; do for k in train test; do echo "{\"k\":\"$s $k\"}" >hub/hf/datasets/org/d/$s/$k-00000-of-00001.jsonl; done; done
	test_equal "$(tw-fetch -d hf://org/d --subset two --split test)" "{\"k\":\"two test\"}"
	test_equal "$(tw-fetch -d hf://org/d --subset one)" "{\"k\":\"one train\"}"
	test_equal "$(hub_count resolve)" 2
	test_equal "$(tw-fetch -d hf://datasets/org/d --subset one)" "{\"k\":\"one train\"}"
	test_exit 2 tw-fetch hf://datasets/org/d 2>err
	test_text err "is a data set: add --dataset"
	gzip hub/hf/datasets/org/d/one/train*
	test_equal "$(tw-fetch -d hf://org/d --subset one)" "{\"k\":\"one train\"}"
	printf PAR1 >hub/hf/datasets/org/d/two/x.parquet
	rm hub/hf/datasets/org/d/*/*.jsonl* 
	: >hub/log
	test_exit 1 tw-fetch -d hf://org/d 2>err
	test_text err "its rows are in two/x.parquet"
	test_equal "$(hub_count resolve)" 0
'
test_case 'a data set with many files is listed to its end' '
	hub_start
	mkdir -p hub/ms/datasets/org/d
	for i in $(seq 1 450); do echo "{\"i\":$i}" >hub/ms/datasets/org/d/$(printf %04d $i).jsonl; done
	cat hub/ms/datasets/org/d/* >want
	tw-fetch --jobs 8 -d ms://org/d | cmp want -
	test_equal "$(hub_count PageNumber)" 3
'
test_case 'a file of a URL: cached, asked for news, named by its digest' '
	hub_start
	printf "{\"a\":1}\n" >hub/web/r.jsonl
	test_equal "$(tw-fetch -d "$HUB/web/r.jsonl")" "{\"a\":1}"
	: >hub/log
	test_equal "$(tw-fetch -d "$HUB/web/r.jsonl")" "{\"a\":1}"
	test_equal "$(hub_count HEAD) $(hub_count GET)" "1 0"
	printf "{\"a\":2}\n" >hub/web/r.jsonl
	test_equal "$(tw-fetch -d "$HUB/web/r.jsonl")" "{\"a\":2}"
	test_equal "$(tw-fetch --offline -d "$HUB/web/r.jsonl")" "{\"a\":2}"
	sum=$(sha256sum <hub/web/r.jsonl | cut -c1-64)
	test_equal "$(tw-fetch -d "$HUB/web/r.jsonl#sha256=$sum")" "{\"a\":2}"
	: >hub/log
	test_equal "$(tw-fetch -d "$HUB/web/r.jsonl#sha256=$sum")" "{\"a\":2}"
	test_equal "$(hub_count web)" 0
	test_exit 6 tw-fetch -d "$HUB/web/r.jsonl#sha256=$(echo "$sum" | tr 0123456789abcdef 123456789abcdef0)" 2>err
	test_text err "damaged"
	test_exit 5 tw-fetch "$HUB/web/none" 2>err
	test_exit 5 tw-fetch --offline "$HUB/web/other" 2>err
	printf "{\"a\":3}\n" >hub/web/j.jsonl
	test_equal "$(tw-fetch -d "$HUB/jump/j.jsonl")" "{\"a\":3}"
	behave "{\"chunked\": true, \"noetag\": true}"
	test_equal "$(tw-fetch -d "$HUB/web/j.jsonl")" "{\"a\":3}"
'
test_case 'an archive of a URL, and a member of it' '
	hub_start
	mkdir m
	echo "{}" >m/config.json
	tar czf hub/web/m.tar.gz m
	d=$(tw-fetch "$HUB/web/m.tar.gz")
	cmp "$d/config.json" m/config.json
	cmp "$(tw-fetch "$HUB/web/m.tar.gz!m/config.json")" m/config.json
	sum=$(sha256sum <hub/web/m.tar.gz | cut -c1-64)
	cmp "$(tw-fetch "$HUB/web/m.tar.gz#sha256=$sum!m/config.json")" m/config.json
'
test_case 'TLS: SSL_CERT_FILE, HTTPS_PROXY, NO_PROXY' '
	command -v openssl >/dev/null || test_skip "no openssl"
	mkdir hub
	openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 \
		-addext subjectAltName=IP:127.0.0.1 -keyout key -out crt 2>/dev/null
	cat key crt >hub/cert.pem
	hub_start
	echo "{\"a\":1}" >hub/web/r.jsonl
	url=$(cat hub/tls)/web/r.jsonl
	test_exit 3 tw-fetch -d "$url" 2>err
	test_text err "has no certificate this machine trusts"
	export SSL_CERT_FILE="$PWD/crt"
	test_equal "$(tw-fetch -d "$url")" "{\"a\":1}"
	hub_file web/b.bin 2000000
	behave "{\"cut\": {\"b.bin\": 0.5}, \"norange\": true}"
	test_exit 3 tw-fetch "$(cat hub/tls)/web/b.bin" 2>err          # and not killed by SIGPIPE
	rm -rf cache
	HTTPS_PROXY=http://127.0.0.1:9 test_exit 3 tw-fetch -d "$url" 2>err
	HTTPS_PROXY=http://127.0.0.1:9 NO_PROXY=127.0.0.1 tw-fetch -d "$url" >out
	test_equal "$(cat out)" "{\"a\":1}"
'
test_done
