"""DistributedDataParallel and FSDP2 on two processes (gloo), with layers recomputed, in part too, and offloaded."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import memscale
import ranks
import zoo
from memscale._run import offloading

MIXTURES = {
    "recomputed": ["recompute"],
    "kept": ["recompute_except_both"],
    "offloaded": ["offload"],
    "mixed": ["offload", "keep", "recompute_except_both", "recompute", "recompute_offload"],
}


def ddp(model, actions):
    wrapped = zoo.wrap_with(model, actions) if actions else model
    return DistributedDataParallel(wrapped)


def fsdp2(model, actions):
    """Each block by itself, then the rest; MemScale comes last."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return zoo.wrap_with(model, actions) if actions else model


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
