"""One training done twice, plain and wrapped, and everything that must be the same afterwards.

A case is a function that takes a :class:`Training`. It builds a model, calls ``training.wrap`` where a user would call
``memscale.wrap``, trains, calls ``training.see`` with each loss, and returns what it leaves behind: the model, and
whatever else must be equal. Every optimizer step is recorded with its gradients and the random state. The two results
are then compared object by object (:func:`same`), once while MemScale is attached and again after ``memscale.detach``.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import io
import itertools
import math
import operator
import random
import shutil
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

import memscale
import zoo
from memscale import _core
from memscale._base.vocabulary import ACTIONS
from memscale._run import offloading

# How a case is wrapped: as `memscale.wrap(model)` does by itself, with force_optimize in the mode AGGRESSIVE, with a
# plan that recomputes every layer; and with a sample input. What runs with everything recomputed runs with a mixture of
# all actions, too.
MODES = ("default", "aggressive", "everything")
WITH_SAMPLE = (*MODES, "sample")
MIXED = [action.identifier for action in ACTIONS if action.is_runnable]

_PACKAGE = str(Path(memscale.__file__).parent)
_PLAIN = (type(None), bool, int, complex, str, bytes, enum.Enum, range, slice, torch.dtype, torch.device, torch.Size)
# Modules whose objects are compared by their type alone; this one, since cases keep the training that they are part of.
_OPAQUE = ("torch._dynamo", "torch._C", "torch._inductor", "threading", "_thread", "logging", __name__)
_ADDRESSES = {"_torchdynamo_wrapper_id"}  # attributes that hold the address of an object


def random_state() -> dict[str, Any]:
    """Where the default generators are."""
    return {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": np.random.get_state()}


def seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


# Comparison of two graphs of objects


def is_ours(value: Any) -> bool:
    """Does this object belong to MemScale?"""
    if isinstance(value, types.MethodType):
        value = value.__func__
    if isinstance(value, types.FunctionType):
        return value.__code__.co_filename.startswith(_PACKAGE)
    return type(value).__module__.partition(".")[0] == "memscale"


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


class _Comparison:
    """Walks two graphs of objects in step. Each object of one corresponds to one of the other: what is shared there is
    shared here."""

    def __init__(self, attached: bool) -> None:
        self.attached = attached
        self.partners: dict[int, tuple[Any, Any]] = {}  # the objects themselves, so that no id is used twice
        self.back: dict[int, Any] = {}

    def same(self, a: Any, b: Any, where: str) -> None:
        if a is b and not isinstance(a, torch.Tensor):
            return
        assert _name(type(a)) == _name(type(b)), f"{where}: {type(a)} is now {type(b)}"
        if isinstance(a, _PLAIN):
            assert a == b, f"{where}: {a!r} is now {b!r}"
        elif isinstance(a, float):
            assert a == b or (math.isnan(a) and math.isnan(b)), f"{where}: {a!r} is now {b!r}"
        elif id(a) in self.partners:
            assert self.partners[id(a)][1] is b, f"{where}: another object than elsewhere"
        else:
            assert id(b) not in self.back, f"{where}: the same object as elsewhere"
            self.partners[id(a)] = (a, b)
            self.back[id(b)] = b
            self._contents(a, b, where)

    def _contents(self, a: Any, b: Any, where: str) -> None:
        if type(a) is not type(b):
            self.same(type(a), type(b), f"{where}: class")
        for kinds, compare in self._KINDS:
            if isinstance(a, kinds):
                compare(self, a, b, where)
                return
        if not type(a).__module__.startswith(_OPAQUE):
            self._attributes(a, b, where)

    def _attributes(self, a: Any, b: Any, where: str) -> None:
        for name in ("__dict__", *_slots(type(a))):
            if name != "__weakref__":
                self.same(getattr(a, name, None), getattr(b, name, None), f"{where}.{name}".replace(".__dict__", ""))

    def _module(self, a: nn.Module, b: nn.Module, where: str) -> None:
        ours = {name for name, value in vars(b).items() if self._adds(value)} | _ADDRESSES
        a_vars = {name: value for name, value in vars(a).items() if name not in ours}
        b_vars = {name: value for name, value in vars(b).items() if name not in ours}
        assert list(a_vars) == list(b_vars), f"{where}: attributes {list(a_vars)} are now {list(b_vars)}"
        hook_ids = {key for table in _hook_tables(b_vars) for key, hook in table.items() if self._adds(hook)}
        for name, value in a_vars.items():
            if "_hooks" in name and isinstance(value, dict):  # keys are numbered throughout the process
                assert type(value) is type(b_vars[name]), f"{where}.{name}"
                hooks = [hook for key, hook in b_vars[name].items() if key not in hook_ids]
                self.same(list(value.values()), hooks, f"{where}.{name}")
            else:
                self.same(value, b_vars[name], f"{where}.{name}")

    def _adds(self, value: Any) -> bool:
        """Is this what MemScale adds to modules while it is attached?"""
        return self.attached and is_ours(value)

    def _tensor(self, a: torch.Tensor, b: torch.Tensor, where: str) -> None:
        for name in ("dtype", "shape", "device", "layout", "requires_grad", "is_leaf"):
            before, after = getattr(a, name), getattr(b, name)
            assert before == after, f"{where}: {name} {before} is now {after}"
        if a.layout == torch.strided:
            assert a.stride() == b.stride(), f"{where}: strides {a.stride()} are now {b.stride()}"
        if not a.is_meta:
            zoo.assert_same(a.detach().to_dense(), b.detach().to_dense(), where)
        if a.is_leaf:
            self.same(a.grad, b.grad, f"{where}.grad")
        hooks, hooks_now = a._backward_hooks, b._backward_hooks
        self.same(list((hooks or {}).values()), list((hooks_now or {}).values()), f"{where}: hooks")
        self.same(vars(a), vars(b), where)

    def _mapping(self, a: Mapping[Any, Any], b: Mapping[Any, Any], where: str) -> None:
        assert len(a) == len(b), f"{where}: keys {list(a)} are now {list(b)}"
        for (key, value), (key_now, value_now) in zip(a.items(), b.items()):
            self.same(key, key_now, f"{where}: key {key!r:.60}")
            if key not in _ADDRESSES:
                self.same(value, value_now, f"{where}[{key!r:.60}]")
        self._attributes(a, b, where)

    def _sequence(self, a: Any, b: Any, where: str) -> None:
        assert len(a) == len(b), f"{where}: {len(a)} elements are now {len(b)}"
        for i, (x, y) in enumerate(zip(a, b)):
            self.same(x, y, f"{where}[{i}]")
        self._attributes(a, b, where)

    def _set(self, a: Any, b: Any, where: str) -> None:
        assert len(a) == len(b), f"{where}: {len(a)} elements are now {len(b)}"
        if all(isinstance(value, _PLAIN) for value in itertools.chain(a, b)):
            assert a == b, f"{where}: {a!r} is now {b!r}"

    def _class(self, a: type, b: type, where: str) -> None:
        """Classes that a case defines exist once for each training; their attributes count."""
        assert _name(a) == _name(b), f"{where}: {a} is now {b}"
        names = [name for name in vars(a) if not name.startswith("__")]
        assert names == [name for name in vars(b) if not name.startswith("__")], f"{where}: attributes of the class"
        for name in names:
            self.same(vars(a)[name], vars(b)[name], f"{where}.{name}")

    def _function(self, a: Any, b: Any, where: str) -> None:
        assert a.__code__ is b.__code__, f"{where}: {a} is now {b}"
        cells = [[cell.cell_contents for cell in f.__closure__ or () if _is_full(cell)] for f in (a, b)]
        for part, part_now in ((cells[0], cells[1]), (a.__defaults__, b.__defaults__), (vars(a), vars(b))):
            self.same(part, part_now, f"{where} ({a.__qualname__})")

    def _method(self, a: Any, b: Any, where: str) -> None:
        self.same(a.__func__, b.__func__, where)
        self.same(a.__self__, b.__self__, where)

    def _partial(self, a: Any, b: Any, where: str) -> None:
        for name in ("func", "args", "keywords"):
            self.same(getattr(a, name), getattr(b, name), f"{where}.{name}")

    def _reference(self, a: Any, b: Any, where: str) -> None:
        self.same(a(), b(), where)

    def _handle(self, a: Any, b: Any, where: str) -> None:
        """Of a hook: is it still in its table?"""
        there, there_now = (handle.id in (handle.hooks_dict_ref() or ()) for handle in (a, b))
        assert there == there_now, f"{where}: removed {not there} is now {not there_now}"

    def _array(self, a: Any, b: Any, where: str) -> None:
        assert a.dtype == b.dtype, where
        assert a.shape == b.shape, where
        assert a.tobytes() == b.tobytes(), where

    def _generator(self, a: Any, b: Any, where: str) -> None:
        self.same(_state_of(a), _state_of(b), f"{where}: state")

    def _running(self, a: Any, b: Any, where: str) -> None:
        """A generator: where it is, and what it holds."""
        for frame, frame_now in ((a.gi_frame, b.gi_frame),):
            assert (frame is None) == (frame_now is None), where
            if frame is not None:
                assert frame.f_lasti == frame_now.f_lasti, where
                self.same(dict(frame.f_locals), dict(frame_now.f_locals), where)

    def _iterator(self, a: Any, b: Any, where: str) -> None:
        if hasattr(a, "__length_hint__"):
            assert operator.length_hint(a) == operator.length_hint(b), f"{where}: what is left of an iterator"
        elif " at 0x" not in repr(a):
            assert repr(a) == repr(b), f"{where}: {a!r} is now {b!r}"
        self._attributes(a, b, where)

    def _nothing(self, a: Any, b: Any, where: str) -> None:
        """Nothing of these can be compared beyond their type."""

    _KINDS: tuple[tuple[Any, Callable[..., None]], ...] = (
        (torch.Tensor, _tensor),
        (nn.Module, _module),
        (type, _class),
        ((types.FunctionType,), _function),
        (types.MethodType, _method),
        (functools.partial, _partial),
        ((io.IOBase, types.BuiltinFunctionType, types.ModuleType, property, staticmethod, classmethod), _nothing),
        ((weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet), _nothing),
        (weakref.ref, _reference),
        (RemovableHandle, _handle),
        ((torch.Generator, np.random.Generator, np.random.RandomState, random.Random), _generator),
        (np.ndarray, _array),
        (np.generic, _array),
        ((dict, types.MappingProxyType), _mapping),
        ((list, tuple, collections.deque), _sequence),
        ((set, frozenset), _set),
        (types.GeneratorType, _running),
        (Iterator, _iterator),
    )


def _hook_tables(attributes: dict[str, Any]) -> list[dict[int, Any]]:
    return [value for name, value in attributes.items() if name.endswith("_hooks") and isinstance(value, dict)]


def _slots(cls: type) -> list[str]:
    names: list[str] = []
    for base in cls.__mro__:
        slots = vars(base).get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    return names


def _is_full(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _state_of(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def same(a: Any, b: Any, where: str = "", *, attached: bool = False) -> None:
    """Raises AssertionError, with the place, unless two graphs of objects are the same but for their addresses.

    Tensors are equal bit for bit, plain data by value, modules attribute by attribute with their tables of hooks,
    generators and iterators by their state. What MemScale adds to modules does not count where it is attached to `b`.
    """
    try:
        _Comparison(attached).same(a, b, where)
    except AssertionError as error:
        raise AssertionError(str(error)) from None  # the way to the place is in the message


# One training


class Training:
    """One training, plain or wrapped.

    Attributes:
        folder: an empty folder.
        refused: why MemScale refused the model, if it did.
        recomputed: the names of the layers that were recomputed, in order.
    """

    def __init__(self, mode: str | None, folder: Path) -> None:
        self.mode = mode
        self.folder = folder
        self.refused: str | None = None
        self.recomputed: list[str] = []
        self.record: list[Any] = []
        self._wrapped: list[Any] = []
        zoo.recompute_plan(nn.Linear(1, 1))  # the first one profiles a small model: before the training begins
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()

    def wrap(self, target: Any, sample: Any = None) -> Any:
        """What a user does; nothing in the plain training."""
        if self.mode is None:
            return target
        forced = {"mode": "aggressive", "force_optimize": True} if self.mode == "aggressive" else {}
        config = memscale.Config(enable_logging=False, **forced)
        plan = zoo.recompute_plan(_model_of(target)) if self.mode == "everything" else None
        if self.mode == "mixture":
            model = _model_of(target)
            offloading.OPTIONS["least_bytes"] = 1
            plan = zoo.plan_of(model, random.Random(len(list(model.modules()))).choices(MIXED, k=23))
        try:
            memscale.wrap(target, config, sample_input=sample if self.mode == "sample" else None, plan=plan)
        except memscale.MemScaleError as error:
            self.refused = str(error)
        else:
            self._wrapped.append(target)
            _core.set_observer(lambda unit: self.recomputed.append(unit.name))
        return target

    def see(self, *values: Any) -> None:
        """Losses, and whatever else must be the same at this point."""
        self.record.append([v.detach().clone() if isinstance(v, torch.Tensor) else v for v in values])

    def _see_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [None if p.grad is None else p.grad.detach().clone() for p in parameters]
        self.record.append({"gradients": gradients, "random": random_state()})

    def run(self, case: Callable[[Training], Any]) -> Any:
        seed(0)
        handle = register_optimizer_step_pre_hook(self._see_step)
        try:
            left = case(self)
        finally:
            handle.remove()
            _core.set_observer(None)
            offloading.OPTIONS["least_bytes"] = _core.OFFLOAD_LEAST_BYTES
        return {"record": self.record, "left": left, "random": random_state()}

    def detach(self) -> None:
        for target in self._wrapped:
            memscale.detach(target)


def check(
    case: Callable[[Training], Any],
    mode: str,
    folder: Path,
    *,
    refused: str | None = None,
    recomputes: bool | None = True,
    warns: bool = False,
) -> Training:
    """Train plainly and wrapped, and compare. Returns the wrapped training.

    Args:
        refused: a part of the message with which MemScale must refuse this model.
        recomputes: does the plan that recomputes every layer recompute any here? None if it may.
        warns: may MemScale say that a layer cannot be recomputed?
    """
    expected = Training(None, folder / "files").run(case)
    wrapped = Training(mode, folder / "files")  # the same names, in case a model remembers them
    assert expected["record"], "nothing was recorded"
    with warnings.catch_warnings():
        if warns:
            warnings.simplefilter("ignore", memscale.MemScaleWarning)
        result = wrapped.run(case)
    assert (refused or "") in (wrapped.refused or "")
    assert (refused is None) == (wrapped.refused is None), wrapped.refused
    same(expected, result, "attached", attached=True)
    if mode == "everything" and refused is None and recomputes is not None:
        assert bool(wrapped.recomputed) == recomputes, wrapped.recomputed
    wrapped.detach()
    same(expected, result, "detached")
    _same_keys(expected["left"], result["left"])
    return wrapped


def _same_keys(left: Any, left_now: Any) -> None:
    """The state of every model that was left behind has the same keys and versions."""
    for part, part_now in zip(_models_in(left), _models_in(left_now)):
        state, state_now = part.state_dict(), part_now.state_dict()
        assert list(state) == list(state_now)
        assert state._metadata == state_now._metadata


def _model_of(target: Any) -> nn.Module:
    return target if isinstance(target, nn.Module) else target.model


def _models_in(left: Any) -> list[nn.Module]:
    parts = left.values() if isinstance(left, dict) else [left]
    return [part for part in parts if isinstance(part, nn.Module)]


def fit(
    training: Training,
    model: nn.Module,
    batch: zoo.Batch,
    *,
    loss_of: Callable[[Any], torch.Tensor] = zoo.loss_of,
    around: Callable[[], Any] = contextlib.nullcontext,
    wrap: bool = True,
) -> dict[str, Any]:
    """Wrap a model and train it for three steps; the model and its optimizer.

    Args:
        around: a context for each forward with its loss.
        wrap: wrap the model here?
    """
    args, kwargs = batch
    if wrap:
        training.wrap(model, args or kwargs)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(3):
        with around():
            loss = loss_of(model(*args, **kwargs))
        loss.backward()
        training.see(loss)
        optimizer.step()
        optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


# Cases as tests


class Cases:
    """The cases of one file, each with the modes that it is wrapped in and the options of :func:`check`."""

    def __init__(self) -> None:
        self._parameters: list[Any] = []

    def add(self, name: str, case: Callable[[Training], Any], modes: tuple[str, ...] = MODES, **options: Any) -> None:
        for mode in (*modes, *(["mixture"] if "everything" in modes else [])):
            run = functools.partial(check, case, mode, **options)
            self._parameters.append(pytest.param(run, id=f"{name}-{mode}"))

    def __call__(self, *, modes: tuple[str, ...] = MODES, **options: Any) -> Callable[..., Any]:
        def register(case: Callable[[Training], Any]) -> Callable[[Training], Any]:
            self.add(case.__name__, case, modes, **options)
            return case

        return register

    def parametrize(self, test: Callable[..., Any]) -> Any:
        """The decorator of the test that runs them: ``test(run, tmp_path)``."""
        return pytest.mark.parametrize("run", self._parameters)(test)
