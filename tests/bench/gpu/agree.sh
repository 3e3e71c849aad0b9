#!/bin/sh
# agree.sh [BUILD] - how far the sampler's log-probabilities are from those that scoring (the trainer's
# forward pass) gives the same tokens: `tiny` at temperature 1, in f32, in bf16, and in bf16 with --exact. DEVICE by
# environment.
here=$(cd "$(dirname "$0")" && pwd)
b=${1:-$here/../../../build}
export PATH="$b/bin:$PATH"
w=$(mktemp -d)
awk -v seed=5 -v rows=300 -f "$here/../../../examples/tiny/chat.awk" |
	sed 's/,{"role":"assistant".*/]}/' >"$w/ask.jsonl"
for d in f32 bf16 "bf16 --exact"; do
	tw-sample -q -m tiny --device "${DEVICE:-cuda}" --dtype $d --temperature 1 --max-tokens 64 --seed 3 "$w/ask.jsonl" >"$w/s"
	tw-sample -q -m tiny --device "${DEVICE:-cuda}" --dtype $d --score "$w/s" >"$w/t"
	python3 - "$d" "$w/s" "$w/t" <<'P'
import json, sys
off = []
for s, t in zip(open(sys.argv[2]), open(sys.argv[3])):
    a = json.loads(s)["completion"]["logprobs"]
    b = json.loads(t)["logprobs"]
    off += [abs(x - y) for x, y in zip(a, b[len(b) - len(a):])]
off.sort()
n = len(off)
print(f"{sys.argv[1]}: {n} tokens, mean {sum(off) / n:.1e}, 99 % {off[n * 99 // 100]:.1e}, largest {off[-1]:.1e}")
P
done
rm -rf "$w"
