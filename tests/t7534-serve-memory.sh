#!/bin/sh
# How much memory the server takes: --memory, --max-adapters and --prefix-cache against what there is.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"

test_case 'too little memory for one adapter: refused at the start, with the sizes and what to change' '
	test_exit 1 tw-serve -m tiny --listen 127.0.0.1:0 --memory 1 2>err
	test_text err "tw-serve: --max-rank: a pass over 1024 tokens takes"
	test_text err "more than the 1.0 MiB that are free: give a smaller one"
'
test_case 'little memory: the prompts that are kept and the adapters in memory are fewer, and all tenants go on' '
	serve_start --memory 150
	test_text serve.err "of prompts have room, not 65536 (--prefix-cache)"
	test_text serve.err "memory has room for 1 of 64 adapters of rank 64: more are swapped to disk"
	ask "
ms = [create(session(key=\"tml-%d\" % i), key=\"tml-%d\" % i) for i in range(3)]
for round in range(2):
    for i, m in enumerate(ms):
        r = wait(fb(m, 2 * round + 1, key=\"tml-%d\" % i), key=\"tml-%d\" % i)
        assert \"error\" not in r, r
        wait(step(m, 2 * round + 2, key=\"tml-%d\" % i), key=\"tml-%d\" % i)
s = get(\"overview\", key=\"tml-0\")[\"server\"]
assert s[\"resident\"] == 1 and s[\"swapped\"] == 2, s
"
	serve_stop
	rm serve.err
	serve_start --memory 150 --prefix-cache 0 --max-rank 8
	test_no_text serve.err "prefix-cache"
'
test_done
