"""Types of the extension module memscale._core. Not a public interface."""

from collections.abc import Callable, Iterable
from os import PathLike
from typing import Any, TypedDict

from torch import Tensor, device
from torch.nn import Module

version: str
MODULE_LIST: int
MODULE_CALLED: int
MODULE_OPAQUE: int
UNIT_ELIGIBLE: int
UNIT_RUN: int
PLAN_FORCE: int
PLAN_FASTEST: int
PLAN_RECOMPUTE_ALL: int
ACTION_KEEP: int
ACTION_RECOMPUTE: int
ACTION_KEEP_BOTH: int
ACTION_KEEP_PRODUCTS: int
ACTION_KEEP_ATTENTION: int
ACTION_OFFLOAD: int
ACTION_OFFLOAD_NOW: int
ACTION_RECOMPUTE_OFFLOAD: int
ACTION_RECOMPUTE_OFFLOAD_NOW: int
ACTION_TILE: int
STATE_HALF: int
STATE_8BIT: int
STATE_OFFLOAD: int
STATE_OFFLOAD_GRADIENTS: int
STATE_TILE_LOSS: int
SIMULATE_ALLOCATOR: int
SIMULATE_ENGINE_THREAD: int
SIMULATE_FUSED: int
SIMULATE_RESUMED: int
SIMULATE_KEEP_GRADIENTS: int
KEEP_ATTENTION: int
KEEP_PRODUCTS: int
KEEP_ALL: int
RATES_VERSION: int
RATES_MEASURED: int

UnitRow = tuple[str, int, int, int, int, int]

class MemScaleError(RuntimeError): ...

class BudgetError(MemScaleError):
    smallest_peak_bytes: int | None

class StopRecompute(BaseException): ...

class Frame:
    def __init__(self, recompute: Call | Callable[[Frame], Any], name: str, keep: bool = False) -> None: ...
    def pack(self, tensor: Tensor, /) -> Any: ...
    def collect(self, tensor: Tensor, /) -> Any: ...
    def release(self) -> None: ...
    def held(self) -> list[Tensor]: ...
    def changed(self) -> bool: ...

class ModuleState:
    def __init__(self, root: Module) -> None: ...
    def enter(self) -> None: ...
    def leave(self) -> None: ...
    def modules(self) -> list[Module]: ...
    def parameters(self) -> list[Tensor]: ...

class Randomness:
    def __init__(self, devices: Iterable[device]) -> None: ...
    def moved(self) -> bool: ...
    def restore(self) -> None: ...

class Unit:
    name: str
    module: Module
    plain: Callable[..., Any]
    on_backward: Callable[[], None] | None
    def __init__(self, name: str, module: Module, plain: Callable[..., Any]) -> None: ...

