#!/bin/sh
# A state that an older tw-serve left goes on; tests/data/serve/state-v1.* is one of version 1, as its process
# was killed: a model after two steps, whose steps are in the journal alone, and a sample.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"

# Makes st/state.db of it. Its times are moved to now: it has not been idle.
old_state()
{
	command -v python3 >/dev/null || test_skip 'no python3'
	python3 -c 'import sqlite3' 2>/dev/null || test_skip 'no sqlite3 in python3'
	mkdir -p st
	python3 - "$DATA/serve/state-v1.sql" <<-'X'
	import sqlite3, sys, time
	d = sqlite3.connect("st/state.db")
	d.executescript(open(sys.argv[1]).read())
	now = time.time()
	d.execute("UPDATE session SET created = ?, seen = ?", (now, now))
	d.execute("UPDATE run SET created = ?, used = ?", (now, now))
	d.execute("UPDATE request SET created = ?, done = ?", (now, now))
	d.execute("UPDATE sampler SET created = ?", (now,))
	d.commit()
	assert d.execute("PRAGMA user_version").fetchone()[0] == 1
	X
}

test_case 'it is migrated: results are there, repeats are known, and the model goes on as if nothing had been' '
	old_state
	serve_start --state new
	ask "
m = create(session(), rank=2)
fb(m, 1, [1, 2, 3, 4, 5]); step(m, 2, 1e-2); fb(m, 3, [9, 8, 7, 6]); step(m, 4, 1e-2)
a = wait(fb(m, 5, [5, 6, 7])); b = wait(step(m, 6, 1e-2))
assert \"path\" in wait(save(m, 7, \"end\"))
json.dump([a, b], open(\"want\", \"w\"))
"
	serve_stop
	serve_start --state st
	ask "
k = json.load(open(os.environ[\"DATA\"] + \"/serve/state-v1.json\"))
m = k[\"m\"]
assert [wait(r) for r in k[\"ids\"]] == k[\"out\"] and wait(k[\"q\"]) == k[\"s\"]
assert fb(m, 1, [1, 2, 3, 4, 5]) == k[\"ids\"][0] and step(m, 4, 1e-2) == k[\"ids\"][3]
assert sample(k[\"sm\"], 0)[\"request_id\"] == k[\"q\"]
assert [wait(fb(m, 5, [5, 6, 7])), wait(step(m, 6, 1e-2))] == json.load(open(\"want\"))
assert \"path\" in wait(save(m, 7, \"end\"))
s = post(\"asample\", dict(sample_body(k[\"sm\"], 1), record_stability_info=True))
assert len(wait(s[\"request_id\"])[\"sequences\"]) == 1
"
	serve_stop
	test_equal $STATUS 0
	cmp new/checkpoints/*/adapter_model.safetensors st/checkpoints/*/adapter_model.safetensors
	version=$(python3 -c "
import sqlite3
print(sqlite3.connect(\"st/state.db\").execute(\"PRAGMA user_version\").fetchone()[0])")
	test_equal "$version" "$(sed -n "s/^#define TW_STORE_VERSION //p" "$TOP/lib/serve/store_schema.h")"
	serve_start --state st                  # and once more, as it is now
	ask "
k = json.load(open(os.environ[\"DATA\"] + \"/serve/state-v1.json\"))
assert \"metrics\" in wait(fb(k[\"m\"], 8, [5, 6, 7]))
"
'
test_case 'one of a newer version is refused in one line, and left as it is' '
	old_state
	python3 -c "
import sqlite3
d = sqlite3.connect(\"st/state.db\")
d.execute(\"PRAGMA user_version = 99\")
d.commit()"
	test_exit 1 tw-serve -m tiny --state st --listen 127.0.0.1:0 >out 2>err
	test_text err "is of version 99, made by a newer tw-serve"
	test_equal "$(grep -c . err)" 1
	test_equal "$(python3 -c "import sqlite3; d = sqlite3.connect(\"st/state.db\"); print(d.execute(\"PRAGMA user_version\").fetchone()[0], d.execute(\"SELECT count(*) FROM request\").fetchone()[0])")" "99 6"
'
test_done
