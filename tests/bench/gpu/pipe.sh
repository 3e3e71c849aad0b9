#!/bin/bash
# pipe.sh [FOLDER] - examples/grpo.sh on whatever device there is, and where the time of its pipe went: trying, judging,
# training, publishing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
examples=$here/../../../examples
export TW_BUILD=$(cd "${TW_BUILD:-$here/../../../build}" && pwd)
work=${1:-$(mktemp -d)}
mkdir -p "$work"
OUT=$work bash "$examples/grpo.sh" 2>"$work/err" | grep '%'
python3 - "$work" <<'P'
import json, re, sys
text = open(sys.argv[1] + "/err").read()
reward = float(re.search(r"scored, ([0-9.e-]+) s of work", text)[1])
wait, train, publish = map(float, re.search(r"waited ([0-9.]+) s for rollouts, trained ([0-9.]+) s, published ([0-9.]+) s",
        text).groups())
s = [x for x in map(json.loads, open(sys.argv[1] + "/run/metrics.jsonl")) if x["event"] == "step"]
tokens = sum(x["completion_length"] for x in s) * 64
all = wait + train + publish
print(f"{len(s)} steps in {all:.1f} s: rollout {wait - reward:.2f} s ({100 * (wait - reward) / all:.0f} %), "
        f"reward {reward:.2f} s, train {train:.2f} s ({100 * train / all:.0f} %), publish {publish:.2f} s; "
        f"{tokens / all:.0f} sampled tokens a second")
P
