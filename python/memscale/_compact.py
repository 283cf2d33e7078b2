"""Before an optimizer makes its state, unused memory goes back to the device.

Else torch's allocator puts the state, which stays, between activations, which come and go: large tensors then find no
room that is in one piece, although enough is free.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook


class Compaction:
    """Waits for the first step of an optimizer of this model.

    Attributes:
        done: has it happened?
        release: stop waiting. Does nothing a second time, and happens by itself when this dies.
    """

    def __init__(self, model: nn.Module) -> None:
        known = {id(p) for p in model.parameters()}
        happened: list[bool] = []

        def before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            if happened or not any(id(p) in known for group in optimizer.param_groups for p in group["params"]):
                return
            happened.append(True)
            if not optimizer.state:
                torch.cuda.empty_cache()

        self._happened = happened
        self.release = weakref.finalize(self, register_optimizer_step_pre_hook(before_step).remove)
        self.release.atexit = False

    @property
    def done(self) -> bool:
        return bool(self._happened)
