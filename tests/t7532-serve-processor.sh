#!/bin/sh
# Processors of Twinkle's own protocol by raw requests: every function, refusals, isolation, limits, paths.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"
. "$(dirname "$0")/hub.sh"

proc()
{
    ASK_S=300 ask "import serve_nproc; serve_nproc.$1"
}
test_case 'datasets: rows that are sent, slices, map, encode, one by one and by number' '
	serve_start
	proc "basics()"
	serve_stop
	test_equal $STATUS 0
'
test_case 'datasets: sources mixed, filtered, checked' '
	serve_start
	proc "mixing()"
'
test_case 'loaders: batches, shuffled, resumed, padded' '
	serve_start
	proc "loader()"
'
test_case 'lazy, iterable and packed datasets' '
	serve_start
	proc "kinds()"
'
test_case 'templates, preprocessors and rewards by the names of Twinkle' '
	serve_start
	proc "classes()"
'
test_case 'what is refused, and that it changes nothing' '
	serve_start
	proc "refusals()"
	proc "no_data()"
'
test_case 'tenants see only their own, twenty at most; a session takes its objects with it' '
	serve_start
	proc "isolation()"
'
test_case '--data: files below a folder and nowhere else; what is saved' '
	mkdir -p data/sub secret
	python3 -c "
import json, sys
sys.path.insert(0, \"$TOP/tests\")
rows = [dict(query=\"q%d {{NAME}}\" % i, response=\"I am {{NAME}} by {{AUTHOR}}, %d.\" % i) for i in range(4)]
open(\"data/rows.jsonl\", \"w\").write(\"\".join(json.dumps(r) + \"\n\" for r in rows))
"
	printf "a,b\n1,\"x,y\"\n" >data/sub/more.csv
	echo "{\"geheim\": 1}" >secret.jsonl
	cp secret.jsonl secret/secret.jsonl
	ln -s ../secret.jsonl data/link.jsonl
	ln -s ../secret data/linkdir
	printf "{\"a\":1}\n{\n" >data/bad.jsonl
	serve_start --data data --state st
	proc "files(\"$PWD/data\")"
	serve_stop
	test_equal $STATUS 0
	[ ! -e "$PWD/out" ] && [ ! -e data/out ]
'
test_case '--data: data sets of a hub that it names' '
	hub_start
	mkdir -p hub/ms/datasets/swift/self
	printf "{\"query\":\"who\"}\n{\"query\":\"you\"}\n" >hub/ms/datasets/swift/self/self_cognition.jsonl
	serve_start --data "ms://swift/*"
	proc "hub()"
	serve_stop
	test_exit 1 tw-serve -m tiny --listen 127.0.0.1:0 --data nowhere 2>err
	test_text err "neither a folder nor"
'
test_case 'a long call holds nobody up' '
	serve_start
	proc "big()"
'
test_case 'features are those of tw-preprocess and tw-encode' '
	mkdir data
	tw-fetch -d "$TOP/examples/data/identity.json" >data/identity.jsonl
	serve_start --data data
	proc "equal(\"$PWD/data\")"
	serve_stop
	test_equal $STATUS 0
'
test_case 'objects and their loops outlive kill -9' '
	serve_start --state st
	proc "outlive(0)"
	for n in 1 2; do
		serve_stop KILL
		serve_start --state st
		proc "outlive($n)"
	done
	serve_stop
	test_equal $STATUS 0
	serve_start --state st
	ask "
assert all(metric(n) >= 0 for n in [\"tw_optimizer_steps_total\"])"
	! grep -q "done again" serve.err
'
test_done
