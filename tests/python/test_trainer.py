"""A Hugging Face Trainer, wrapped with one line, logs the same losses."""

import pytest
from transformers import Trainer, TrainingArguments

import memscale
import zoo
from test_detach import equal, snapshot


def make_trainer(folder, name="gpt2", **changes):
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_steps": 6,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 3,
        "save_steps": 3,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 3,
        **changes,
    }
    return Trainer(
        model=zoo.make(name),
        args=TrainingArguments(**settings),
        train_dataset=zoo.Sentences(24, 1),
        eval_dataset=zoo.Sentences(4, 2),
    )


def history(trainer):
    volatile = ("runtime", "per_second", "epoch")
    return [
        {key: value for key, value in row.items() if not any(word in key for word in volatile)}
        for row in trainer.state.log_history
    ]


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("everything", [False, True], ids=["own plan", "everything recomputed"])
def test_same_losses_with_accumulation_clipping_evaluation_and_resume(tmp_path, quiet_config, bf16, everything):
    def wrap(trainer):
        plan = zoo.recompute_plan(trainer.model) if everything else None
        assert memscale.wrap(trainer, quiet_config, plan=plan) is trainer

    assert TrainingArguments(output_dir=str(tmp_path)).max_grad_norm == 1.0  # clipping is the default
    results = []
    for wrapped in (False, True):
        folder = tmp_path / str(wrapped)
        trainer = make_trainer(folder, bf16=bf16)
        if wrapped:
            wrap(trainer)
        trainer.train()
        first = history(trainer), {k: v.clone() for k, v in trainer.model.state_dict().items()}
        if wrapped:
            plan = trainer.model._memscale_executor.plan
            assert plan.n_recomputed == len(plan.layers) if everything else plan.n_recomputed >= 2
            memscale.detach(trainer)

        resumed = make_trainer(folder, bf16=bf16)
        if wrapped:
            wrap(resumed)
        resumed.train(resume_from_checkpoint=str(folder / "checkpoint-3"))
        results.append((*first, history(resumed), dict(resumed.model.state_dict())))
    plain, wrapped = results
    assert any("eval_loss" in row for row in plain[0])
    assert any("grad_norm" in row for row in plain[0])
    assert len(plain[0]) >= 8
    zoo.assert_same(plain, wrapped)


def test_checkpoints_are_the_same_files(tmp_path, quiet_config):
    for wrapped in (False, True):
        trainer = make_trainer(tmp_path / str(wrapped))
        if wrapped:
            memscale.wrap(trainer, quiet_config)
        trainer.train()
    names = [sorted(p.name for p in (tmp_path / str(w) / "checkpoint-6").iterdir()) for w in (False, True)]
    assert names[0] == names[1]
    saved = [(tmp_path / str(w) / "checkpoint-6" / "model.safetensors").read_bytes() for w in (False, True)]
    assert saved[0] == saved[1]
    configs = [(tmp_path / str(w) / "checkpoint-6" / "config.json").read_text() for w in (False, True)]
    assert configs[0] == configs[1]


def test_detach_from_a_trainer_restores_its_model(tmp_path, quiet_config):
    trainer = make_trainer(tmp_path)
    before = snapshot(trainer.model)
    memscale.wrap(trainer, quiet_config)
    assert trainer.model._memscale_executor.attached
    memscale.detach(trainer)
    assert equal(before, snapshot(trainer.model))


def test_a_model_wrapped_before_the_trainer_is_made(tmp_path, quiet_config):
    plain = make_trainer(tmp_path / "a")
    plain.train()
    other = make_trainer(tmp_path / "b")
    model = memscale.wrap(zoo.make("gpt2"), quiet_config)
    trainer = Trainer(model=model, args=other.args, train_dataset=other.train_dataset, eval_dataset=other.eval_dataset)
    trainer.train()
    zoo.assert_same(history(plain), history(trainer))
