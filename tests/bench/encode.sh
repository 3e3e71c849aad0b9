#!/bin/sh
# Template, tokenizer and loss mask, conversations a second of processor time, one thread. TW_TOK: a
# folder with tokenizer and template, TW_CHAT: a JSONL file of chat records; without them the cut
# tokenizer of tests/data, which only shows that the benchmark runs. TW_PEER: a Python with
# transformers: its apply_chat_template (no mask, then with mask) is measured in turn.
TOP=$(cd "$(dirname "$0")/../.." && pwd)
tmp=$(mktemp) || exit 1
trap 'rm -f "$tmp"' EXIT
if [ -z "$TW_TOK" ] || [ -z "$TW_CHAT" ]; then
	TW_TOK=$TOP/tests/data/tokenizers/qwen3 TW_CHAT=$tmp TW_PEER=
	for i in 1 2 3 4 5 6 7 8; do
		sed 's/.*/{"messages":[{"role":"user","content":"Why?"},{"role":"assistant","content":&}]}/' \
		    "$TOP/tests/data/tokenizers/corpus.jsonl"
	done >"$tmp"
fi
for i in 1 2 3; do
	"$TW_BUILD/bench/encode" "$TW_TOK" "$TW_CHAT" 5 || exit 1
	[ -z "$TW_PEER" ] || TOKENIZERS_PARALLELISM=false "$TW_PEER" - "$TW_TOK" "$TW_CHAT" <<'EOF'
import json, sys, time
from transformers import PreTrainedTokenizerFast
tok = PreTrainedTokenizerFast.from_pretrained(sys.argv[1])
chats = [json.loads(line)["messages"] for line in open(sys.argv[2])]
reply = '{%- elif message.role == "assistant" %}'
end, tool = "{{- '<|im_end|>\\n' }}", "\n    {%- elif message.role == \"tool\" %}"
gen = tok.chat_template.replace(reply, reply + "{% generation %}").replace(
    end + tool, end + "{% endgeneration %}" + tool)
assert gen.count("generation %}") == 2
for mask in False, True:
    for _ in range(3):
        t = time.process_time()
        for c in chats:
            tok.apply_chat_template(c, tokenize=True, return_dict=True,
                                    return_assistant_tokens_mask=mask,
                                    chat_template=gen if mask else tok.chat_template)
        t = time.process_time() - t
    print(f"peer: {len(chats) / t:.0f} conversations/s, mask {mask}")
EOF
done
