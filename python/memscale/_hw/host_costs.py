"""Measures what the host takes for the operations of a training step, by kind and by who calls them.

A few stacks of plain modules run on tensors so small that the host is the limit, forward and backward: one of views,
one of pointwise operations, and one of transformer blocks, which also runs with its blocks recomputed by MemScale.
AdamW updates the parameters of the blocks. Operations are counted by a dispatch mode. A round runs all of them, one
after the other, so that a machine that slows down for a while spoils some rounds and not the result. All of it runs on
one thread: the cores of a shared machine differ in speed, and costs are found as differences.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from .. import _core

FIELDS = (
    "dispatch_ns",
    "product_ns",
    "view_ns",
    "backward_ns",
    "backward_product_ns",
    "backward_view_ns",
    "list_tensor_ns",
    "parameter_ns",
    "saved_tensor_ns",
    "recomputation_ns",
)
# Models of transformers have more Python around each layer than the blocks here: masks, keyword arguments, decorators.
MODEL_CODE = 1.6
# A step of a model takes more than these stacks show, whose few modules stay in the caches, and which run without
# autocast. On hosts of an H200, steps of 18 models took 1.0 to 1.5 times as long, all kinds of costs alike, and more in
# minutes in which the host was slow: a slowdown that is predicted too low breaks a promise.
IN_MODELS = {"cuda": 1.4, "cpu": 1.2}
# What a recomputed unit costs beyond its operations and saved tensors, in saved tensors. The two are hard to tell
# apart: units of two blocks instead of one take a few percent less, and of a unit's cost the state of generators, which
# dropout needs, and keyword inputs are about six saved tensors.
_UNIT_IN_SAVED = 14
_BATCH, _LENGTH, _WIDTH, _HEADS, _DEPTH = 2, 8, 32, 2, 8
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
_UNALIASED_VIEWS = ("_unsafe_view", "_reshape_alias")  # views by what they do, not by their schema


# The stacks


class _Views(nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = x.transpose(0, 1).view(_LENGTH, _BATCH, _WIDTH).transpose(0, 1)
        return x


class _Pointwise(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.activation = nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.5 * self.activation(x * 0.5)


class _Attention(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(_WIDTH, _WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:-1], _HEADS, -1)
        query, key, value = (layer(x).view(shape).transpose(1, 2) for layer in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.transpose(1, 2).reshape(x.shape))


class _Mlp(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.up, self.activation, self.down = nn.Linear(_WIDTH, _WIDTH), nn.GELU(), nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.activation(self.up(x)))


class _Block(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(_WIDTH) for _ in range(2))
        self.attention, self.mlp, self.dropout = _Attention(), _Mlp(), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.norms[0](x)))
        return x + self.dropout(self.mlp(self.norms[1](x)))


class _Blocks(nn.Module):  # type: ignore[misc]
    """Blocks that get keyword inputs, as those of most models do: a recomputation has to keep them."""

    def __init__(self, blocks: Iterable[nn.Module], device: torch.device) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.mask, self.positions = (torch.ones(_BATCH, _LENGTH, device=device) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, mask=self.mask, positions=self.positions)
        return x


def _stack(kind: Callable[[], nn.Module], depth: int, device: torch.device) -> nn.Sequential:
    """Without initialization, which would draw from torch's generators."""
    with torch.device("meta"):
        stack = nn.Sequential(*(kind() for _ in range(depth)))
    stack.to_empty(device=device)
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.fill_(0.01)
    return stack


# Counting


@dataclasses.dataclass
class _Counts:
    """How many operations there are of each kind, and how many tensors are in lists that they take."""

    other: int = 0
    product: int = 0
    view: int = 0
    listed: int = 0

    @property
    def all(self) -> int:
        return self.other + self.product + self.view


class _Counter(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.counts = _Counts()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        alias = func._schema.returns[0].alias_info if func._schema.returns else None
        if name in _UNALIASED_VIEWS or (alias is not None and not alias.is_write):
            self.counts.view += 1
        elif name in _PRODUCTS or "scaled_dot_product" in name:
            self.counts.product += 1
        else:
            self.counts.other += 1
        if name.startswith("_foreach_"):
            self.counts.listed += len(_core.tensors_in((args, kwargs or {})))
        return func(*args, **(kwargs or {}))


def _count(call: Callable[[], object]) -> _Counts:
    counter = _Counter()
    with counter:
        call()
    return counter.counts


# Running


class _Run:
    """A stack, and how long its forward and its backward took last."""

    def __init__(self, stack: nn.Module, device: torch.device, wait: Callable[[], None]) -> None:
        self.stack, self.wait = stack, wait
        self.input = torch.full((_BATCH, _LENGTH, _WIDTH), 0.5, device=device, requires_grad=True)
        self.gradient = torch.ones_like(self.input)
        self.forward_ns = self.backward_ns = 0

    def step(self) -> None:
        self.wait()
        start = time.perf_counter_ns()
        output = self.stack(self.input)
        middle = time.perf_counter_ns()
        with torch.autograd.set_multithreading_enabled(False):  # as MemScale runs it
            output.backward(self.gradient)
        end = time.perf_counter_ns()
        self.forward_ns, self.backward_ns = middle - start, end - middle
        self.clear()

    def time_forward(self) -> int:
        self.wait()
        start = time.perf_counter_ns()
        self.stack(self.input)
        return time.perf_counter_ns() - start

    def clear(self) -> None:
        self.wait()
        self.stack.zero_grad()
        self.input.grad = None

    def count(self) -> tuple[_Counts, _Counts]:
        """Of forward, and of backward."""
        outputs: list[torch.Tensor] = []
        forward = _count(lambda: outputs.append(self.stack(self.input)))
        backward = _count(lambda: outputs.pop().backward(self.gradient))
        self.clear()
        return forward, backward

    def count_saved(self) -> int:
        """Tensors that forward saves for backward, other than parameters, which need not be recomputed."""
        n = 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal n
            n += not isinstance(tensor, nn.Parameter)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            self.stack(self.input)
        return n


class _Recomputed(nn.Module):  # type: ignore[misc]
    """A module that runs as a recomputed unit."""

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__()
        self.unit = _core.Unit(name, module, module.forward)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = self.unit.run(args, kwargs)
        return result.run_checked(args, kwargs)[0] if type(result) is _core.Call else result


class _Steps:
    """AdamW on the parameters of a stack: how long a step and zero_grad() took last."""

    def __init__(self, stack: nn.Module, wait: Callable[[], None], **options: bool) -> None:
        self.wait = wait
        self.parameters = list(stack.parameters())
        self.gradients = [torch.zeros_like(p) for p in self.parameters]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=0.0, **options)
        self.ns = 0

    def step(self) -> None:
        for parameter, gradient in zip(self.parameters, self.gradients):
            parameter.grad = gradient
        self.wait()
        start = time.perf_counter_ns()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.ns = time.perf_counter_ns() - start

    def count(self) -> _Counts:
        for parameter, gradient in zip(self.parameters, self.gradients):
            parameter.grad = gradient
        counts = _count(self.optimizer.step)
        self.optimizer.zero_grad()
        return counts


