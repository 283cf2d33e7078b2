"""A spacer on a GPU: the budget is kept, what is reserved was predicted, and losses are those of plain torch."""

import pytest
import torch
import transformers

import memscale

LENGTH, BATCH = 256, 16
VOCABULARY = 50257


def gpt2():
    """Its logits are most of its memory."""
    config = transformers.GPT2Config(
        n_embd=256, n_layer=6, n_head=4, n_positions=LENGTH, vocab_size=VOCABULARY, use_cache=False
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = transformers.GPT2LMHeadModel(config).train()
        ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    return model, {"input_ids": ids, "labels": ids}


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def tight_budget(model, batch, optimizer, share=0.05):
    """In GB: between what everything recomputed needs without a spacer, and the plain step."""
    profile = memscale.profile(model, batch, optimizer=optimizer, precision="bf16")
    low, high = profile.predict("all").needed_bytes, profile.predict().needed_bytes
    return (low + share * (high - low)) * 64 / 63 / 1e9


def step(model, batch, optimizer):
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(**batch).loss
    loss.backward()
    value = loss.detach()
    del loss
    optimizer.step()
    optimizer.zero_grad()
    return value


def conservative(budget_gb):
    return memscale.Config("conservative", memory_budget_gb=budget_gb, enable_logging=False)


def test_a_budget_with_a_spacer():
    model, batch = gpt2()
    optimizer = optimizer_of(model)
    budget = tight_budget(model, batch, optimizer)
    memscale.wrap(model, conservative(budget))
    torch.cuda.reset_peak_memory_stats()
    for i in range(8):
        step(model, batch, optimizer)
        if i == 2:
            stats = torch.cuda.memory_stats()
            retries, ooms = stats["num_alloc_retries"], stats["num_ooms"]
    plan = memscale.executor_of(model).plan
    assert plan.spacer_layer == "lm_head"
    assert plan.spacer_bytes > 0
    assert torch.cuda.max_memory_reserved() <= budget * 1e9
    assert torch.cuda.memory_stats()["num_alloc_retries"] == retries
    assert torch.cuda.memory_stats()["num_ooms"] == ooms
    assert torch.cuda.max_memory_allocated() == pytest.approx(plan.predicted_peak_bytes, rel=0.02)
    memscale.detach(model)


def reserved_without_a_budget(plan_text):
    """What torch's allocator reserves in steady steps that take memory as they need it."""
    model, batch = gpt2()
    optimizer = optimizer_of(model)
    plan = memscale.Plan.from_json(plan_text)
    memscale.wrap(model, memscale.Config(enable_logging=False), plan=plan)
    for _ in range(2):
        step(model, batch, optimizer)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(4):
        step(model, batch, optimizer)
    reserved = torch.cuda.max_memory_reserved()
    memscale.detach(model)
    return reserved


def test_what_is_reserved_is_what_is_predicted():
    model, batch = gpt2()
    optimizer = optimizer_of(model)
    budget = tight_budget(model, batch, optimizer)
    plan = memscale.plan(model, batch, optimizer=optimizer, precision="bf16", config=conservative(budget))
    assert plan.spacer_bytes > 0
    del model, batch, optimizer
    torch.cuda.empty_cache()
    with_it = reserved_without_a_budget(plan.to_json())
    assert with_it <= plan.needed_bytes * 1.02
    assert with_it > plan.needed_bytes * 0.9


def test_losses_are_those_of_the_plain_step():
    def losses(is_wrapped):
        model, batch = gpt2()
        optimizer = optimizer_of(model)
        if is_wrapped:
            memscale.wrap(model, conservative(tight_budget(model, batch, optimizer)))
        torch.manual_seed(1)
        found = torch.stack([step(model, batch, optimizer) for _ in range(4)]).cpu()
        if is_wrapped:
            assert memscale.executor_of(model).plan.spacer_bytes > 0
            memscale.detach(model)
            assert "forward" not in vars(model.lm_head)
        return found

    assert torch.equal(losses(False), losses(True))


def test_an_evaluation_takes_none():
    model, batch = gpt2()
    optimizer = optimizer_of(model)
    memscale.wrap(model, conservative(tight_budget(model, batch, optimizer)))
    for _ in range(2):
        step(model, batch, optimizer)
    plan = memscale.executor_of(model).plan
    assert plan.spacer_bytes > 0
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        model(batch["input_ids"][:1, :8])
    assert torch.cuda.max_memory_allocated() - before < plan.spacer_bytes
    memscale.detach(model)
