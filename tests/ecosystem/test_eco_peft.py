"""Adapters of PEFT: the base model is frozen, and layers are replaced, scaled or given virtual tokens."""

import functools

import peft
import torch

import compare
import zoo

cases = compare.Cases()

TASKS = {"gpt2": "CAUSAL_LM", "llama": "CAUSAL_LM", "t5": "SEQ_2_SEQ_LM", "bert": None, "vit": None}
TARGETS = {  # attention and feed-forward of each kind of model, and the last layer, which is trained as a whole
    "gpt2": (["c_attn", "c_fc"], ["c_fc"], ["lm_head"]),
    "llama": (["q_proj", "v_proj", "down_proj"], ["down_proj"], ["lm_head"]),
    "t5": (["q", "v", "wo"], ["wo"], ["lm_head"]),
    "bert": (["query", "value"], ["intermediate.dense"], ["cls"]),
    "vit": (["q_proj", "v_proj"], ["fc1"], ["classifier"]),
}


def base(name):
    return zoo.make(name, use_cache=False) if name == "llama" else zoo.make(name)


def adapted(training, name, make_config, **options):
    model = peft.get_peft_model(base(name), make_config(name))
    args, kwargs = zoo.batch_of(name)
    if args:  # a PEFT model takes its inputs by name
        kwargs = {"input_ids": args[0], **kwargs}
    return compare.fit(training, model, ((), kwargs), **options)


def lora(name, **changes):
    settings = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1, "target_modules": TARGETS[name][0], **changes}
    return peft.LoraConfig(task_type=TASKS[name], fan_in_fan_out=name == "gpt2", **settings)


def dora(name):
    return lora(name, use_dora=True)


def with_head(name):
    return lora(name, modules_to_save=TARGETS[name][2])


def ia3(name):
    attention, feedforward, _ = TARGETS[name]
    targets = [*attention, *feedforward]
    return peft.IA3Config(
        task_type=TASKS[name], target_modules=targets, feedforward_modules=feedforward, fan_in_fan_out=name == "gpt2"
    )


def adalora(name):
    return peft.AdaLoraConfig(
        task_type=TASKS[name], init_r=4, target_r=2, total_step=6, tinit=1, tfinal=1, target_modules=TARGETS[name][0],
        fan_in_fan_out=name == "gpt2",
    )  # fmt: skip


def loha(name):
    return peft.LoHaConfig(task_type=TASKS[name], r=2, target_modules=TARGETS[name][0], module_dropout=0.2)


def prefix(name):
    return peft.PrefixTuningConfig(task_type=TASKS[name], num_virtual_tokens=3)


def prompt(name):
    return peft.PromptTuningConfig(task_type=TASKS[name], num_virtual_tokens=3)


for name in TARGETS:
    cases.add(f"lora_{name}", functools.partial(adapted, name=name, make_config=lora), compare.WITH_SAMPLE)
    cases.add(
        f"modules_to_save_{name}",
        functools.partial(adapted, name=name, make_config=with_head),
        ("default", "everything"),
    )
for name in ("gpt2", "llama", "bert", "vit"):
    cases.add(f"dora_{name}", functools.partial(adapted, name=name, make_config=dora), ("default", "aggressive"))
    cases.add(f"ia3_{name}", functools.partial(adapted, name=name, make_config=ia3), ("default", "everything"))
for name in ("gpt2", "llama"):
    cases.add(f"prompt_{name}", functools.partial(adapted, name=name, make_config=prompt))
cases.add("prefix_gpt2", functools.partial(adapted, name="gpt2", make_config=prefix))
cases.add("prefix_t5", functools.partial(adapted, name="t5", make_config=prefix), ("default", "everything"))
cases.add("loha_llama", functools.partial(adapted, name="llama", make_config=loha))


@cases()
def adalora_with_its_budget(training):
    """The ranks are changed after each step."""
    model = peft.get_peft_model(base("llama"), adalora("llama"))
    ids = zoo.tokens(2, 12)
    training.wrap(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for step in range(4):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        training.see(loss)
        optimizer.step()
        model.base_model.update_and_allocate(step)
        optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


@cases()
def two_adapters(training):
    """One is trained, then the other, on the same wrapped model."""
    model = peft.get_peft_model(base("gpt2"), lora("gpt2"))
    model.add_adapter("second", lora("gpt2", r=2))
    first = compare.fit(training, model, ((), {"input_ids": zoo.tokens(2, 12), "labels": zoo.tokens(2, 12)}))
    model.set_adapter("second")
    ids = zoo.tokens(2, 12, seed=3)
    second = compare.fit(training, model, ((), {"input_ids": ids, "labels": ids}), wrap=False)
    return {**second, "first": first["optimizer"]}


@cases()
def disabled_and_merged(training):
    """The adapter is switched off for a forward, and merged in the end."""
    model = peft.get_peft_model(base("llama"), lora("llama"))
    ids = zoo.tokens(2, 12)
    left = compare.fit(training, model, ((), {"input_ids": ids, "labels": ids}))
    with model.disable_adapter(), torch.no_grad():
        training.see(model(input_ids=ids, labels=ids).loss)
    model.merge_adapter()
    training.see(model(input_ids=ids, labels=ids).loss)
    return left


@cases()
def wrapped_before_the_adapter(training):
    """A wrapped model gets its adapter afterwards."""
    model = base("llama")
    training.wrap(model)
    model = peft.get_peft_model(model, lora("llama"))
    ids = zoo.tokens(2, 12)
    return compare.fit(training, model, ((), {"input_ids": ids, "labels": ids}), wrap=False)


@cases()
def inputs_that_need_gradients(training):
    """A hook on the embeddings changes their output, as gradient checkpointing of frozen models needs it."""
    model = peft.get_peft_model(base("llama"), lora("llama"))
    model.enable_input_require_grads()
    ids = zoo.tokens(2, 12)
    return compare.fit(training, model, ((), {"input_ids": ids, "labels": ids}))


@cases(modes=("default", "everything"))
def with_gradient_checkpointing(training):
    model = base("llama")
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    model = peft.get_peft_model(model, lora("llama"))
    ids = zoo.tokens(2, 12)
    return compare.fit(training, model, ((), {"input_ids": ids, "labels": ids}))


@cases.parametrize
def test_peft(run, tmp_path):
    run(tmp_path)
