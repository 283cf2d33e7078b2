"""DistributedDataParallel and FSDP2 on two processes (gloo), with layers recomputed, in part too, and offloaded."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import memscale
import ranks
import zoo
from memscale._plan import agreement
from memscale._run import offloading

MIXTURES = {
    "recomputed": ["recompute"],
    "kept": ["recompute_except_both"],
    "offloaded": ["offload"],
    "mixed": ["offload", "keep", "recompute_except_both", "recompute", "recompute_offload"],
}


def wrapped_with(model, actions):
    """With a plan that is given, or within a budget, or as it is."""
    if isinstance(actions, float):
        return memscale.wrap(model, memscale.Config(memory_budget_gb=actions, enable_logging=False))
    return zoo.wrap_with(model, actions) if actions else model


def ddp(model, actions):
    return DistributedDataParallel(wrapped_with(model, actions))


def fsdp2(model, actions):
    """Each block by itself, then the rest; MemScale comes last."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return wrapped_with(model, actions)


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def train(model, n_steps=10):
    """Another batch for each rank and step, of another size."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rank, record = dist.get_rank(), []
    torch.manual_seed(7 + rank)
    for step in range(n_steps):
        ids = zoo.tokens(2 + rank + step % 2, 8 + 2 * (step % 3), seed=1 + 10 * step + rank)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        gradients = {name: local(p.grad).clone() for name, p in model.named_parameters()}
        record.append((loss.detach().clone(), gradients))
        optimizer.step()
        optimizer.zero_grad()
    return record


def compare_on_rank(folder, parallel, actions):
    offloading.OPTIONS = {"least_bytes": 1}
    plain, model = (parallel(zoo.make("gpt2"), wanted) for wanted in (None, actions))
    wanted, found = train(plain), train(model)
    zoo.assert_same(wanted, found)
    executor = memscale.executor_of(getattr(model, "module", model))
    assert [unit.excluded for unit in executor._units] == [None] * len(executor._units)
    assert (executor._offloading.stats().get("n_puts", 0) > 0) == ("offload" in actions)
    if actions == MIXTURES["kept"]:
        assert {trust for unit in executor._units for trust in unit.trusts} == {"equal"}


PARALLEL = {"ddp": ddp, "fsdp2": fsdp2}


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("name", PARALLEL)
def test_equals_plain(name, mixture, tmp_path):
    if name == "fsdp2" and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 8):
        pytest.skip("before torch 2.8, FSDP2 does not run on a CPU with gloo")
    ranks.run_on_two(compare_on_rank, tmp_path, PARALLEL[name], MIXTURES[mixture])


def make_wide():
    return zoo.LARGE.make("gpt2")


def train_wide(model, n_steps=10):
    """The second rank has the larger batches; sizes vary from step to step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rank, record = dist.get_rank(), []
    torch.manual_seed(7 + rank)
    for step in range(n_steps):
        ids = zoo.tokens(4 + 4 * rank - step % 2, 64 - 8 * (step % 3), seed=1 + 10 * step + rank)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        record.append((loss.detach().clone(), {n: local(p.grad).clone() for n, p in model.named_parameters()}))
        optimizer.step()
        optimizer.zero_grad()
    return record


def agree_on_rank(folder, parallel, share):
    """The plan is that of the rank that needs more; the other one would have kept all layers."""
    ids = zoo.tokens(8, 64)
    own = zoo.tokens(4 + 4 * dist.get_rank(), 64)
    needs = [memscale.predict(make_wide(), {"input_ids": batch, "labels": batch}).peak_bytes for batch in (ids, own)]
    budget = needs[0] * share
    wanted = train_wide(parallel(make_wide(), None))
    model = parallel(make_wide(), budget / 1e9)
    zoo.assert_same(wanted, train_wide(model))
    executor = memscale.executor_of(getattr(model, "module", model))
    plan = executor.plan
    answers = [None, None]
    dist.all_gather_object(answers, (plan.fingerprint, plan.n_changed, needs[1] < budget * 63 / 64))
    assert answers[0][0] == answers[1][0]
    assert answers[0][1] > 0
    assert [alone for _, _, alone in answers] == [True, False]
    for _ in range(2 if parallel is ddp else 0):  # accumulated: another plan, of both. Shards do not fit then
        model(input_ids=own, labels=own).loss.backward()
    dist.all_gather_object(answers, executor.plan.fingerprint)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("name", PARALLEL)
def test_the_same_plan_on_both(name, tmp_path):
    if name == "fsdp2" and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 8):
        pytest.skip("before torch 2.8, FSDP2 does not run on a CPU with gloo")
    ranks.run_on_two(agree_on_rank, tmp_path, PARALLEL[name], 0.9)


def refuse_on_rank(folder):
    """A budget that is too small for one rank is refused on both, and nobody waits."""
    rank = dist.get_rank()
    ids = zoo.tokens(2 + 30 * rank, 64)
    model = ddp(make_wide(), 0.02)
    with pytest.raises(memscale.BudgetError, match="rank 1" if rank == 0 else "No plan fits"):
        model(input_ids=ids, labels=ids)


def test_a_budget_that_is_too_small_for_one(tmp_path):
    ranks.run_on_two(refuse_on_rank, tmp_path)


def lonely_on_rank(folder):
    """A rank that has no plan to tell costs a warning."""
    agreement._SECONDS = 1
    ids = zoo.tokens(2, 16)
    model = ddp(zoo.make("gpt2"), 1.0 if dist.get_rank() == 0 else None)
    if dist.get_rank() == 0:
        with pytest.warns(memscale.MemScaleWarning, match="could not agree on a plan"):
            model(input_ids=ids, labels=ids).loss.backward()
    else:
        model(input_ids=ids, labels=ids).loss.backward()


def test_a_rank_that_does_not_answer(tmp_path):
    ranks.run_on_two(lonely_on_rank, tmp_path)
