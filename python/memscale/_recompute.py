"""Recomputation of one unit: run it again in backward exactly as it ran in forward.

A :class:`Call` remembers what the first run saw: inputs, the state of the unit's modules (parameters, buffers, training
flags, hooks, attributes), random generators, torch's switches. It can run the unit once more under the same conditions,
without a trace in the modules. The tensors themselves are handled in C (``_core.Frame``).

The first run of a unit is *checked*: everything is kept, as without MemScale, then the unit runs a second time and its
outputs are compared bit for bit. Only a unit that repeats itself gives its tensors up. One that does not is left alone.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from . import _core
from ._conditions import Randomness, Switches, alone
from ._core import MemScaleError
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

    __slots__ = ("buffers", "draws")

    def __init__(self, buffers: set[tuple[int, str]], randomness: Randomness) -> None:
        self.buffers = buffers  # (index of the module, name): to be put back for a repetition
        self.draws = bool(randomness.states)


class Unit:
    """One unit of a model: its module, what was learned about it, and how to run it."""

    def __init__(self, name: str, module: nn.Module, param_bytes: int) -> None:
        self.name = name
        self.module = module
        self.param_bytes = param_bytes
        self.plain: Callable[..., Any] = module.forward
        self.recompute = False
        self.excluded: str | None = None  # why it may never be recomputed
        self.learned: dict[bytes, Learned] = {}  # by training flags
        self.measured = Measured()
        self.on_backward: Callable[[], None] | None = None  # called before the next repetition
        self.lock = threading.RLock()  # one repetition at a time: its modules live in another state meanwhile

    def has_cudnn_dropout(self) -> bool:
        """Does it hold a recurrent layer with dropout between its levels?"""
        return any(isinstance(m, nn.RNNBase) and m.dropout > 0 and m.num_layers > 1 for m in self.module.modules())

    def run(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Forward, keeping only what is needed to run it again."""
        learned = self.learned[call.flags]
        call.observe(learned)
        frame = _core.Frame(call, self.name)
        lock = alone(call.devices) if learned.draws else contextlib.nullcontext()
        with lock, call.first_run(), saved_tensors_hooks(frame.pack, _core.unpack):
            return self.plain(*args, **kwargs)

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
        with call.first_run(), saved_tensors_hooks(frame.pack, _core.unpack):
            output = self.plain(*args, **kwargs)
        saved = frame.held()
        problem = call.find_change(before, _core.tensors_in((args, kwargs)), frame)
        if problem is None:
            self.learned[call.flags] = call.learn()
            problem = call.compare(output, args, kwargs)
        if problem is None:
            frame.release()
        return output, problem, saved


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


