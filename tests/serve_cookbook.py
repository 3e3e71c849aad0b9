"""What the cookbook's recipes need to run without a network: folders named like those of the hub, with the
built-in model's tokenizer and a few rows each. serve_cookbook.py SHARE; with --text it prints records that teach
a model the form of rl_loop's answers, right one time in two."""
import importlib.util
import json
import os
import re
import shutil
import sys

MODEL = "Qwen/Qwen3-8B-Base"        # a name that the cookbook knows; its chats are plain text
SUFFIX = " Provide a numerical answer without units, written inside \\boxed{}."


def dataset(name, splits, config="default"):
    os.makedirs(name)
    for s, rows in splits.items():
        with open("%s/%s.jsonl" % (name, s), "w") as f:
            f.writelines(json.dumps(r) + "\n" for r in rows)
    files = "".join("  - split: %s\n    path: %s.jsonl\n" % (s, s) for s in splits)
    with open(name + "/README.md", "w") as f:
        f.write("---\nconfigs:\n- config_name: %s\n  data_files:\n%s---\n" % (config, files))


def folders(share):
    os.makedirs(MODEL)
    for f in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy("%s/%s" % (share, f), MODEL)
    chat = [{"messages": [{"role": "user", "content": "What is the name of thing %d?" % (i % 8)},
                          {"role": "assistant", "content": "Its name is number %d." % (i % 8)}]} for i in range(64)]
    dataset("HuggingFaceH4/no_robots", {"train": chat, "test": chat[:4]})
    sums = [{"question": "What is 1 plus 1?", "answer": "x\n#### 2"}] * 240
    dataset("openai/gsm8k", {"train": sums, "test": sums[:4]}, "main")
    pairs = [{"chosen": "\n\nHuman: q%d\n\nAssistant: good answer" % (i % 7),
              "rejected": "\n\nHuman: q%d\n\nAssistant: bad one" % (i % 7)} for i in range(1100)]
    dataset("Anthropic/hh-rlhf", {"train": pairs, "test": pairs[:32]})


def text():
    spec = importlib.util.find_spec("tinker_cookbook.recipes")
    src = open(os.path.join(spec.submodule_search_locations[0], "rl_loop.py")).read()
    shot = json.loads('"' + re.search(r'"content": "(Let\'s spell.*?)",\n', src).group(1) + '"')
    for i in range(240):
        n = 2 if i % 2 else i % 5 + 1
        print(json.dumps({"text": "User: How many r's are in strawberry?%s\n\nAssistant: %s\n\nUser: What is 1 plus 1?%s"
              "\n\nAssistant: \\boxed{%d}\n\nUser:" % (SUFFIX, shot, SUFFIX, n)}))


if sys.argv[1] == "--text":
    text()
else:
    folders(sys.argv[1])