class HostBench:
    """Everything that is timed, on one device. ``wait`` returns when the device has done what was queued."""

    def __init__(self, device: torch.device, wait: Callable[[], None]) -> None:
        self._in_models = IN_MODELS[device.type]
        layers = list(_stack(_Block, _DEPTH, device))
        units = [_Recomputed(str(i), layer) for i, layer in enumerate(layers)]
        stacks: dict[str, nn.Module] = {
            "views": _stack(_Views, _DEPTH, device),
            "pointwise": _stack(_Pointwise, _DEPTH, device),
            "blocks": _Blocks(layers, device),
            "units": _Blocks(units, device),
        }
        self._runs = {name: _Run(stack, device, wait) for name, stack in stacks.items()}
        blocks = self._runs["blocks"]
        self._steps = {name: _Steps(blocks.stack, wait, **{name: True}) for name in ("foreach", "fused")}
        for _ in range(3):  # the first ones load kernels and check the units
            self.round()
        self._counts = {name: self._runs[name].count() for name in ("views", "pointwise", "blocks")}
        self._n_saved = blocks.count_saved()
        self._listed = {name: steps.count() for name, steps in self._steps.items()}

    def round(self) -> dict[str, int]:
        """Run everything once; what each part took, in nanoseconds."""
        times = {}
        for name, run in self._runs.items():
            run.step()
            times[name], times[f"{name} backward"] = run.forward_ns, run.backward_ns
        with torch.no_grad():
            times["views without autograd"] = self._runs["views"].time_forward()
        for name, steps in self._steps.items():
            steps.step()
            times[name] = steps.ns
        return times

    def costs(self, times: Mapping[str, float]) -> dict[str, int]:
        """The cost of each kind in nanoseconds, from what the parts took."""
        views = self._counts["views"][0].all
        costs = self._kinds(0, times["views"] / views, times["pointwise"], times["blocks"])
        of_view = times["views without autograd"] / views
        costs += self._kinds(1, of_view, times["pointwise backward"], times["blocks backward"])
        costs += self._optimizer(times["foreach"], times["fused"])
        costs += self._recomputation(times)
        return {name: max(1, round(self._in_models * ns)) for name, ns in zip(FIELDS, costs)}

    def _kinds(self, which: int, of_view: float, pointwise_ns: float, blocks_ns: float) -> list[float]:
        """An operation, a product and a view, in forward (0) or in backward (1). What the blocks take beyond their
        pointwise operations and views is that of their products, and of the modules that call these."""
        pointwise, blocks = self._counts["pointwise"][which], self._counts["blocks"][which]
        of_other = max(0.0, pointwise_ns - of_view * pointwise.view) / pointwise.other
        rest = blocks_ns - of_view * blocks.view - of_other * blocks.other
        python = MODEL_CODE if which == 0 else 1.0
        return [of_other, python * max(0.0, rest) / blocks.product, of_view]

    def _optimizer(self, foreach_ns: float, fused_ns: float) -> list[float]:
        """A tensor in a list, and a parameter: a fused step has one such list, a foreach step many."""
        n_parameters = len(self._steps["fused"].parameters)
        foreach, fused = self._listed["foreach"], self._listed["fused"]
        of_tensor = max(0.0, foreach_ns - fused_ns) / max(1, foreach.listed - fused.listed)
        return [of_tensor, max(0.0, fused_ns - of_tensor * fused.listed) / n_parameters]

    def _recomputation(self, times: Mapping[str, float]) -> list[float]:
        """A saved tensor, and a unit."""
        plain, units = (times[name] + times[f"{name} backward"] for name in ("blocks", "units"))
        extra = max(0.0, units - plain - times["blocks"])
        of_saved = extra / (self._n_saved + _UNIT_IN_SAVED * _DEPTH)
        return [of_saved, _UNIT_IN_SAVED * of_saved]