class Call:
    """One call of a unit, and how to repeat it."""

    __slots__ = (
        "args", "buffers", "devices", "flags", "grad_flags", "kwargs", "opaque", "parameters", "randomness", "state",
        "switches", "tensors", "unit", "versions", "watched",
    )  # fmt: skip

    def __init__(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.unit = unit
        self.args, self.kwargs, self.tensors, self.opaque = _core.snapshot_inputs(args, kwargs)
        self.state = _core.ModuleState(unit.module)
        self.flags = self.state.training()
        self.parameters = self.state.parameters()
        self.devices = {t.device for t in (*self.tensors, *self.parameters)}

    # The first run

    def observe(self, learned: Learned | None) -> None:
        """Note what must be put back or must not change; without anything learned, every buffer."""
        self.buffers: list[tuple[int, str, nn.Module, torch.Tensor, torch.Tensor]] = []
        self.watched = self.parameters + self.state.tensors()
        for index, module in enumerate(self.state.modules()):
            for name, buffer in module._buffers.items():
                if buffer is None:
                    continue
                if learned is None or (index, name) in learned.buffers:
                    self.buffers.append((index, name, module, buffer, buffer.detach().clone()))
                else:
                    self.watched.append(buffer)
        self._note_versions()
        self.grad_flags = _core.grad_flags(self.parameters)
        self.switches = Switches(self.devices)

    def _note_versions(self) -> None:
        self.versions = _core.versions(self.tensors), _core.versions(self.watched)

    @contextlib.contextmanager
    def first_run(self) -> Iterator[None]:
        """Around the first run: where the generators are as it begins."""
        self.randomness = Randomness(self.devices)
        yield
        self.randomness.keep_moved()

    def find_change(self, before: list[torch.Tensor], after: list[torch.Tensor], frame: _core.Frame) -> Problem | None:
        """Did the first run change what a second one would start from?"""
        if len(before) != len(after) or any(a is not b for a, b in zip(before, after)):
            return Problem("it changes the containers of its inputs", warn=False)
        if _core.versions(self.tensors) != self.versions[0]:
            return Problem("it changes its inputs in place", warn=False)
        now = _core.ModuleState(self.unit.module).parameters()
        if len(now) != len(self.parameters) or _core.versions(self.watched) != self.versions[1]:
            return Problem("it changes its parameters, or a tensor that it keeps", warn=False)
        if any(a is not b for a, b in zip(now, self.parameters) if a.is_leaf):
            return Problem("it replaces its parameters", warn=False)
        if frame.changed():
            return Problem("it changes a tensor in place that its backward needs", warn=False)
        if any(device.type == "cuda" for device in self.devices) and self.unit.has_cudnn_dropout():
            return Problem("cuDNN keeps the random state of a recurrent layer's dropout to itself", warn=False)
        return None

    def learn(self) -> Learned:
        """Which buffers must be put back: those that changed (batch norm does so without telling) and small ones."""
        keep = [
            entry
            for entry in self.buffers
            if tensor_bytes([entry[3]]) <= SMALL_BUFFER_BYTES
            or entry[2]._buffers.get(entry[1]) is not entry[3]
            or not same_bits(entry[3], entry[4])
        ]
        kept = {(entry[0], entry[1]) for entry in keep}
        self.watched += [entry[3] for entry in self.buffers if (entry[0], entry[1]) not in kept]
        self.buffers = keep
        self._note_versions()
        return Learned(kept, self.randomness)

    # A repetition

    def __call__(self, frame: _core.Frame) -> None:
        """Run the unit again; what it saves goes to the frame."""
        if self.unit.on_backward is not None:
            self.unit.on_backward()
        self._check_unchanged()
        with contextlib.suppress(_core.StopRecompute), self._again(), saved_tensors_hooks(frame.collect, identity):
            self.unit.plain(*self.args, **self.kwargs)

    @contextlib.contextmanager
    def _again(self) -> Iterator[None]:
        random = alone(self.devices) if self.randomness.states else contextlib.nullcontext()
        with self.unit.lock, random, self.switches.put_back(), self.randomness.put_back(), torch.enable_grad():
            now = _core.grad_flags(self.parameters)
            try:
                self.state.enter()
                for _, name, module, _, before in self.buffers:
                    module._buffers[name] = before.clone()
                self._set_grad_flags(self.grad_flags, now)
                yield
            finally:
                self.state.leave()
                self._set_grad_flags(now, self.grad_flags)

    def _set_grad_flags(self, wanted: bytes, current: bytes) -> None:
        if wanted != current:
            for parameter, flag in zip(self.parameters, wanted):
                if parameter.is_leaf:
                    parameter.requires_grad_(bool(flag))

    def _check_unchanged(self) -> None:
        what = None
        if _core.versions(self.tensors) != self.versions[0]:
            what = "an input"
        elif _core.versions(self.watched) != self.versions[1]:
            what = "a parameter or buffer"
        if what is not None:
            raise MemScaleError(
                f"{what} of unit '{self.unit.name}' was modified by an inplace operation after its forward, so the "
                "unit cannot be computed again for backward. Do not change it before backward (a second backward after "
                "optimizer.step() does that, too), or train with enable_checkpointing=False."
            )

    def compare(self, output: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Problem | None:
        """Run the unit a second time and compare. Whatever it raises or leaves behind, the first run stands.

        It gets the real inputs and a frame of its own: a tensor of the second run that escapes, by a forward hook that
        collects features, has its whole history. Hooks that it puts on its inputs are taken off again.
        """
        ours = _core.tensors_in(output)
        if not ours:
            return Problem("its output has no tensors that a second run could be compared with", warn=False)
        after = Randomness(self.devices)
        hooks = [(t, set(t._backward_hooks or ())) for t in _core.tensors_in((args, kwargs)) if t.requires_grad]
        frame = _core.Frame(self, self.unit.name)
        try:
            with self._again(), saved_tensors_hooks(frame.pack, _core.unpack):
                # Not in this context: who collects outputs through a context variable shall not get them twice.
                second = contextvars.Context().run(self.unit.plain, *args, **kwargs)
                moved = after.moved()
        except Exception as error:
            return Problem(f"a second run raised {type(error).__name__}: {error}", warn=True)
        finally:
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
