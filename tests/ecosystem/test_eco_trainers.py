"""Loops that others write: Trainer of transformers, the trainers of trl, and accelerate."""

import functools

import accelerate
import datasets
import peft
import torch
import transformers
import trl
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

import compare
import zoo

cases = compare.Cases()
WORDS = [f"w{i}" for i in range(zoo.SMALL.vocab - 3)]
HISTORY = ("loss", "eval_loss", "grad_norm", "learning_rate", "step")
SENTENCES = [" ".join(WORDS[(3 * i + j) % len(WORDS)] for j in range(8 + i % 3)) for i in range(12)]


def history(trainer):
    """What was logged, without times."""
    return [
        {key: row[key] for key in row if key.endswith(HISTORY) or "rewards" in key} for row in trainer.state.log_history
    ]


def left_by(trainer):
    return {"model": trainer.model, "history": history(trainer), "optimizer": trainer.optimizer.state_dict()}


def arguments(training, cls=transformers.TrainingArguments, **changes):
    settings = {
        "output_dir": str(training.folder / "out"),
        "per_device_train_batch_size": 2,
        "max_steps": 3,
        "logging_steps": 1,
        "save_strategy": "no",
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 3,
        **changes,
    }
    return cls(**settings)


# transformers


def with_trainer(training, name="gpt2", first=True, **changes):
    """first: is the trainer wrapped, or the model before the trainer is made?"""
    model = zoo.make(name, use_cache=False) if name == "llama" else zoo.make(name)
    if not first:
        training.wrap(model)
    trainer = transformers.Trainer(
        model=model,
        args=arguments(training, **changes),
        train_dataset=zoo.Sentences(24, 1),
        eval_dataset=zoo.Sentences(4, 2),
    )
    if first:
        training.wrap(trainer)
    trainer.train()
    training.see(*history(trainer))
    return left_by(trainer)


for name, changes in {
    "trainer": {},
    "trainer_llama": {"name": "llama"},
    "trainer_wrapped_model": {"first": False},
    "trainer_accumulation": {"gradient_accumulation_steps": 2},
    "trainer_bf16": {"bf16": True},
    "trainer_bf16_accumulation": {"bf16": True, "gradient_accumulation_steps": 2, "name": "llama"},
    "trainer_checkpointing": {"gradient_checkpointing": True, "name": "llama"},
    "trainer_evaluation": {"eval_strategy": "steps", "eval_steps": 1, "name": "llama"},
    "trainer_clipping": {"max_grad_norm": 0.05},
    "trainer_adafactor": {"optim": "adafactor"},
    "trainer_groups_by_length": {"train_sampling_strategy": "group_by_length"},
}.items():
    cases.add(name, functools.partial(with_trainer, **changes))


@cases(modes=("default", "everything"))
def trainer_saves_and_resumes(training):
    changes = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    left = with_trainer(training, **changes)
    folder = training.folder / "out" / "checkpoint-2"
    trainer = transformers.Trainer(
        model=zoo.make("gpt2"), args=arguments(training, **changes), train_dataset=zoo.Sentences(24, 1)
    )
    training.wrap(trainer)
    trainer.train(resume_from_checkpoint=str(folder))
    files = {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}
    return {**left, "resumed": trainer.model, "resumed history": history(trainer), "files": files}


# trl


@functools.cache
def tokenizer():
    vocabulary = {word: i for i, word in enumerate(["<s>", "</s>", "<pad>", *WORDS])}
    fast = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=fast, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<pad>"
    )


def with_trl(training, trainer_class, config_class, rows, make_model, more=dict, **changes):
    """more: makes further arguments of the trainer."""
    settings = {"max_length": 24, "bf16": False, **changes}  # trl's own default is bf16
    trainer = trainer_class(
        model=make_model(),
        args=arguments(training, config_class, **settings),
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=tokenizer(),
        **more(),
    )
    training.wrap(trainer)
    trainer.train()
    training.see(*history(trainer))
    return left_by(trainer)


def llama(**changes):
    return zoo.make("llama", use_cache=False, **changes)


def scorer():
    model = zoo.make("llama", use_cache=False)
    torch.manual_seed(0)
    model = transformers.LlamaForSequenceClassification(model.config)
    model.config.num_labels, model.score = 1, nn.Linear(model.config.hidden_size, 1, bias=False)
    return model.train()


TEXTS = [{"text": text} for text in SENTENCES]
PAIRS = [
    {"prompt": SENTENCES[i], "chosen": " " + SENTENCES[(i + 1) % 12], "rejected": " " + SENTENCES[(i + 5) % 12]}
    for i in range(12)
]
SFT = functools.partial(with_trl, trainer_class=trl.SFTTrainer, config_class=trl.SFTConfig, rows=TEXTS)
DPO = functools.partial(
    with_trl,
    trainer_class=trl.DPOTrainer,
    config_class=trl.DPOConfig,
    rows=PAIRS,
    more=lambda: {"ref_model": llama()},
)
REWARD = functools.partial(
    with_trl, trainer_class=trl.RewardTrainer, config_class=trl.RewardConfig, rows=PAIRS, make_model=scorer
)
for name, case in {
    "sft": functools.partial(SFT, make_model=llama),
    "sft_gpt2": functools.partial(SFT, make_model=lambda: zoo.make("gpt2")),
    "sft_bf16": functools.partial(SFT, make_model=llama, bf16=True),
    "dpo": functools.partial(DPO, make_model=llama),
    "reward": REWARD,
}.items():
    cases.add(name, case)
for name, case in {
    "sft_accumulation": functools.partial(SFT, make_model=llama, gradient_accumulation_steps=2),
    "sft_packing": functools.partial(SFT, make_model=llama, packing=True),
    "dpo_bf16": functools.partial(DPO, make_model=llama, bf16=True),
    "dpo_checkpointing": functools.partial(DPO, make_model=llama, gradient_checkpointing=True),
}.items():
    cases.add(name, case, ("default", "everything"))


@cases()
def sft_with_lora(training):
    adapter = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return SFT(training, make_model=llama, more=lambda: {"peft_config": adapter})


# accelerate


def with_accelerate(training, name="gpt2", first=True, accumulate=1, **options):
    """first: is the model wrapped before accelerate prepares it, or after?"""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulate, **options)
    model = zoo.make(name, use_cache=False) if name == "llama" else zoo.make(name)
    if first:
        training.wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(zoo.Sentences(6 * accumulate, 1), batch_size=2, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if not first:
        training.wrap(model)
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            training.see(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    unwrapped = accelerator.unwrap_model(model)
    return {"model": model, "unwrapped": unwrapped, "optimizer": optimizer.optimizer}


for first in (True, False):
    when = "before" if first else "after"
    for name, options in {
        "plain": {},
        "bf16": {"mixed_precision": "bf16"},
        "accumulation": {"accumulate": 2, "name": "llama"},
        "bf16_accumulation": {"accumulate": 2, "mixed_precision": "bf16", "name": "llama"},
    }.items():
        cases.add(f"accelerate_{name}_{when}", functools.partial(with_accelerate, first=first, **options))


@cases.parametrize
def test_trainer(run, tmp_path):
    run(tmp_path)