class Call:
    opaque: type | None
    flags: bytes
    devices: tuple[device, ...]
    parameters: list[Tensor]
    buffers: list[tuple[int, str, Module, Tensor, Tensor]]
    draws: bool
    full: bool
    inputs_changed: bool
    watched_changed: bool
    def __init__(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...
    def observe(self, buffers: set[tuple[int, str]] | None, /) -> None: ...
    def begin(self) -> None: ...
    def end(self) -> None: ...
    def run(
        self,
        buffers: set[tuple[int, str]],
        draws: bool,
        full: bool,
        in_place: bool,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        /,
    ) -> Any: ...
    def enter(self) -> None: ...
    def leave(self) -> bool: ...
    def keep_buffers(self, kept: set[tuple[int, str]], /) -> None: ...

PackedTrace = tuple[bytes, bytes, bytes, bytes, list[str]]

class Profile:
    def at(self, batch: int, length: int, /) -> Profile: ...
    def frontier(self, unit: int, rates: str, /) -> list[tuple[int, int, int, int]]: ...
    def simulate(
        self, actions: bytes | None, rates: str, n_multiprocessors: int, limit_bytes: int, flags: int, state: int, /
    ) -> dict[str, Any]: ...
    def units(self) -> list[UnitRow]: ...
    def costs(self, unit: int, phase: int, /) -> dict[str, int]: ...
    def to_json(self) -> str: ...

# (profile, half_profile, rates, n_multiprocessors, budget_bytes, margin_bytes, host_limit_bytes, slowdown_ppm,
# may_change, actions, states, simulation, flags)
PlanArguments = tuple[Profile, Profile | None, str | None, int, int, int, int, int, bytes | None, int, int, int, int]
# (name, action, reason, param_bytes, kept_bytes, held_bytes, host_bytes, extra_ns, other, other_reason, other_bytes,
# other_ns)
PlanEntry = tuple[str, int, str, int, int, int, int, int, int, str, int, int]

class Plan:
    def summary(self) -> dict[str, Any]: ...
    def entries(self) -> list[PlanEntry]: ...
    def explain(self) -> str: ...
    def to_json(self) -> str: ...
    def check_units(self, units: list[UnitRow], /) -> None: ...

class Guard:
    def check(self, batch: int, length: int, /) -> int | None: ...
    def plan(self, batch: int, length: int, /) -> Plan: ...

Path = str | bytes | PathLike[str]

class Link(TypedDict):
    n_bytes: int
    to_device_rate: int
    from_device_rate: int
    both_rate: int
    pinning_rate: int
    intact: bool

class Gpu:
    @property
    def count(self) -> int: ...
    def __init__(
        self,
        driver: Path | None = None,
        nvml: Path | None = None,
        nvrtc: Iterable[Path] | None = None,
        cache: Path | None = None,
    ) -> None: ...
    def close(self) -> None: ...
    def parts(self) -> list[tuple[str, bool, int, str]]: ...
    def hw(self, root: str = "", /) -> str: ...
    def checksum(self, device: int, address: int, n_bytes: int, stream: int, /) -> int: ...
    def link(self, device: int, n_bytes: int, /) -> Link: ...

class GpuModel(TypedDict):
    key: str
    name: str
    memory_bytes: int
    capability: int
    n_multiprocessors: int
    fp32_gflops: int
    tf32_gflops: int
    fp16_gflops: int
    bf16_gflops: int
    memory_mb_per_s: int
    link_mb_per_s: int

LogCallback = Callable[[int, str], None]
Observer = Callable[[Unit], Any]

def bind(bindings: dict[str, Any], /) -> None: ...
def set_random_lock(lock: Any, /) -> Any: ...
def set_observer(callback: Observer | None, /) -> Observer | None: ...
def set_log(callback: LogCallback | None, /) -> LogCallback | None: ...
def unpack(record: Any, /) -> Tensor: ...
def tensors_in(obj: Any, /) -> list[Tensor]: ...
def hw_detect(root: str, /) -> str: ...
def hw_from_json(text: str, /) -> str: ...
def gpu_models() -> list[GpuModel]: ...
def gpu_model(name: str, /) -> GpuModel: ...
def rates_of_model(name: str, /) -> str: ...
def rates_from_json(text: str, /) -> str: ...
def find_units(
    parents: bytes, class_hashes: bytes, own_hashes: bytes, param_bytes: bytes, flags: bytes, /
) -> list[int]: ...
def hash64(data: bytes, /) -> int: ...
def checksum(data: bytes, /) -> int: ...
def profile_from_traces(
    names: list[str], param_bytes: bytes, kept: PackedTrace, lean: PackedTrace | None, batch: int, length: int, /
) -> Profile: ...
def profile_from_json(text: str, /) -> Profile: ...
def profile_fit(profiles: list[Profile], /) -> Profile: ...
def profile_from_units(units: list[UnitRow], state_bytes: int, rest_bytes: int, /) -> Profile: ...
def plan_create(
    profile: Profile,
    half_profile: Profile | None,
    rates: str | None,
    n_multiprocessors: int,
    budget_bytes: int,
    margin_bytes: int,
    host_limit_bytes: int,
    slowdown_ppm: int,
    may_change: bytes | None,
    actions: int,
    states: int,
    simulation: int,
    flags: int,
    /,
) -> Plan: ...
def plan_pareto(
    profile: Profile,
    half_profile: Profile | None,
    rates: str | None,
    n_multiprocessors: int,
    budget_bytes: int,
    margin_bytes: int,
    host_limit_bytes: int,
    slowdown_ppm: int,
    may_change: bytes | None,
    actions: int,
    states: int,
    simulation: int,
    flags: int,
    capacity: int,
    /,
) -> list[tuple[int, int, int, int, int]]: ...
def guard_create(
    profile: Profile,
    half_profile: Profile | None,
    rates: str | None,
    n_multiprocessors: int,
    budget_bytes: int,
    margin_bytes: int,
    host_limit_bytes: int,
    slowdown_ppm: int,
    may_change: bytes | None,
    actions: int,
    states: int,
    simulation: int,
    flags: int,
    plan: Plan,
    /,
) -> Guard: ...
def action_name(action: int, /) -> str: ...
def state_name(flag: int, /) -> str: ...
def plan_from_json(text: str, /) -> Plan: ...
