"""Recomputation of one unit: run it again in backward exactly as it ran in forward.

The work of every step is done in C: ``_core.Call`` remembers what the first run saw (inputs, the state of the unit's
modules, random generators, torch's switches) and can run the unit once more under the same conditions, without a trace
in the modules; ``_core.Frame`` handles the tensors. Here is what happens once for each unit.

The first run of a unit is *checked*: everything is kept, as without MemScale, then the unit runs a second time and its
outputs are compared bit for bit. Only a unit that repeats itself gives its tensors up. One that does not is left alone.
"""

from __future__ import annotations

import contextvars
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from . import _core
from ._core import Call
from ._memory import storages, tensor_bytes

SMALL_BUFFER_BYTES = 64 << 10  # buffers up to this size are always put back, changed or not


def identity(tensor: Any) -> Any:
    """The unpack hook of tensors that were packed as they are."""
    return tensor


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit for bit, NaN included. Tensors without plain memory are compared by torch."""
    if a.is_nested or b.is_nested:
        return False
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device or a.layout != b.layout:
        return False
    if a.numel() == 0 or a.is_meta:
        return True
    if a.layout != torch.strided or a.is_quantized:
        return bool(torch.equal(a, b))
    flat = [t.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return bool(torch.equal(flat[0], flat[1]))


class Learned:
    """What a checked run taught about a unit, for one combination of training flags."""

    __slots__ = ("buffers", "draws", "full", "in_place")

    def __init__(self, buffers: set[tuple[int, str]], call: Call) -> None:
        self.buffers = buffers  # (index of the module, name): to be put back for a repetition
        self.draws = call.draws
        self.full = call.full  # it draws from Python's or numpy's generator
        self.in_place = False  # its repetitions leave no trace in its modules


class Unit(_core.Unit):
    """One unit of a model: its module, what was learned about it, and how to check it."""

    def __init__(self, name: str, module: nn.Module, param_bytes: int) -> None:
        super().__init__(name, module, module.forward)
        self.param_bytes = param_bytes
        self.recompute = False
        self.excluded: str | None = None  # why it may never be recomputed
        self.learned: dict[bytes, Learned] = {}  # by training flags
        self.measured = Measured()

    def has_cudnn_dropout(self) -> bool:
        """Does it hold a recurrent layer with dropout between its levels?"""
        return any(isinstance(m, nn.RNNBase) and m.dropout > 0 and m.num_layers > 1 for m in self.module.modules())

    def run_checked(
        self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Problem | None, list[torch.Tensor]]:
        """Forward, keeping everything; then a second run that must give the same.

        Returns the output, what is wrong, and the tensors that the first run saved. If nothing is wrong the frame has
        given them up.
        """
        call.observe(None)
        before = _core.tensors_in((args, kwargs))
        frame = _core.Frame(call, self.name, keep=True)
        call.begin()
        with saved_tensors_hooks(frame.pack, _core.unpack):
            output = self.plain(*args, **kwargs)
        call.end()
        saved = frame.held()
        problem = self._find_change(call, before, _core.tensors_in((args, kwargs)), frame)
        if problem is None:
            self.learned[call.flags] = self._learn(call)
            problem = self._compare(call, output, args, kwargs)
        if problem is None:
            frame.release()
        return output, problem, saved

    def _find_change(
        self, call: Call, before: list[torch.Tensor], after: list[torch.Tensor], frame: _core.Frame
    ) -> Problem | None:
        """Did the first run change what a second one would start from?"""
        if len(before) != len(after) or any(a is not b for a, b in zip(before, after)):
            return Problem("it changes the containers of its inputs", warn=False)
        if call.inputs_changed:
            return Problem("it changes its inputs in place", warn=False)
        now = _core.ModuleState(self.module).parameters()
        if len(now) != len(call.parameters) or call.watched_changed:
            return Problem("it changes its parameters, or a tensor that it keeps", warn=False)
        if any(a is not b for a, b in zip(now, call.parameters) if a.is_leaf):
            return Problem("it replaces its parameters", warn=False)
        if frame.changed():
            return Problem("it changes a tensor in place that its backward needs", warn=False)
        if any(device.type == "cuda" for device in call.devices) and self.has_cudnn_dropout():
            return Problem("cuDNN keeps the random state of a recurrent layer's dropout to itself", warn=False)
        return None

    def _learn(self, call: Call) -> Learned:
        """Which buffers must be put back: those that changed (batch norm does so without telling) and small ones."""
        keep = [
            (index, name, module, buffer, copy)
            for index, name, module, buffer, copy in call.buffers
            if tensor_bytes([buffer]) <= SMALL_BUFFER_BYTES
            or module._buffers.get(name) is not buffer
            or not same_bits(buffer, copy)
        ]
        call.keep_buffers({(entry[0], entry[1]) for entry in keep})
        return Learned({(entry[0], entry[1]) for entry in keep}, call)

    def _compare(self, call: Call, output: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Problem | None:
        """Run the unit a second time and compare. Whatever it raises or leaves behind, the first run stands.

        It gets the real inputs and a frame of its own: a tensor of the second run that escapes, by a forward hook that
        collects features, has its whole history. Hooks that it puts on its inputs are taken off again.
        """
        ours = _core.tensors_in(output)
        if not ours:
            return Problem("its output has no tensors that a second run could be compared with", warn=False)
        after = _core.Randomness(call.devices)
        hooks = [(t, set(t._backward_hooks or ())) for t in _core.tensors_in((args, kwargs)) if t.requires_grad]
        frame = _core.Frame(call, self.name)
        call.enter()
        try:
            with saved_tensors_hooks(frame.pack, _core.unpack):
                # Not in this context: who collects outputs through a context variable shall not get them twice.
                second = contextvars.Context().run(self.plain, *args, **kwargs)
            moved = after.moved()
        except Exception as error:
            return Problem(f"a second run raised {type(error).__name__}: {error}", warn=True)
        finally:
            self.learned[call.flags].in_place = not call.leave()
            after.restore()
            for tensor, known in hooks:
                for key in set(tensor._backward_hooks or ()) - known:
                    del tensor._backward_hooks[key]
        theirs = _core.tensors_in(second)
        if moved:
            return Problem("it drew a different number of random values in a second run", warn=True)
        if len(ours) != len(theirs) or not all(same_bits(a, b) for a, b in zip(ours, theirs)):
            return Problem("a second run on the same input gave a different output", warn=True)
        return None


class Measured:
    """What a unit did in one forward."""

    __slots__ = ("boundary_bytes", "calls", "order", "rows", "saved_bytes")

    def __init__(self) -> None:
        self.calls = self.saved_bytes = self.boundary_bytes = self.rows = self.order = 0

    def add(self, inputs: list[torch.Tensor], saved: list[torch.Tensor], seen: set[int]) -> None:
        """Count one call; `seen` has the storages that somebody keeps already."""
        boundary = {address: size for address, size in storages(inputs).items() if address not in seen}
        seen.update(boundary)
        kept = {address: size for address, size in storages(saved).items() if address not in seen}
        self.calls += 1
        self.boundary_bytes += sum(boundary.values())
        self.saved_bytes += sum(boundary.values()) + sum(kept.values())
        self.rows += max((t.numel() // t.shape[-1] for t in inputs if t.dim() and t.shape[-1]), default=1)


class Problem:
    """Why a unit cannot be recomputed. Only what a user did not expect deserves a warning."""

    __slots__ = ("text", "warn")

    def __init__(self, text: str, *, warn: bool) -> None:
        self.text = text
        self.warn = warn
