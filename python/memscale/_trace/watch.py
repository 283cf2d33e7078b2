"""The user's own step, traced while it runs: forward, backward and the optimizer's step, with every unit recomputed.

Where a step cannot be analysed in a child process, this is how it becomes known. The recorder is a dispatch mode. It is
pushed when the model's forward begins and stays until the optimizer's step is over, since autograd's engine takes the
modes with it that are on the stack when backward is called. If another forward begins before that (gradients are
accumulated), it is taken off, and pushed once more for the optimizer's step. It holds no tensor, computes nothing, and
if something goes wrong inside it, the step goes on unwatched.

Units run checked, as always for the first time: everything that a unit saves is kept until it has been recomputed and
compared. In a later step these tensors die earlier, so the moment at which nothing but the check holds a tensor is
noted as its end.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _pop_mode, _push_mode

from .. import _core
from .._base.optimizer_hooks import remove_hooks
from .._base.vocabulary import BACKWARD, BUFFER, END, FORWARD, INPUT, LOSS, OPTIMIZER_FIRST, PARAMETER
from .recorder import Recorder, Trace

_DETACH = torch.ops.aten.detach.default
_FUSED = "fused kernel"  # of compiled code
_FIRST_RUN, _SECOND_RUN = 0, 1  # stages of a check (_core.Unit.on_check)


class WatchingRecorder(Recorder):
    """Records operations on the user's tensors, which it leaves as they are."""

    def __init__(self, trace: Trace, device_type: str) -> None:
        super().__init__(trace, device_type, True, set())
        self.is_paused = False
        self.has_backward = False  # one that came to its end
        self.error: Exception | None = None
        self.has_fused = False  # is some of the code compiled?
        self._held: dict[int, int] = {}  # storages that a check holds, and by how many tensors
        self._ends: list[tuple[int, int]] = []  # where in the trace nothing else held a storage any more
        self._ended: set[int] = set()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """torch.compile would give up on code that runs for the first time under a dispatch mode, for good."""
        return True

    is_infra_mode = ignore_compile_internals  # what older versions of torch ask

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if not self.is_paused:
            with self.guarded():
                if func is _DETACH:
                    self.note_detach(args[0])
                else:
                    self._note(func, args, kwargs, output)
        return output

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """What goes wrong in here is not the user's problem."""
        try:
            yield
        except Exception as error:
            self.error, self.is_paused = error, True

    def _note(self, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        is_backward = torch._C._current_graph_task_id() != -1
        if is_backward and not self.in_backward:
            self.phase(BACKWARD)
            self.in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
        elif self.in_backward and not is_backward:
            self.move_to(-1)
        if self.has_fused:
            self._note_fused(args)
        in_place = self._in_place(func, args, kwargs) if is_backward else None
        if in_place is not None:
            self._note_in_place(in_place, args, kwargs, output)
        else:
            self._record(func, args, kwargs, output)
        self._note_ends()

    def _end_backward(self) -> None:
        """Called by torch's engine, unless backward raises."""
        self.has_backward = True

    def _find_unit(self) -> None:
        if torch._C._current_graph_task_id() != -1:
            super()._find_unit()

    def _note_in_place(self, func: Any, args: Any, kwargs: Any, output: torch.Tensor) -> None:
        """Without a dispatch mode this operation changes its first operand, which is then the result."""
        old = args[0]
        self._record(func, args, kwargs, old)
        self._replace(old, output)

    # What a check holds

    def note_save(self, call: _core.Call, index: int, tensor: torch.Tensor) -> None:
        """A unit saves a tensor, in forward or in its recomputation."""
        if self.is_paused:
            return
        with self.guarded():
            if self.has_fused:
                self._note_fused((tensor,))
            super().note_save(call, index, tensor)
            if not self._recomputing and self.number(tensor) >= 0:
                address = tensor.untyped_storage()._cdata
                self._held[address] = self._held.get(address, 0) + 1

    def note_inputs(self, tensors: list[torch.Tensor]) -> None:
        if self.error is None:
            with self.guarded():
                super().note_inputs(tensors)

    def note_gradients(self, inputs: tuple[torch.Tensor | None, ...], outputs: Any) -> None:
        """A node of the graph has computed these."""
        if not self.is_paused:
            with self.guarded():
                self._note_fused(inputs)

    def _note_fused(self, values: Iterable[Any]) -> None:
        """Compiled code runs kernels of its own past torch's dispatcher: they made what was not seen before. That they
        read as much as they write is a guess."""
        for tensor in values:
            if isinstance(tensor, torch.Tensor) and not self._knows(tensor):
                self._record(_FUSED, (tensor,), None, tensor)

    def _knows(self, tensor: torch.Tensor) -> bool:
        try:
            return tensor.untyped_storage()._cdata in self._numbers
        except (RuntimeError, NotImplementedError):
            return True

    def _note_ends(self) -> None:
        for address, n in list(self._held.items()):
            index = self._numbers.get(address, -1)
            if index < 0:  # it has died: there is nothing at this address to be counted
                del self._held[address]
            elif torch._C._storage_Use_Count(address) <= n:
                del self._held[address]
                self._ends.append((len(self.trace.events), index))
                self._ended.add(index)

    def settle_ends(self, *, are_released: bool) -> None:
        """A check is over: its tensors were released, or stay until backward."""
        self._note_ends()
        events = self.trace.events
        for position, index in reversed(self._ends) if are_released else ():
            events[position:position] = type(events)("q", (_core.TRACE_FREE, index, 0))
        if not are_released:
            self._ended.difference_update(index for _, index in self._ends)
        self._ends.clear()
        self._held.clear()

    def _note_death(self, index: int) -> None:
        if index not in self._ended:
            self.trace.events.extend((_core.TRACE_FREE, index, int(self.has_fused and _is_fused_node_running())))


def _is_fused_node_running() -> bool:
    """Is it the backward of compiled code that runs? It lets go of what it saved while it runs."""
    return _is_fused_node(torch._C._current_autograd_node())


def _is_fused_node(node: Any) -> bool:
    return type(node).__name__ == "CompiledFunctionBackward"


class Watch:
    """Watches one step of a model.

    Attributes:
        recorder: what is seen.
        is_recording: forward or backward is being recorded.
        is_over: there is nothing more to see.
        optimizers: whose steps were seen.
    """

    def __init__(self, model: nn.Module, units: Iterable[_core.Unit], device: torch.device) -> None:
        self.recorder = WatchingRecorder(Trace(), device.type)
        self.is_recording = self.is_over = False
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self._units = list(units)
        self.recorder.has_fused = any(unit.has_compiled for unit in self._units)
        self._wanted = {id(p): p for p in model.parameters() if p.requires_grad}
        this = weakref.ref(self)  # torch's hooks keep nothing alive
        hooks = [
            register_optimizer_step_pre_hook(lambda *step: _call(this, Watch._begin_step, *step)),
            register_optimizer_step_post_hook(lambda *step: _call(this, Watch._end_step, *step)),
        ]
        self._clean = weakref.finalize(self, _clean, self.recorder, hooks)
        self._clean.atexit = False
        with self.recorder.guarded():
            for p in model.parameters():
                self.recorder.number(p, PARAMETER)
                if p.grad is not None:
                    self.recorder.number(p.grad, BUFFER)
            for buffer in model.buffers():
                self.recorder.number(buffer, BUFFER)

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [optimizer for reference in self._optimizers if (optimizer := reference()) is not None]

    # The step, in its order

    def begin_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        recorder = self.recorder
        with recorder.guarded():
            for tensor in _core.tensors_in((args, kwargs)):
                recorder.number(tensor, INPUT)
            recorder.phase(FORWARD)
        for index, unit in enumerate(self._units):
            unit.on_save = recorder.note_save
            unit.put_inputs = recorder.note_inputs
            unit.on_backward = functools.partial(self._begin_recomputation, index)
            unit.on_end = functools.partial(recorder.recompute_unit, -1)
            unit.on_check = self._change_stage
        recorder.__enter__()
        self.is_recording = True

    @contextlib.contextmanager
    def inside(self, index: int) -> Iterator[None]:
        """Around the forward of a unit."""
        recorder = self.recorder
        outer = recorder.unit
        if recorder.is_paused or recorder.in_backward or outer == index:
            yield
            return
        recorder.move_to(index)
        recorder.begin_nodes(index)
        try:
            yield
        finally:
            recorder.move_to(outer)
            recorder.begin_nodes(outer)

    def run_checked(
        self, index: int, call: _core.Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[str, bool] | None, list[torch.Tensor]]:
        """``call.run_checked``; the copies that a call makes first are not part of the plain step."""
        recorder = self.recorder
        recorder.recompute_unit(index)
        are_released = False
        try:
            output, problem, saved = call.run_checked(args, kwargs)
            are_released = problem is None
            self._see_gradients(output)
        finally:
            with recorder.guarded():
                recorder.settle_ends(are_released=are_released)
        return output, problem, saved

    def _see_gradients(self, output: Any) -> None:
        """Compiled code allocates past torch's dispatcher: its gradients are seen where they leave it."""
        for tensor in _core.tensors_in(output):
            if _is_fused_node(tensor.grad_fn):
                tensor.grad_fn.register_hook(self.recorder.note_gradients)

    def end_forward(self) -> None:
        if not self.recorder.in_backward:
            self.recorder.phase(LOSS)

    def _change_stage(self, stage: int) -> None:
        if stage == _FIRST_RUN:
            self.recorder.recompute_unit(-1)
        self.recorder.is_paused = self.recorder.error is not None or stage == _SECOND_RUN

    def _begin_recomputation(self, index: int) -> None:
        self.recorder.move_to(index)
        self.recorder.recompute_unit(index)

    def end_backward(self) -> bool:
        """Another forward begins: what was recorded is kept for the optimizer's step. False: no backward came to its
        end."""
        self._take_off()
        return self.recorder.has_backward

    def _begin_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        if self.is_over or not self._is_ours(optimizer):
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None or self.recorder.has_backward:
            self._begin_update(optimizer)
            return None

        @functools.wraps(closure)
        def watched(*inputs: Any, **named: Any) -> Any:  # forward and backward are in there
            result = closure(*inputs, **named)
            self._begin_update(optimizer)
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return (args[0], watched, *args[2:]), kwargs

    def _begin_update(self, optimizer: torch.optim.Optimizer) -> None:
        recorder = self.recorder
        if not recorder.has_backward or self.is_over:
            return
        self._take_off()
        with recorder.guarded():
            for tensor in _core.tensors_in([list(state.values()) for state in optimizer.state.values()]):
                recorder.number(tensor, BUFFER)
            recorder.phase(OPTIMIZER_FIRST)
        self._optimizers.append(weakref.ref(optimizer))
        recorder.__enter__()

    def _end_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self.is_over or optimizer not in self.optimizers:
            return
        self._take_off()
        stepped = {id(p) for seen in self.optimizers for group in seen.param_groups for p in group["params"]}
        missing = [p for key, p in self._wanted.items() if key not in stepped and p.grad is not None]
        if not missing:
            self.finish()

    def _is_ours(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(id(p) in self._wanted for group in optimizer.param_groups for p in group["params"])

    def finish(self) -> None:
        """Watch no more. Does nothing a second time."""
        if self.is_over:
            return
        self.is_over = True
        self._take_off()
        self._wanted.clear()
        with self.recorder.guarded():
            self.recorder.phase(END)
        self.recorder.stop()
        self.recorder.is_paused = True  # where it could not be taken off, as inside of backward

    def close(self) -> None:
        """Take everything away that is left in torch."""
        self.finish()
        self._clean()

    def _take_off(self) -> None:
        """Take the recorder off the stack of modes, and the observers off the units."""
        self.is_recording = False
        _take_off(self.recorder)
        for unit in self._units:
            unit.on_save = unit.put_inputs = unit.on_backward = unit.on_end = unit.on_check = None


def _call(this: weakref.ref[Watch], method: Callable[..., Any], *step: Any) -> Any:
    watch = this()
    return None if watch is None else method(watch, *step)


def _clean(recorder: WatchingRecorder, hooks: list[Any]) -> None:
    """What a watch leaves in torch, taken away; also where its model died before the step was over."""
    _take_off(recorder)
    remove_hooks(hooks)


def _take_off(recorder: WatchingRecorder) -> None:
    """Take a recorder off this thread's stack of modes, wherever it is there."""
    if recorder not in dispatch_modes():
        return
    above = []
    while dispatch_modes()[-1] is not recorder:  # pushed by others in between
        above.append(_pop_mode())
    recorder.__exit__(None, None, None)
    for mode in reversed(above):
        _push_mode(mode)


def dispatch_modes() -> list[Any]:
    """The dispatch modes on this thread's stack."""
    return [torch._C._get_dispatch_stack_at(i) for i in range(torch._C._len_torch_dispatch_stack())]


def is_watching(mode: Any) -> bool:
    """Is this dispatch mode one of ours?"""
    return isinstance(mode, WatchingRecorder)
