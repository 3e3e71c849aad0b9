"""Supervised fine-tuning with twinkle_client: an adapter that says who it is, saved, resumed and asked.

    tw-serve -m tiny --state state &
    TWINKLE_SERVER_URL=http://127.0.0.1:8000 TWINKLE_SERVER_TOKEN=me python3 twinkle_sft.py [DATA.json]

The client sends conversations; the server's template makes tokens of them and decides what is learned. Half of
the training is done, saved, and gone on with in an adapter of another name, as after a crash. Needs: pip install
twinkle-kit.
"""
import json
import os
import sys

from peft import LoraConfig
from twinkle_client import init_twinkle_client
from twinkle_client.model import MultiLoraTransformersModel
from twinkle_client.sampler import vLLMSampler

BATCH, ACCUMULATE, STEPS = 8, 2, int(os.environ.get("STEPS", 24))


def prepare(model, name):
    model.add_adapter_to_model(name, LoraConfig(r=8, lora_alpha=32, target_modules="all-linear"),
                               gradient_accumulation_steps=ACCUMULATE)
    model.set_template("Template")
    model.set_processor("InputProcessor", padding_side="right")
    model.set_loss("CrossEntropyLoss")
    model.set_optimizer("Adam", lr=4e-3)
    model.set_lr_scheduler("CosineWarmupScheduler", num_warmup_steps=2, num_training_steps=STEPS)


def train(model, data, first, last):
    for step in range(first, last):
        for micro in range(ACCUMULATE):
            at = (step * ACCUMULATE + micro) * BATCH
            model.forward_backward(inputs=[data[(at + i) % len(data)] for i in range(BATCH)])
            model.clip_grad_and_step()
        told = model.calculate_metric(is_training=True).result
        print(f"step {step + 1:3d}  loss {told['loss']}  lr {told['learning rate(param group 1)']}", flush=True)


def says(sampler, uri=None):
    out = sampler.sample([{"messages": [{"role": "user", "content": "Who are you?"}]}],
                         {"max_tokens": 40, "temperature": 0.0}, adapter_uri=uri)
    return out[0].sequences[0].new_input_feature["messages"][-1]["content"]


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    rows = json.load(open(sys.argv[1] if len(sys.argv) > 1 else here + "/../data/identity.json"))
    data = []
    for row in rows:
        text = row["output"].replace("{{name}}", "Sparkle").replace("{{author}}", "the night shift")
        data.append({"messages": [{"role": "user", "content": row["instruction"]},
                                  {"role": "assistant", "content": text}]})
    client = init_twinkle_client()
    base = client.get_server_capabilities().supported_models[0].model_name
    model = MultiLoraTransformersModel(model_id=base)
    sampler = vLLMSampler(model_id=base)
    sampler.set_template("Template")
    print("before:", says(sampler))

    prepare(model, "first")
    train(model, data, 0, STEPS // 2)
    half = model.save("half", save_optimizer=True, consumed_train_samples=STEPS // 2 * BATCH * ACCUMULATE)
    print("saved", half.twinkle_path)

    prepare(model, "second")
    progress = model.resume_from_checkpoint(half.twinkle_path)
    print("resumed after", progress["cur_step"], "micro-batches,", progress["consumed_train_samples"], "samples")
    train(model, data, STEPS // 2, STEPS)

    print("after:", says(sampler, model.save("done", is_sampler=True).twinkle_path))
    for run in client.list_training_runs():
        print("run", run.training_run_id, [c.checkpoint_id for c in client.list_checkpoints(run.training_run_id)])
    client.close()


main()
