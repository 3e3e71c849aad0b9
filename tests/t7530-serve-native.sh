#!/bin/sh
# Twinkle's native API, request by request: gateway, training, sampling; refusals, tenants apart, restarts.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"
. "$(dirname "$0")/hub.sh"

native()
{
    ask "from native_client import *
$1"
}
test_case 'the gateway: what there is, in the shapes that the client reads' '
	serve_start --state st --name Org/Model
	native "
call_ = lambda path, **h: call(\"GET\", \"/api/v1/twinkle/\" + path, key=None, headers=h)
assert call_(\"healthz\").json == {\"status\": \"ok\"}
assert call_(\"capacity_info\").status == 401
assert call_(\"capacity_info\", Authorization=\"Bearer k\").status == 400           # no x-request-id
assert call_(\"capacity_info\", **{\"Twinkle-Authorization\": \"k\", \"x-request-id\": \"r\"}).status == 200
c = Native(base=\"Org/Model\")
assert c.sid.startswith(\"session_\") and len(c.sid) == 40
assert c.ok(\"POST\", \"twinkle/session_heartbeat\", {\"session_id\": c.sid}) == {}
assert c.no(404, \"POST\", \"twinkle/session_heartbeat\", {\"session_id\": \"session_x\"}) == \"Unknown session\"
assert c.ok(\"GET\", \"twinkle/healthz/deep\")[\"healthy\"] is True
assert c.ok(\"GET\", \"twinkle/get_server_capabilities\") == {\"supported_models\": [{\"model_name\": \"Org/Model\"}]}
assert c.ok(\"GET\", \"model/Org/Model/healthz\")[\"healthy\"] is True
assert c.ok(\"POST\", \"model/Org/Model/twinkle/create\", {}) == {\"status\": \"ok\"}
c.no(404, \"POST\", \"model/Org/Other/twinkle/create\", {})
c.no(404, \"POST\", \"model/Org/Model/twinkle/nosuch\", {})
a = c.adapter()
cap = c.ok(\"GET\", \"twinkle/capacity_info\")
assert cap[\"used_loras\"] == 1 and cap[\"free_loras\"] == cap[\"max_loras\"] - 1, cap
got = a.ok(\"save\", name=\"step 1\", save_optimizer=True)
assert got[\"twinkle_path\"] == \"twinkle://%s/weights/step_1\" % a.run and os.path.isdir(got[\"checkpoint_dir\"])
t = post(\"create_session\", {\"type\": \"create_session\"})[\"session_id\"]
m = wait(post(\"create_model\", {\"session_id\": t, \"model_seq_id\": 0, \"base_model\": \"Org/Model\", \"lora_config\": {\"rank\": 2}})[\"request_id\"])[\"model_id\"]
runs = c.ok(\"GET\", \"twinkle/training_runs?limit=1&offset=1&all_users=true\")
assert runs[\"cursor\"] == {\"limit\": 1, \"offset\": 1, \"total_count\": 2}, runs[\"cursor\"]
r, = runs[\"training_runs\"]
assert r[\"training_run_id\"] == a.run and r[\"is_lora\"] and r[\"lora_rank\"] == 4 and r[\"base_model\"] == \"Org/Model\", r
assert r[\"last_checkpoint\"][\"twinkle_path\"] == got[\"twinkle_path\"] and r[\"user_metadata\"] == {\"adapter_name\": \"a\"}
assert c.ok(\"GET\", \"twinkle/training_runs/\" + m)[\"lora_rank\"] == 2
assert get(\"training_runs/\" + a.run)[\"last_checkpoint\"][\"tinker_path\"] == \"tinker\" + got[\"twinkle_path\"][7:]
k, = c.ok(\"GET\", \"twinkle/training_runs/%s/checkpoints\" % a.run)[\"checkpoints\"]
assert (k[\"checkpoint_id\"], k[\"checkpoint_type\"], k[\"public\"]) == (\"weights/step_1\", \"training\", False) and k[\"size_bytes\"] > 1000, k
i = c.ok(\"POST\", \"twinkle/weights_info\", {\"twinkle_path\": got[\"twinkle_path\"]})
assert (i[\"training_run_id\"], i[\"lora_rank\"], i[\"is_lora\"]) == (a.run, 4, True), i
p = c.ok(\"GET\", \"twinkle/checkpoint_path/%s/weights/step_1\" % a.run)
assert p[\"twinkle_path\"] == got[\"twinkle_path\"] and os.path.isfile(p[\"path\"] + \"/adapter_model.safetensors\"), p
c.no(400, \"GET\", \"twinkle/checkpoint_path/%s/weights/%%2e%%2e\" % a.run)
c.no(400, \"DELETE\", \"twinkle/training_runs/%s/checkpoints/..%%2f..%%2fx/y\" % a.run)
c.no(404, \"GET\", \"twinkle/checkpoint_path/%s/weights/other\" % a.run)
c.no(404, \"GET\", \"twinkle/training_runs/nosuch/checkpoints\")
c.no(404, \"POST\", \"twinkle/weights_info\", {\"twinkle_path\": \"twinkle://x/weights/y\"})
assert c.ok(\"GET\", \"twinkle/status\")[\"resources\"][\"models\"] == 2
# Another tenant sees none of it.
o = Native(\"tml-other\", base=\"Org/Model\")
assert o.ok(\"GET\", \"twinkle/training_runs\")[\"cursor\"][\"total_count\"] == 0
for path in (\"training_runs/\" + a.run, \"training_runs/%s/checkpoints\" % a.run, \"checkpoint_path/%s/weights/step_1\" % a.run):
    o.no(404, \"GET\", \"twinkle/\" + path)
o.no(404, \"DELETE\", \"twinkle/training_runs/%s/checkpoints/weights/step_1\" % a.run)
o.no(404, \"POST\", \"twinkle/weights_info\", {\"twinkle_path\": got[\"twinkle_path\"]})
o.no(404, \"POST\", \"twinkle/session_heartbeat\", {\"session_id\": c.sid})
o.sid = c.sid
o.no(404, \"POST\", \"model/Org/Model/twinkle/step\", {\"adapter_name\": \"a\"})
d = c.ok(\"DELETE\", \"twinkle/training_runs/%s/checkpoints/weights/step_1\" % a.run)
assert d[\"success\"] is True and \"step_1\" in d[\"message\"] and not os.path.exists(p[\"path\"]), d
c.no(404, \"DELETE\", \"twinkle/training_runs/%s/checkpoints/weights/step_1\" % a.run)
"
'
test_case 'five steps are those of tw-train: the same bytes' '
	command -v python3 >/dev/null || test_skip "no python3"
	python3 -c "
import json
for i in range(10):
    t = [(i * 31 + k * 7 + k * k) % 1500 + 3 for k in range(5 + i * 3 % 17)]
    print(json.dumps({\"tokens\": t, \"weights\": [0.0] + [float(k > 2) for k in range(1, len(t))]}))
" >data.jsonl
	for scale in sum token; do
		tw-train -m tiny -o $scale --lora r=8,alpha=32 --seed 42 --batch 2 --shuffle off --loss-scale $scale \
		    --optimizer adamw,beta1=0.9,beta2=0.95,eps=1e-12 --weight-decay 0.02 --clip $([ $scale = sum ] && echo 0 || echo 1) \
		    --lr 1e-3 --steps 5 --device cpu --dtype f32 data.jsonl
	done
	serve_start --state st
	native "
rows = [feature(json.loads(l)[\"tokens\"], 3) for l in open(\"data.jsonl\")]
c = Native()
for scale in (\"sum\", \"token\"):
    a = c.adapter(scale, rank=8, alpha=32)
    a.adamw(1e-3, betas=[0.9, 0.95], eps=1e-12, weight_decay=0.02)
    a.ok(\"set_loss\", loss_cls=\"CrossEntropyLoss\", reduction={\"sum\": \"sum\", \"token\": \"mean\"}[scale])
    steps = [r for r in map(json.loads, open(scale + \"/metrics.jsonl\")) if r[\"event\"] == \"step\"]
    for s in range(5):
        o = a.fb(rows[2 * s:2 * s + 2])
        assert abs(o[\"loss\"] - steps[s][\"loss\"]) < 1e-9, (scale, s, o[\"loss\"], steps[s])
        for verb in [\"step\", \"zero_grad\", \"lr_step\"] if scale == \"sum\" else [\"clip_grad_and_step\"]:
            assert a.ok(verb) is None
    open(scale + \".dir\", \"w\").write(a.ok(\"save\", name=\"ck\", save_optimizer=True)[\"checkpoint_dir\"])
"
	for scale in sum token; do
		cmp $scale/latest/adapter_model.safetensors "$(cat $scale.dir)/adapter_model.safetensors"
		cmp $scale/latest/trainer/optimizer.safetensors "$(cat $scale.dir)/trainer/optimizer.safetensors"
	done
'
test_case 'micro-batches, divided by their tokens, make the step of the whole batch' '
	serve_start --state st
	native "
rows = [feature([(i * 31 + k * 7 + k * k) % 1500 + 3 for k in range(6 + 5 * i)], 2) for i in range(4)]
c = Native()
def run(name, parts, every, verbs, mean=False):
    a = c.adapter(name, every=every)
    a.ok(\"set_optimizer\", optimizer_cls=\"SGD\", lr=0.5, weight_decay=0)
    if mean:
        a.ok(\"set_loss\", loss_cls=\"CrossEntropyLoss\")
    for p in parts:
        a.fb(p)
        got = [a.ok(v) for v in verbs]
    return a.ok(\"get_state_dict\")[\"result\"], got
def flat(d):
    return [x for k in sorted(d) for r in d[k] for x in r]
whole, _ = run(\"whole\", [rows], 1, [\"clip_grad_and_step\"])
parts, _ = run(\"parts\", [[r] for r in rows], 4, [\"clip_grad_and_step\"])
apart, got = run(\"apart\", [[r] for r in rows], 4, [\"clip_grad_norm\", \"step\", \"zero_grad\", \"lr_step\"])
mean, _ = run(\"mean\", [rows], 1, [\"clip_grad_and_step\"], True)
assert float(got[0][\"result\"]) > 0, got
for name, x in ((\"parts\", parts), (\"apart\", apart), (\"mean\", mean)):
    d = max(abs(a - b) for a, b in zip(flat(whole), flat(x)))
    assert d < 1e-6, (name, d)
fresh, got = run(\"fresh\", [rows[:1]], 2, [\"clip_grad_norm\", \"step\"])
assert got[0] == {\"result\": \"None\"} and max(map(abs, [x for k in fresh if \"lora_B\" in k for r in fresh[k] for x in r])) == 0
"
'
test_case 'steps of tenants that meet are one update, and each gets what it gets alone' '
	serve_start --state st
	native "
row = lambda i, s: [feature([(i * 31 + s * 17 + k * 7 + k * k) % 1500 + 3 for k in range(12 + i)], 2)]
def train(i, name, steps=12):
    c = Native(key=\"tml-%s\" % name)
    a = c.adapter(\"a\", rank=4)
    if i == 3:
        a.ok(\"set_optimizer\", optimizer_cls=\"SGD\", lr=0.1, weight_decay=0)
    else:
        a.adamw(1e-3 * (i + 1), weight_decay=0.01 * i)
        a.ok(\"set_lr_scheduler\", scheduler_cls=\"LinearLR\")
    for s in range(steps):
        a.fb(row(i, s))
        for verb in (\"clip_grad_and_step\",) if i % 2 else (\"step\", \"zero_grad\", \"lr_step\"):
            a.ok(verb)
    return a.ok(\"get_state_dict\")[\"result\"]
alone = [train(i, \"one%d\" % i) for i in range(6)]
passes = lambda: (metric(\"tw_optimizer_steps_total\"), metric(\"tw_optimizer_passes_total\"))
assert passes() == (72, 72), passes()
def meet(n):
    with concurrent.futures.ThreadPoolExecutor(6) as ex:
        assert list(ex.map(lambda i: train(i, \"all%d-%d\" % (i, n)), range(6))) == alone
    steps, one = passes()
    return one < steps
assert any(meet(n) for n in range(20))
"
'
test_case 'forward, calculate_loss and backward are forward_backward; forward_only scores' '
	serve_start --state st
	native "
rows = [feature([5, 6, 7, 8, 9, 10], 2), feature([11, 12, 13, 14], 2)]
c = Native()
a, b = c.adapter(\"a\"), c.adapter(\"b\")
for x in (a, b):
    x.adamw(1e-2)
assert \"forward comes first\" in a.no(\"calculate_loss\")
whole = a.fb(rows)
f = b.ok(\"forward\", inputs=rows)[\"result\"]
assert f[\"logps\"] == whole[\"logps\"] and \"loss\" not in f and len(f[\"logps\"]) == 2 and len(f[\"logps\"][1]) == 6
assert f[\"logps\"][1][3:] == [0.0] * 3 and f[\"logps\"][0][0] == 0.0 and f[\"logps\"][0][1] < 0
assert b.ok(\"calculate_loss\")[\"result\"] == whole[\"loss\"]
assert b.ok(\"backward\") is None
assert a.ok(\"clip_grad_norm\") == b.ok(\"clip_grad_norm\")
for x in (a, b):
    x.ok(\"step\")
assert a.ok(\"get_state_dict\") == b.ok(\"get_state_dict\")
o = a.ok(\"forward_only\", inputs=rows)[\"result\"]
base = a.ok(\"forward_only\", inputs=rows, disable_lora=True)[\"result\"]
assert base[\"logps\"] == whole[\"logps\"] and o[\"logps\"] != base[\"logps\"]
hot = a.ok(\"forward_only\", inputs=rows, temperature=2.0)[\"result\"]
assert hot[\"logps\"] != o[\"logps\"]
assert \"forward_only keeps nothing\" in a.no(\"backward\")
a.ok(\"calculate_loss\")
ev, tr = a.metric(is_training=False), a.metric()
assert abs(float(ev[\"loss\"]) + sum(map(sum, o[\"logps\"])) / 6) > 0 and float(tr[\"loss\"]) > 0, (ev, tr)
assert a.metric()[\"loss\"] == \"0.0000\"
padded = {\"input_ids\": [[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 0, 0]], \"labels\": [rows[0][\"labels\"], rows[1][\"labels\"] + [-100, -100]],
          \"attention_mask\": [[1] * 6, [1] * 4 + [0] * 2]}
packed = {\"input_ids\": [5, 6, 7, 8, 9, 10, 11, 12, 13, 14], \"labels\": rows[0][\"labels\"] + rows[1][\"labels\"], \"position_ids\": [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]}
assert a.ok(\"forward_only\", inputs=padded)[\"result\"] == a.ok(\"forward_only\", inputs=[packed])[\"result\"] == o
"
'
test_case 'what is not had is refused by its name' '
	serve_start --state st --max-rank 16
	native "
c = Native()
def add(conf, says, status=400, **kw):
    got = c.no(status, \"POST\", \"model/tiny/twinkle/add_adapter_to_model\", dict({\"adapter_name\": \"x\", \"config\": conf and json.dumps(conf)}, **kw))
    assert says in got, (says, got)
ok = {\"r\": 4, \"lora_alpha\": 8, \"target_modules\": [\"q_proj\", \"v_proj\"]}
add(None, \"config is null\")
add(dict(ok, use_dora=True), \"use_dora\")
add(dict(ok, rank_pattern={\"q_proj\": 2}), \"rank_pattern\")
add(dict(ok, bias=\"all\"), \"bias\")
add(dict(ok, nosuch=1), \"nosuch\")
add(dict(ok, r=17), \"17\")
add(dict(ok, r=0), \"r must be positive\")
add(dict(ok, init_lora_weights=\"pissa\"), \"init_lora_weights\")
add({\"r\": 4}, \"target_modules\")
add(ok, \"save_dir\", save_dir=\"/tmp\")
for name in (\"../x\", \"a/b\", \"~a\", \".a\", \"a\\x00b\", \"\", \"a..b\"):
    c.no(400, \"POST\", \"model/tiny/twinkle/add_adapter_to_model\", {\"adapter_name\": name, \"config\": json.dumps(ok)})
got = c.ok(\"POST\", \"model/tiny/twinkle/add_adapter_to_model\", {\"adapter_name\": \"q\", \"config\": json.dumps(dict(ok, peft_type=\"LORA\",
    task_type=\"CAUSAL_LM\", use_rslora=True, lora_dropout=0.1, bias=\"none\", modules_to_save=None, rank_pattern={}, inference_mode=False, _TWINKLE_TYPE_=\"LoraConfig\"))})
q = Adapter(c, \"q\")
q.adamw(1e-2)
q.ok(\"forward_backward\", inputs=[feature([5, 6, 7, 8])])
q.ok(\"clip_grad_and_step\")
conf = json.load(open(q.ok(\"save\", name=\"s\")[\"checkpoint_dir\"] + \"/adapter_config.json\"))
assert (conf[\"r\"], conf[\"lora_alpha\"], conf[\"use_rslora\"], conf[\"lora_dropout\"], sorted(conf[\"target_modules\"])) == (4, 8, True, 0.1, [\"q_proj\", \"v_proj\"]), conf
assert \"already\" in c.no(400, \"POST\", \"model/tiny/twinkle/add_adapter_to_model\", {\"adapter_name\": \"q\", \"config\": json.dumps(ok)})
a = c.adapter()
for verb, says, kw in ((\"set_loss\", \"GRPOLoss\", {\"loss_cls\": \"GKDLoss\"}), (\"set_loss\", \"gamma\", {\"loss_cls\": \"GRPOLoss\", \"gamma\": 1}),
        (\"set_loss\", \"entropy_coef\", {\"loss_cls\": \"GRPOLoss\", \"entropy_coef\": 0.1}), (\"set_loss\", \"epsilon\", {\"loss_cls\": \"GRPOLoss\", \"epsilon\": 7}),
        (\"set_optimizer\", \"AdamW\", {\"optimizer_cls\": \"Lion\"}), (\"set_optimizer\", \"amsgrad\", {\"optimizer_cls\": \"AdamW\", \"amsgrad\": True}),
        (\"set_optimizer\", \"lr\", {\"optimizer_cls\": \"AdamW\", \"lr\": -1}), (\"set_lr_scheduler\", \"set_optimizer\", {\"scheduler_cls\": \"LinearLR\"}),
        (\"set_template\", \"Template\", {\"template_cls\": \"NoSuch\"}), (\"set_template\", \"truncation\", {\"template_cls\": \"Template\", \"truncation_strategy\": \"cut\"}),
        (\"set_processor\", \"InputProcessor\", {\"processor_cls\": \"X\"}), (\"add_metric\", \"LossMetric\", {\"metric_cls\": \"X\"}),
        (\"apply_patch\", \"runs no code\", {\"patch_cls\": \"MyPatch\"}), (\"clip_grad_and_step\", \"set_optimizer\", {}), (\"load\", \"twinkle://\", {\"name\": \"/etc\"}),
        (\"load\", \"no such checkpoint\", {\"name\": \"twinkle://x/weights/y\"}), (\"forward_backward\", \"inputs\", {}),
        (\"forward_backward\", \"labels\", {\"inputs\": [{\"input_ids\": [5, 6]}]}), (\"forward_backward\", \"a token\", {\"inputs\": [feature([5, 10 ** 9])]}),
        (\"forward_backward\", \"pixel_values\", {\"inputs\": [dict(feature([5, 6]), pixel_values=[1.0])]}), (\"forward_backward\", \"nosuch\", {\"inputs\": [feature([5, 6])], \"nosuch\": 1}),
        (\"forward_backward\", \"temperature\", {\"inputs\": [feature([5, 6])], \"temperature\": 0}), (\"forward\", \"return_logits\", {\"inputs\": [feature([5, 6])], \"return_logits\": True}),
        (\"forward_backward\", \"images\", {\"inputs\": [dict(chat(\"a\", \"b\"), images=[\"x\"])]}), (\"save\", \"merge_lora\", {\"name\": \"x\", \"merge_lora\": True})):
    got = a.no(verb, **kw)
    assert says in got, (verb, says, got)
assert \"set_optimizer\" in a.no(\"step\")
a.adamw()
for s, says in ((\"CosineWarmupScheduler\", \"num_warmup_steps\"), (\"NoSuch\", \"StepLR\"), (\"StepLR\", \"step_size\")):
    assert says in a.no(\"set_lr_scheduler\", scheduler_cls=s)
assert \"norm_type\" in a.no(\"clip_grad_norm\", norm_type=1)
a.no(\"step\", 404, adapter_name=\"nosuch\")
assert a.ok(\"apply_patch\", patch_cls=\"MegatronPeft\") is None
c.sid = None
assert \"Session\" in a.no(\"step\")
"
'
test_case 'losses of rewards and of preferences, and what calculate_metric tells' '
	serve_start --state st
	native "
import math
c = Native()
rows = [feature([5, 6, 7, 8, 9, 10], 3), feature([11, 12, 13, 14, 15], 2)]
a = c.adapter(\"a\")
a.adamw(5e-2)
a.ok(\"set_loss\", loss_cls=\"GRPOLoss\", epsilon=0.2, beta=0.0)
a.ok(\"add_metric\", metric_cls=\"GRPOMetric\", epsilon=0.2)
assert \"advantages\" in a.no(\"forward_backward\", inputs=rows)
lp = a.ok(\"forward_only\", inputs=rows)[\"result\"][\"logps\"]
old = [[x for x, l in zip(p, r[\"labels\"]) if l != -100] for p, r in zip(lp, rows)]
assert [len(o) for o in old] == [3, 3]
o = a.fb(rows, advantages=[1.0, -0.5], old_logps=old)
assert abs(o[\"loss\"] + 0.25) < 1e-6 and o[\"num_tokens\"] == 0, o          # the ratio is 1
assert abs(a.fb(rows, advantages=[[1.0], [-0.5]], old_logps=lp)[\"loss\"] + 0.25) < 1e-6
assert abs(a.fb(rows, advantages=[1.0, -0.5])[\"loss\"] + 0.25) < 1e-6
m = a.metric()
assert abs(m[\"train/approx_kl\"]) < 1e-6 and abs(m[\"train/token_ratio_max\"] - 1) < 1e-5 and m[\"loss\"] == \"-0.2500\", m
a.ok(\"clip_grad_and_step\")
got = a.fb(rows, advantages=[1.0, -0.5], old_logps=old)[\"loss\"]
now = a.ok(\"forward_only\", inputs=rows)[\"result\"][\"logps\"]
want = 0
for adv, p, q, r in zip([1.0, -0.5], now, lp, rows):
    t = [math.exp(x - y) for x, y, l in zip(p, q, r[\"labels\"]) if l != -100]
    want += sum(-min(x * adv, min(max(x, 0.8), 1.2) * adv) for x in t) / len(t) / 2
assert abs(got - want) < 1e-5 and got < -0.25, (got, want)
assert \"fit neither\" in a.no(\"forward_backward\", inputs=rows, advantages=[1, 2], old_logps=[[1.0, 2.0], old[1]])
assert \"each of 2\" in a.no(\"forward_backward\", inputs=rows, advantages=[1.0, 2.0, 3.0])
for cls, kw in ((\"GSPOLoss\", {}), (\"SAPOLoss\", {\"tau_pos\": 1.0}), (\"CISPOLoss\", {}), (\"BNPOLoss\", {}), (\"DRGRPOLoss\", {\"max_completion_length\": 16}), (\"ppo\", {\"loss_agg_mode\": \"token-mean\"})):
    a.ok(\"set_loss\", loss_cls=cls, **kw)
    assert math.isfinite(a.fb(rows, advantages=[1.0, -0.5], old_logps=old)[\"loss\"]), cls
a.ok(\"set_loss\", loss_cls=\"GRPOLoss\", beta=0.1)
assert \"ref_outputs\" in a.no(\"forward_backward\", inputs=rows, advantages=[1.0, -0.5])
d = c.adapter(\"d\")
d.adamw(1e-2)
d.ok(\"set_loss\", loss_cls=\"DPOLoss\", beta=0.1)
d.ok(\"add_metric\", metric_cls=\"DPOMetric\", beta=0.1)
ref = d.ok(\"forward_only\", inputs=rows, disable_lora=True)[\"result\"]
first = d.fb(rows, ref_outputs=ref)[\"loss\"]
assert abs(first - math.log(2)) < 1e-6, first
for _ in range(5):
    d.ok(\"clip_grad_and_step\")
    last = d.fb(rows, ref_outputs=ref)[\"loss\"]
m = d.metric()
assert last < first and float(m[\"rewards/margins\"]) > 0 and m[\"rewards/accuracies\"].endswith(\"%\"), (first, last, m)
assert \"no pairs\" in d.no(\"forward_backward\", inputs=rows[:1], ref_outputs=ref) and \"reference\" in d.no(\"forward_backward\", inputs=rows)
for cls in (\"SimPOLoss\", \"CPOLoss\", \"ORPOLoss\"):
    d.ok(\"set_loss\", loss_cls=cls)
    assert math.isfinite(d.fb(rows)[\"loss\"]), cls
"
'
test_case 'samples: shapes, turns, weights' '
	serve_start --state st
	native "
c = Native()
assert c.ok(\"POST\", \"sampler/tiny/twinkle/create\", {\"engine_args\": {}}) == {\"status\": \"ok\"}
assert c.ok(\"POST\", \"sampler/tiny/twinkle/set_template\", {\"template_cls\": \"Template\", \"adapter_name\": \"\"}) == {\"status\": \"ok\"}
assert c.ok(\"POST\", \"sampler/tiny/twinkle/add_adapter_to_sampler\", {\"adapter_name\": \"a\", \"config\": {}})[\"adapter_name\"] == \"a\"
s = c.sample([chat(\"Who are you?\"), feature([5, 6, 7])], sampling_params={\"max_tokens\": 4, \"seed\": 7, \"logprobs\": 1, \"temperature\": 1.0}, num_samples=2)
assert len(s) == 2 and all(len(x[\"sequences\"]) == 2 for x in s)
for x, q in zip(s, (None, [5, 6, 7])):
    for y in x[\"sequences\"]:
        n = len(y[\"tokens\"])
        f = y[\"new_input_feature\"]
        assert y[\"stop_reason\"] in (\"stop\", \"length\") and len(y[\"logprobs\"]) == n and [p[0][0] for p in y[\"logprobs\"]] == y[\"tokens\"]
        assert f[\"input_ids\"][-n:] == y[\"tokens\"] and f[\"labels\"][-1] == -100 and f[\"labels\"][-n - 1:-1] == y[\"tokens\"]
        assert len(f[\"input_ids\"]) == len(f[\"labels\"]) == len(f[\"attention_mask\"]) == f[\"length\"] and f[\"position_ids\"] == list(range(f[\"length\"]))
        assert q is None or f[\"input_ids\"][:3] == q
        assert q or (f[\"messages\"][0][\"role\"], f[\"messages\"][1][\"role\"]) == (\"user\", \"assistant\")
again = c.sample([chat(\"Who are you?\"), feature([5, 6, 7])], sampling_params={\"max_tokens\": 4, \"seed\": 7, \"logprobs\": 1, \"temperature\": 1.0, \"num_samples\": 2})
assert again == s
turn = s[1][\"sequences\"][0][\"new_input_feature\"]
more, = c.sample([turn], sampling_params={\"max_tokens\": 3, \"temperature\": 0, \"logprobs\": 1})
f, k = more[\"sequences\"][0][\"new_input_feature\"], len(more[\"sequences\"][0][\"tokens\"])
assert f[\"input_ids\"][:len(turn[\"input_ids\"])] == turn[\"input_ids\"]
assert sum(l != -100 for l in f[\"labels\"]) == sum(l != -100 for l in turn[\"labels\"]) + k
p, = c.sample([feature([5, 6, 7, 8])], sampling_params={\"max_tokens\": 0, \"prompt_logprobs\": 2})
assert p[\"sequences\"][0][\"tokens\"] == [] and len(p[\"prompt_logprobs\"]) == 4 and p[\"prompt_logprobs\"][0] is None and p[\"prompt_logprobs\"][1] < 0, p
assert p[\"topk_prompt_logprobs\"][0] is None and len(p[\"topk_prompt_logprobs\"][1]) == 2
top, = c.sample(feature([5, 6, 7]), sampling_params={\"max_tokens\": 2, \"logprobs\": 3, \"temperature\": 0, \"stop\": [2]})
assert all(len(x) == 3 and x[0][1] >= x[1][1] >= x[2][1] for x in top[\"sequences\"][0][\"logprobs\"])
a = c.adapter(\"a\", rank=8)
a.adamw(1e-2)
a.ok(\"set_template\", template_cls=\"Template\", model_id=\"tiny\")
for _ in range(8):
    a.fb([chat(\"Who are you?\", \"I am Bob.\")])
    a.ok(\"clip_grad_and_step\")
    a.metric()
points = get(\"runs/%s/points\" % a.run, key=c.key)
assert [p[0] for p in points[\"loss\"]] == list(range(1, 9)) and points[\"loss\"][7][1] < points[\"loss\"][0][1], points
uri = a.ok(\"save\", name=\"now\", is_sampler=True)[\"twinkle_path\"]
assert \"/sampler_weights/\" in uri
y, = c.sample([chat(\"Who are you?\")], sampling_params={\"max_tokens\": 12, \"temperature\": 0}, adapter_uri=uri)
assert y[\"sequences\"][0][\"decoded\"].startswith(\"I am Bob.\") and y[\"sequences\"][0][\"logprobs\"] is None, y
assert y[\"sequences\"][0][\"new_input_feature\"][\"messages\"][1][\"content\"] == \"I am Bob.\"
for says, kw in ((\"sampling_params\", {\"sampling_params\": {\"min_p\": 1}}), (\"adapter_uri\", {\"adapter_name\": \"a\"}), (\"adapter_uri\", {\"adapter_uri\": \"/etc\"}),
        (\"no such\", {\"adapter_uri\": \"twinkle://x/sampler_weights/y\"}), (\"temperature\", {\"sampling_params\": {\"temperature\": -1}})):
    got = c.no(400, \"POST\", \"sampler/tiny/twinkle/sample\", dict({\"inputs\": [feature([5, 6])]}, **kw))
    assert says in got, got
Native(\"tml-other\").no(400, \"POST\", \"sampler/tiny/twinkle/sample\", {\"inputs\": [feature([5, 6])], \"adapter_uri\": uri})
r = c.call(\"POST\", \"sampler/tiny/twinkle/sample_stream\", {\"inputs\": [chat(\"Who are you?\")], \"sampling_params\": {\"max_tokens\": 12, \"temperature\": 0}, \"adapter_uri\": uri})
lines = [json.loads(l) for l in r.body.decode().splitlines()]
assert r.status == 200 and \"\".join(l[\"delta\"] for l in lines) == \"I am Bob.\" and lines[-1][\"finish_reason\"] == \"stop\", lines
"
'
test_case 'saved and resumed; killed and started again: the same bytes' '
	cat >part.py <<-"END"
	from native_client import *
	rows = [feature([(i * 31 + k * 7 + k * k) % 1500 + 3 for k in range(6 + 3 * i)], 2) for i in range(6)]
	def setup(a):
	    a.ok("set_optimizer", optimizer_cls="AdamW", lr=1e-2, weight_decay=0.0)
	    a.ok("set_lr_scheduler", scheduler_cls="LinearWarmupScheduler", num_warmup_steps=2, num_training_steps=9)
	def step(a, s):
	    a.fb([rows[s % 6]]); a.ok("clip_grad_and_step"); a.fb([rows[(s + 1) % 6]]); a.ok("clip_grad_and_step")
	def state(a):
	    return json.dumps(a.ok("get_state_dict")["result"])
	END
	mkdir py && mv part.py py/part.py
	export PYTHONPATH_EXTRA=$PWD/py
	serve_start --state st --snapshot-every 3
	native "
sys.path.insert(0, os.environ[\"PYTHONPATH_EXTRA\"]); from part import *
c = Native()
a = c.adapter(\"a\", every=2); setup(a)
for s in range(3):
    step(a, s)
path = a.ok(\"save\", name=\"three\", save_optimizer=True, consumed_train_samples=6)[\"twinkle_path\"]
bare = a.ok(\"save\", name=\"bare\")[\"twinkle_path\"]
for s in range(3, 5):
    step(a, s)
want = state(a)
b = c.adapter(\"b\", every=2); setup(b)
got = b.ok(\"resume_from_checkpoint\", name=path)[\"result\"]
assert got == {\"cur_step\": 6, \"consumed_train_samples\": 6, \"gradient_accumulation_steps\": 2}, got
for s in range(3, 5):
    step(b, s)
assert state(b) == want
d = c.adapter(\"d\"); d.adamw()
assert d.ok(\"resume_from_checkpoint\", name=path, resume_only_model=True)[\"result\"][\"cur_step\"] == 6
assert d.ok(\"load\", name=bare) is None and \"without its optimizer\" in d.no(\"load\", name=bare, load_optimizer=True)
a.fb([rows[0]])                                             # half of a step waits
a.ok(\"forward\", inputs=[rows[1]])
json.dump([c.sid, want, path], open(\"was.json\", \"w\"))
"
	serve_stop KILL
	serve_start --state st --snapshot-every 3
	native "
sys.path.insert(0, os.environ[\"PYTHONPATH_EXTRA\"]); from part import *
sid, want, path = json.load(open(\"was.json\"))
c = Native(); c.sid = sid
a, b, e = Adapter(c, \"a\"), Adapter(c, \"b\"), c.adapter(\"e\", every=2)
assert state(a) == want and state(b) == want
setup(e); e.ok(\"resume_from_checkpoint\", name=path)
for s in range(3, 5):
    step(e, s)
e.fb([rows[0]])
for x in (a, e):
    if x is a:
        assert x.ok(\"calculate_loss\")[\"result\"] > 0 and x.ok(\"backward\") is None
    else:
        x.fb([rows[1]])
    x.ok(\"clip_grad_and_step\")
assert state(a) == state(e) != want
assert a.metric()[\"learning rate(param group 1)\"] == e.metric()[\"learning rate(param group 1)\"]
assert c.ok(\"GET\", \"twinkle/training_runs\")[\"cursor\"][\"total_count\"] == 4
"
'
test_case 'upload_to_hub: in the background, with the client own token; what fails says why' '
	hub_start
	hub_pid=$!
	behave "{\"token\": \"secret-token\"}"
	HF_TOKEN=other MODELSCOPE_API_TOKEN=other serve_start --state st --access-log access
	trap "kill -9 $PID $hub_pid 2>/dev/null || :" EXIT
	native "
c = Native()
a = c.adapter()
path = a.ok(\"save\", name=\"up\")[\"twinkle_path\"]
def status(rid, k=c):
    return k.ok(\"GET\", \"model/tiny/twinkle/upload_status/\" + rid)
def up(repo, **kw):
    r = a.ok(\"upload_to_hub\", **dict({\"checkpoint_dir\": path, \"hub_model_id\": repo, \"hub_token\": \"secret-token\", \"async_upload\": False}, **kw))[\"request_id\"]
    while status(r)[\"status\"] not in (\"completed\", \"failed\"):
        time.sleep(0.05)
    return status(r), r
for repo in (\"hf://me/lora\", \"ms://me/lora\"):
    got, rid = up(repo)
    assert got == {\"request_id\": rid, \"status\": \"completed\", \"error\": None}, got
assert up(\"hf://me/other\", checkpoint_dir={\"twinkle_path\": path})[0][\"status\"] == \"completed\"
bad, bid = up(\"hf://me/lora\", hub_token=\"wrong-token\")
assert bad[\"status\"] == \"failed\" and bad[\"error\"] and \"wrong-token\" not in bad[\"error\"], bad
for kw, status_ in (({\"hub_model_id\": \"../x\"}, 400), ({\"hub_model_id\": \"name\"}, 400), ({\"checkpoint_dir\": \"/etc\"}, 400), ({\"hub_token\": None}, 400),
        ({\"checkpoint_dir\": \"twinkle://x/weights/y\"}, 404)):
    a.no(\"upload_to_hub\", status_, **dict({\"checkpoint_dir\": path, \"hub_model_id\": \"me/x\", \"hub_token\": \"t\"}, **kw))
o = Native(\"tml-other\")
o.no(404, \"GET\", \"model/tiny/twinkle/upload_status/\" + rid)
o.no(404, \"POST\", \"model/tiny/twinkle/upload_to_hub\", {\"checkpoint_dir\": path, \"hub_model_id\": \"me/x\", \"hub_token\": \"t\"})
open(\"ids\", \"w\").write(rid + \" \" + c.sid)
"
	test -f hub/hf/models/me/lora/adapter_model.safetensors
	test -f hub/ms/models/me/lora/adapter_config.json
	serve_stop
	test_equal "$STATUS" 0
	! grep -r -q -a "secret-token" st access serve.err
	serve_start --state st
	trap "kill -9 $PID $hub_pid 2>/dev/null || :" EXIT
	native "
rid, sid = open(\"ids\").read().split()
c = Native(); c.sid = sid
assert c.ok(\"GET\", \"model/tiny/twinkle/upload_status/\" + rid)[\"status\"] == \"completed\"
"
'
test_case 'all weights: config null with --full, one model at a time' '
	serve_start --state st --full --snapshot-every 2
	native "
c = Native()
f = Adapter(c, \"full\")
assert f.ok(\"add_adapter_to_model\", config=None)[\"adapter_name\"] == c.sid + \"-full\"
f.run = c.sid + \"-full\"
c.no(409, \"POST\", \"model/tiny/twinkle/add_adapter_to_model\", {\"adapter_name\": \"two\", \"config\": None})
f.ok(\"set_optimizer\", optimizer_cls=\"AdamW\", lr=1e-3, weight_decay=0.0)
rows = [feature([5, 6, 7, 8, 9, 10], 2), feature([11, 12, 13, 14], 2)]
first = f.fb(rows)[\"loss\"]
for _ in range(4):
    f.ok(\"clip_grad_and_step\")
    last = f.fb(rows)[\"loss\"]
assert last < first * 0.8, (first, last)
f.ok(\"clip_grad_norm\"); f.ok(\"step\"); f.ok(\"zero_grad\")
path = f.ok(\"save\", name=\"all\", save_optimizer=True, consumed_train_samples=8)[\"twinkle_path\"]
lp = f.ok(\"forward_only\", inputs=rows)[\"result\"][\"logps\"]
uri = f.ok(\"save\", name=\"now\", is_sampler=True)[\"twinkle_path\"]
assert len(c.sample([rows[0]], sampling_params={\"max_tokens\": 2}, adapter_uri=uri)) == 1
f.ok(\"lr_step\")
assert f.ok(\"resume_from_checkpoint\", name=path)[\"result\"][\"cur_step\"] == 5
assert f.ok(\"forward_only\", inputs=rows)[\"result\"][\"logps\"] == lp
r = c.ok(\"GET\", \"twinkle/training_runs/\" + f.run)
assert r[\"is_lora\"] is False and r[\"lora_rank\"] is None, r
json.dump([c.sid, lp], open(\"was.json\", \"w\"))
"
	serve_stop KILL
	serve_start --state st --full --snapshot-every 2
	native "
sid, lp = json.load(open(\"was.json\"))
c = Native(); c.sid = sid
f = Adapter(c, \"full\")
rows = [feature([5, 6, 7, 8, 9, 10], 2), feature([11, 12, 13, 14], 2)]
assert f.ok(\"forward_only\", inputs=rows)[\"result\"][\"logps\"] == lp
"
'
test_done
