"""Recomputation of one unit: run it again in backward exactly as it ran in forward.

A :class:`Call` remembers what the first run saw (inputs, random state, autocast, training flags, buffers it changes)
and can run the unit once more under the same conditions. The tensors themselves are handled in C (``_core.Frame``).

The first run of a unit is *checked*: everything is kept, as without MemScale, then the unit runs a second time and its
outputs are compared bit for bit. Only a unit that repeats itself gives its tensors up. One that does not is left alone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from . import _core
from ._core import MemScaleError
from ._memory import storages, tensor_bytes

SMALL_BUFFER_BYTES = 64 << 10  # buffers up to this size are always put back, changed or not

_SDP_SWITCHES: list[tuple[Callable[[], bool], Callable[[bool], None]]] = [
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
]
if hasattr(torch.backends.cuda, "cudnn_sdp_enabled"):
    _SDP_SWITCHES.append((torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp))

# The CPU's random generator is one for all threads: whoever runs a unit, or runs it again, has it alone. Not taken for
# units on a GPU, whose backward runs on a thread of its own that must not wait for the one that waits for it.
_random_lock = threading.RLock()

# False inside torch.func transforms, which do not support hooks on saved tensors.
hooks_allowed: Callable[[], bool] = getattr(torch._C._autograd, "_saved_tensors_hooks_is_enabled", lambda: True)


def identity(tensor: Any) -> Any:
    """The unpack hook of tensors that were packed as they are."""
    return tensor


class Buffers:
    """Buffers that a forward may change: their contents before it, to be put back for a second run."""

    __slots__ = ("entries",)

    def __init__(self, where: list[tuple[nn.Module, str]]) -> None:
        self.entries = [
            (module, name, buffer, buffer.detach().clone())
            for module, name in where
            if (buffer := module._buffers.get(name)) is not None
        ]

    def changed(self) -> list[tuple[nn.Module, str]]:
        """Which were replaced or have other contents now? (Batch norm changes its statistics without telling.)"""
        return [
            (module, name)
            for module, name, buffer, before in self.entries
            if module._buffers.get(name) is not buffer or not same_bits(buffer, before)
        ]

    def keep(self, where: list[tuple[nn.Module, str]]) -> None:
        """Forget all but these."""
        wanted = {(id(module), name) for module, name in where}
        self.entries = [entry for entry in self.entries if (id(entry[0]), entry[1]) in wanted]

    def restore(self) -> None:
        """Put them back as they were."""
        for module, name, buffer, before in self.entries:
            module._buffers[name] = buffer
            _overwrite(buffer, before)

    @contextlib.contextmanager
    def put_back(self) -> Iterator[None]:
        """As they were before the first run; afterwards as they are now."""
        now = [(module._buffers[name], buffer.detach().clone()) for module, name, buffer, _ in self.entries]
        try:
            self.restore()
            yield
        finally:
            for (module, name, buffer, _), (current, contents) in zip(self.entries, now):
                _overwrite(buffer, contents)
                module._buffers[name] = current


def _overwrite(buffer: torch.Tensor, contents: torch.Tensor) -> None:
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(buffer):
        buffer.copy_(contents)


def _is_small(buffer: torch.Tensor | None) -> bool:
    return buffer is not None and tensor_bytes([buffer]) <= SMALL_BUFFER_BYTES


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit for bit, NaN included. Tensors without plain memory are compared by torch."""
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device or a.layout != b.layout:
        return False
    if a.numel() == 0 or a.is_meta:
        return True
    if a.layout != torch.strided or a.is_quantized or a.is_nested:
        return bool(torch.equal(a, b))
    flat = [t.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return bool(torch.equal(flat[0], flat[1]))


def _alone(devices: set[torch.device]) -> contextlib.AbstractContextManager[Any]:
    """Keep other threads from drawing meanwhile."""
    return contextlib.nullcontext() if any(d.type == "cuda" for d in devices) else _random_lock


class Conditions:
    """Random state, autocast, attention switches: what a unit's forward depends on beside its inputs."""

    __slots__ = ("autocast", "cache", "rng", "switches")

    def __init__(self, devices: set[torch.device]) -> None:
        self.rng = [(generator, generator.get_state()) for generator in _generators(devices)]
        types = {"cpu", *(device.type for device in devices if device.type == "cuda")}
        self.autocast = [(t, torch.is_autocast_enabled(t), torch.get_autocast_dtype(t)) for t in sorted(types)]
        self.cache = torch.is_autocast_cache_enabled()
        self.switches = [get() for get, _ in _SDP_SWITCHES]

    def restore_rng(self) -> None:
        """Put the generators back where they were."""
        _set_rng(self.rng)

    def same_draws(self) -> bool:
        """Are the generators where they were?"""
        return all(torch.equal(generator.get_state(), state) for generator, state in self.rng)

    def forget_unused_rng(self) -> None:
        """If nothing was drawn since, nothing needs to be put back."""
        if self.same_draws():
            self.rng = []

    @contextlib.contextmanager
    def put_back(self) -> Iterator[None]:
        now = [(generator, generator.get_state()) for generator, _ in self.rng]
        switches = [get() for get, _ in _SDP_SWITCHES]
        with contextlib.ExitStack() as stack:
            for device_type, enabled, dtype in self.autocast:
                current = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
                if current != (enabled, dtype) or (enabled and torch.is_autocast_cache_enabled() != self.cache):
                    stack.enter_context(torch.autocast(device_type, dtype, enabled, self.cache))
            try:
                _set_switches(self.switches, switches)
                self.restore_rng()
                yield
            finally:
                _set_rng(now)
                _set_switches(switches, self.switches)


def _set_rng(states: list[tuple[torch.Generator, torch.Tensor]]) -> None:
    """Set generators that are not there already: on a GPU, setting one starts cuDNN's own dropout anew."""
    for generator, state in states:
        if not torch.equal(generator.get_state(), state):
            generator.set_state(state)


def _set_switches(wanted: list[bool], current: list[bool]) -> None:
    if wanted != current:
        for (_, switch), value in zip(_SDP_SWITCHES, wanted):
            switch(value)


def _generators(devices: set[torch.device]) -> list[torch.Generator]:
    found = [torch.default_generator]
    if torch.cuda.is_initialized():
        found += [
            torch.cuda.default_generators[device.index or 0]
            for device in sorted(devices, key=str)
            if device.type == "cuda"
        ]
    return found


class Unit:
    """One unit of a model: its module, what was learned about it, and how to run it."""

    def __init__(self, name: str, module: nn.Module, param_bytes: int) -> None:
        self.name = name
        self.module = module
        self.param_bytes = param_bytes
        self.plain: Callable[..., Any] = module.forward
        self.modules = list(module.modules())
        self.buffered = [(m, name) for m in self.modules for name in m._buffers]
        self.recompute = False
        self.excluded: str | None = None  # why it may never be recomputed
        self.mutable: dict[tuple[bool, ...], list[tuple[nn.Module, str]]] = {}  # by training flags: buffers it changes
        self.measured = Measured()

    def training_flags(self) -> tuple[bool, ...]:
        return tuple(m.training for m in self.modules)

    def has_cudnn_dropout(self) -> bool:
        """Does it hold a recurrent layer with dropout between its levels?"""
        return any(isinstance(m, nn.RNNBase) and m.dropout > 0 and m.num_layers > 1 for m in self.modules)

    def parameters(self) -> list[torch.Tensor]:
        return [p for m in self.modules for p in m._parameters.values() if p is not None]

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Forward, keeping only what is needed to run it again."""
        flags = self.training_flags()
        call = Call(self, args, kwargs, flags, self.mutable[flags])
        frame = _core.Frame(call, self.name)
        with call.first_run(), saved_tensors_hooks(frame.pack, _core.unpack):
            output = self.plain(*args, **kwargs)
        return output

    def run_checked(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Problem | None, list[torch.Tensor]]:
        """Forward, keeping everything; then a second run that must give the same.

        Returns the output, what is wrong, and the tensors that the first run saved. If nothing is wrong the frame has
        given them up.
        """
        flags = self.training_flags()
        call = Call(self, args, kwargs, flags, self.buffered)
        frame = _core.Frame(call, self.name, keep=True)
        with _alone(call.devices):
            with call.first_run(), saved_tensors_hooks(frame.pack, _core.unpack):
                output = self.plain(*args, **kwargs)
            saved = frame.held()
            problem = call.find_problem(frame, (args, kwargs), output)
        if problem is None:
            changed = {(id(module), name) for module, name, _, _ in call.buffers.entries}
            self.mutable[flags] = [
                (module, name)
                for module, name in self.buffered
                if (id(module), name) in changed or _is_small(module._buffers[name])
            ]
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
        "args",
        "buffers",
        "conditions",
        "devices",
        "flags",
        "kwargs",
        "parameters",
        "tensors",
        "unit",
        "versions",
    )

    def __init__(
        self,
        unit: Unit,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        flags: tuple[bool, ...],
        buffers: list[tuple[nn.Module, str]],
    ) -> None:
        self.unit = unit
        self.flags = flags
        self.args, self.kwargs, self.tensors = _core.snapshot_inputs(args, kwargs)
        self.parameters = unit.parameters()
        self.versions = _core.versions(self.tensors), _core.versions(self.parameters)
        self.devices = {t.device for t in (*self.tensors, *self.parameters)}
        self.buffers = Buffers(buffers)

    @contextlib.contextmanager
    def first_run(self) -> Iterator[None]:
        """Around the first run: what it depends on is noted as it begins."""
        with _alone(self.devices):
            self.conditions = Conditions(self.devices)
            yield
            self.conditions.forget_unused_rng()

    def __call__(self, frame: _core.Frame) -> None:
        """Run the unit again; what it saves goes to the frame."""
        self._check_unchanged()
        with contextlib.suppress(_core.StopRecompute), self._again(frame.collect, identity):
            self.unit.plain(*self.args, **self.kwargs)

    @contextlib.contextmanager
    def _again(self, pack: Callable[..., Any], unpack: Callable[..., Any]) -> Iterator[None]:
        flags = self.unit.training_flags()
        with _alone(self.devices), self.conditions.put_back(), self.buffers.put_back(), torch.enable_grad():
            try:
                self._set_training(self.flags, flags)
                with saved_tensors_hooks(pack, unpack):
                    yield
            finally:
                self._set_training(flags, self.flags)

    def _set_training(self, wanted: tuple[bool, ...], current: tuple[bool, ...]) -> None:
        if wanted != current:
            for module, training in zip(self.unit.modules, wanted):
                module.training = training

    def _check_unchanged(self) -> None:
        what = None
        if _core.versions(self.tensors) != self.versions[0]:
            what = "an input"
        elif _core.versions(self.parameters) != self.versions[1]:
            what = "a parameter"
        if what is not None:
            raise MemScaleError(
                f"{what} of unit '{self.unit.name}' was modified by an inplace operation after its forward, so the "
                "unit cannot be computed again for backward. Do not change it before backward (a second backward after "
                "optimizer.step() does that, too), or train with enable_checkpointing=False."
            )

    def find_problem(self, frame: _core.Frame, given: Any, output: Any) -> Problem | None:
        """Run the unit a second time; what keeps it from being recomputed, or None."""
        now = _core.tensors_in(given)
        if len(now) != len(self.tensors) or any(a is not b for a, b in zip(now, self.tensors)):
            return Problem("it changes the containers of its inputs", warn=False)
        if _core.versions(self.tensors) != self.versions[0]:
            return Problem("it changes its inputs in place", warn=False)
        if frame.changed():
            return Problem("it changes a tensor in place that its backward needs", warn=False)
        if any(device.type == "cuda" for device in self.devices) and self.unit.has_cudnn_dropout():
            return Problem("cuDNN keeps the random state of a recurrent layer's dropout to itself", warn=False)
        self.buffers.keep(self.buffers.changed())
        after = Conditions(self.devices)
        try:
            with self._again(_core.drop, _core.unpack):
                second = self.unit.plain(*self.args, **self.kwargs)
                repeated = after.same_draws()
        except Exception as error:  # whatever it is, the first run stands
            return Problem(f"a second run raised {type(error).__name__}: {error}", warn=True)
        finally:
            after.restore_rng()
        ours, theirs = _core.tensors_in(output), _core.tensors_in(second)
        if not repeated:
            return Problem("it drew a different number of random values in a second run", warn=True)
        if len(ours) != len(theirs) or not all(same_bits(a, b) for a, b in zip(ours, theirs)):
            return Problem("a second run on the same input gave a different output", warn=True)
        return None
