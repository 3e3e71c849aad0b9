#!/bin/sh
# tw-fetch --push: a folder becomes a commit on either hub, which a server on loopback plays.
. "$(dirname "$0")/lib.sh"
. "$TOP/tests/hub.sh"

# an adapter: two small files, one in a folder, one large
adapter()
{
    mkdir -p run/sub
    echo "{\"r\": 8}" >run/adapter_config.json
    seq 1 100000 | head -c 300000 >run/adapter_model.safetensors
    seq 1 9 >run/sub/notes.txt
    : >run/empty
}
commits()
{
    wc -l <hub/commits | tr -d " "
}
export HF_TOKEN=hf_geheim MODELSCOPE_API_TOKEN=ms_geheim

test_case 'Hugging Face: a repository is made, private, with all files; large ones by the store' '
	hub_start
	adapter
	behave "{\"token\": \"hf_geheim\"}"
	test_equal "$(tw-fetch --push run hf://me/lora 2>err)" "$HUB/me/lora"
	diff -r run hub/hf/models/me/lora
	test_equal "$(cat hub/private)" true
	test_equal "$(commits)" 1
	test_text hub/commits "Upload with Twinkle"
	test_equal "$(hub_count "\"method\": \"PUT\"")" 1
	test_equal "$(ls hub/lfs)" "$(sha256sum <run/adapter_model.safetensors | cut -c1-64)"
	test_text hub/log "/lfs/verify"
	rm -rf cache
	diff -r run "$(tw-fetch hf://me/lora)"
'
test_case 'what the hub has is not sent again; nothing new is no commit' '
	hub_start
	adapter
	tw-fetch --push run hf://me/lora >/dev/null
	: >hub/log
	tw-fetch --push run hf://me/lora >/dev/null
	test_equal "$(commits) $(hub_count POST) $(hub_count PUT)" "1 0 0"
	echo "{\"r\": 9}" >run/adapter_config.json
	cp run/adapter_model.safetensors run/again.safetensors
	tw-fetch --message "second words" --push run hf://me/lora >/dev/null
	diff -r run hub/hf/models/me/lora
	test_equal "$(commits) $(hub_count PUT)" "2 0"
	test_text hub/commits "second words"
	tail -n 1 hub/commits | grep -q "\"paths\": ..adapter_config.json\", \"again.safetensors\"\]"
'
test_case 'a large file in parts, over connections that break' '
	hub_start
	adapter
	behave "{\"multipart\": 70000, \"cutput\": 2, \"token\": \"hf_geheim\"}"
	tw-fetch --push run hf://me/lora >/dev/null
	diff -r run hub/hf/models/me/lora
	test_equal "$(grep -c "PUT.*\"status\": 200" hub/log)" 5
	test_text hub/log "/lfs/join"
'
test_case 'the token goes to the hub alone and is never shown' '
	hub_start
	adapter
	behave "{\"token\": \"hf_geheim\"}"
	tw-fetch -v --push run hf://me/lora >out 2>err
	test_no_text err geheim
	test_no_text err signature
	test_equal "$(grep "\"server\": \"cdn\"" hub/log | grep -v "\"auth\": null" | wc -l | tr -d " ")" 0
	test_equal "$(grep "\"server\": \"hub\"" hub/log | grep -vc "Bearer hf_geheim")" 0
	behave "{\"status\": {\"/commit/\": [400, {}, -1]}}"
	echo new >run/new
	test_exit 1 tw-fetch -v --push run hf://me/lora 2>err   # the hub repeats the token in what it says
	test_text err "answers with status 400"
	test_no_text err geheim
'
test_case 'refusals are told apart, and commit nothing' '
	hub_start
	adapter
	(
		unset HF_TOKEN
		test_exit 4 tw-fetch --push run hf://me/lora 2>a
	)
	test_text a "needs a token that may write: set HF_TOKEN"
	behave "{\"token\": \"other\"}"
	test_exit 4 tw-fetch --push run hf://me/lora 2>b
	test_text b "HF_TOKEN"
	behave "{\"readonly\": true}"
	test_exit 4 tw-fetch --push run hf://me/lora 2>c
	test_text c "may not write there (only to be read)"
	behave "{\"status\": {\"objects/batch\": [500, {}, -1]}}"
	test_exit 3 tw-fetch --push run hf://me/lora 2>d
	test_text d "status 500"
	HF_ENDPOINT=http://127.0.0.1:9 test_exit 3 tw-fetch --push run hf://me/lora 2>e
	behave "{}"
	test_exit 5 tw-fetch --push run hf://me/lora@v2 2>f
	test_text f "branch \"v2\""
	[ ! -e hub/commits ]
	behave "{\"status\": {\"/commit/\": [429, {\"Retry-After\": \"1\"}, 1]}}"
	tw-fetch --push run hf://me/lora >/dev/null
	test_equal "$(commits)" 1
'
test_case 'only plain files of a folder that has some' '
	hub_start
	mkdir run
	test_exit 1 tw-fetch --push run hf://me/lora 2>err
	test_text err "holds no files"
	test_exit 1 tw-fetch --push none hf://me/lora 2>err
	adapter
	echo x >run/.hidden
	ln -s /etc/passwd run/link
	test_exit 1 tw-fetch --push run hf://me/lora 2>err
	test_text err "run/link: is a link"
	rm run/link
	tw-fetch --push run hf://me/lora >/dev/null
	[ ! -e hub/hf/models/me/lora/.hidden ]
	test_exit 2 tw-fetch --push run elsewhere 2>err
	test_exit 2 tw-fetch --push run hf://a/b hf://c/d 2>err
	test_exit 2 tw-fetch --push run --dataset hf://a/b 2>err
	test_exit 2 tw-fetch --public hf://a/b 2>err
	test_exit 1 tw-fetch --push run hf://a/../b 2>err
'
test_case 'ModelScope: made, updated, its token, its refusals' '
	hub_start
	adapter
	test_equal "$(tw-fetch --public --push run ms://me/lora 2>err)" "$HUB/models/me/lora"
	test_equal "$(cat hub/private)" false
	test_text hub/ms/models/me/lora/configuration.json pytorch
	cp hub/ms/models/me/lora/configuration.json run/
	diff -r run hub/ms/models/me/lora
	test_text hub/log "m_session_id=ms_geheim"
	test_equal "$(grep "\"server\": \"cdn\"" hub/log | grep -c geheim)" 0
	: >hub/log
	tw-fetch --push run ms://me/lora >/dev/null
	test_equal "$(commits) $(hub_count POST)" "1 0"
	echo "{\"r\": 9}" >run/adapter_config.json
	tw-fetch --push run ms://me/lora >/dev/null
	diff -r run hub/ms/models/me/lora
	test_equal "$(commits) $(hub_count PUT)" "2 0"
	echo more >run/more
	behave "{\"readonly\": true}"
	test_exit 4 tw-fetch --push run ms://me/lora 2>err
	test_text err "only to be read"
	test_no_text err geheim
	behave "{\"cutput\": 1}"
	echo x >>run/adapter_model.safetensors
	tw-fetch --push run ms://me/lora >/dev/null
	diff -r run hub/ms/models/me/lora
'
test_done
