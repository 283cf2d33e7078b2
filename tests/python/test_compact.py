"""Memory that is unused goes back once, before an optimizer of the model makes its state."""

import gc

import pytest
import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer

from memscale._compact import Compaction


@pytest.fixture
def emptied(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append(1))
    return calls


def n_hooks():
    return len(torch_optimizer._global_optimizer_pre_hooks)


def step(model, optimizer):
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()


def test_once_before_the_first_step(emptied):
    before = n_hooks()
    model, other = nn.Linear(4, 4), nn.Linear(4, 4)
    waiting = Compaction(model)
    step(other, torch.optim.AdamW(other.parameters()))  # nobody's business
    assert not waiting.done
    assert not emptied
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        step(model, optimizer)
        assert waiting.done
        assert emptied == [1]
    waiting.release()
    waiting.release()
    assert n_hooks() == before


def test_not_where_the_state_is_there_already(emptied):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer)
    waiting = Compaction(model)
    step(model, optimizer)
    assert waiting.done
    assert not emptied


def test_nothing_is_left_behind(emptied):
    before = n_hooks()
    waiting = Compaction(nn.Linear(4, 4))
    assert n_hooks() == before + 1
    del waiting
    gc.collect()
    assert n_hooks() == before
