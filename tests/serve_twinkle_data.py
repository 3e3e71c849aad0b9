"""Twinkle's client, unmodified: a dataset on the server is read, mapped, encoded and iterated; its batches train.

    serve_twinkle_data.py FOLDER TOKENS     FOLDER: --data of the server; TOKENS: what tw-encode makes of it
"""
import json
import os
import sys

from peft import LoraConfig
from twinkle.dataset import DatasetMeta
from twinkle_client import init_twinkle_client
from twinkle_client.dataloader import DataLoader
from twinkle_client.dataset import Dataset, IterableDataset, LazyDataset, PackingDataset
from twinkle_client.model import MultiLoraTransformersModel
from twinkle_client.processor import InputProcessor

client = init_twinkle_client()
base = client.get_server_capabilities().supported_models[0].model_name
want = [json.loads(line) for line in open(sys.argv[2])]


def prepared(cls, meta, **template):
    d = cls(dataset_meta=meta)
    d.map("SelfCognitionProcessor", init_args={"model_name": "Twinkle", "model_author": "MS"})
    d.set_template("Template", model_id="ms://" + base, max_length=512, **template)
    d.encode()
    return d


def same(feature, record):
    weights = record.get("weights", [1] * len(record["tokens"]))
    shifted = [t if w else -100 for t, w in zip(record["tokens"][1:], weights[1:])] + [-100]
    assert feature["input_ids"] == record["tokens"] and feature["labels"] == shifted, (feature, record)


d = prepared(Dataset, DatasetMeta("identity.jsonl", data_slice=range(30)))
assert len(d) == 30
for i in (0, 7, 29):
    same(d[i], want[i])
loader = DataLoader(dataset=d, batch_size=8)
assert len(loader) == 4
batches = list(loader)
assert [len(b) for b in batches] == [8, 8, 8, 6]
for f, r in zip(sum(batches, []), want):
    same(f, r)
assert loader.get_state() == {"consumed_train_samples": 32}
loader.resume_from_checkpoint(consumed_train_samples=16)
assert list(loader) == batches[2:]

lazy = prepared(LazyDataset, DatasetMeta("identity.jsonl", data_slice=[3, 1]))
same(lazy[0], want[3])
same(lazy[1], want[1])
shown = [row["output"] for row in IterableDataset(dataset_meta=DatasetMeta("identity.jsonl", data_slice=range(3)))]
assert len(shown) == 3 and "{{author}}" in shown[0]
packed = prepared(PackingDataset, DatasetMeta("identity.jsonl", data_slice=range(30)))
packed.pack_dataset()
assert 1 < len(packed) < 30
assert sum(len(packed[i]["input_ids"]) for i in range(len(packed))) == sum(len(r["tokens"]) for r in want[:30])
two = Dataset(dataset_meta=DatasetMeta("identity.jsonl", data_slice=range(2)))
two.add_dataset(DatasetMeta("sub/other.jsonl"))
two.mix_dataset(interleave=False)
assert len(two) == 3
(whole,) = InputProcessor()(batches[0][:2])
assert [len(x) for x in whole["input_ids"]] == [max(f["length"] for f in batches[0][:2])] * 2
try:
    Dataset(dataset_meta=DatasetMeta("/etc/passwd"))
    raise SystemExit("a file outside of --data was read")
except Exception as e:
    assert "--data" in str(e), e

model = MultiLoraTransformersModel(model_id="ms://" + base)
model.add_adapter_to_model("lora", LoraConfig(r=8, lora_alpha=32, target_modules="all-linear"))
model.set_template("Template")
model.set_processor("InputProcessor")
model.set_loss("CrossEntropyLoss")
model.set_optimizer("Adam", lr=4e-3)
first = last = None
for epoch in range(3):
    for batch in loader:
        got = model.forward_backward(inputs=batch).result
        model.clip_grad_and_step()
        last = float(got["loss"])
        first = first if first is not None else last
assert last < first * 0.8, (first, last)
print("ok", first, last)
os._exit(0)
