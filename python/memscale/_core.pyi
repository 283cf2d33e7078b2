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
UNIT_BLOCK: int
ACTION_KEEP: int
MODEL_HALF: int
PLAN_FASTEST: int
TECHNIQUE_RECOMPUTE: int
TECHNIQUE_OFFLOAD: int
TECHNIQUE_TILE: int
TECHNIQUE_HALF: int
TECHNIQUE_8BIT: int
TRACE_OP: int
TRACE_ALLOC: int
TRACE_FREE: int
TRACE_UNIT: int
TRACE_PHASE: int
TRACE_RECOMPUTE: int
TRACE_SAVE: int
TRACE_GRADIENT: int
TRACE_FUNCTION: int
TRACE_INPUT: int
KEEP_ATTENTION: int
OFFLOAD_LEAST_BYTES: int
OFFLOAD_LEAVING: int
KEEP_PRODUCTS: int
SIMULATE_ALLOCATOR: int
SIMULATE_ENGINE_THREAD: int
SIMULATE_FUSED: int
BOUNDARY_FORWARD_BEGINS: int
BOUNDARY_FORWARD_ENDS: int
BOUNDARY_BACKWARD_BEGINS: int
BOUNDARY_PEAK: int
SIMULATE_RESUMED: int
SIMULATE_KEEP_GRADIENTS: int
SIMULATE_GROWING: int
CATEGORY_GRADIENT: int
CATEGORY_OPTIMIZER: int
CHANGE_BUDGET: int
CHANGE_FUSED: int
CHANGE_TECHNIQUE: int
CHANGE_BATCH: int
CHANGE_AUTOCAST: int
CHANGE_HALF: int
CHANGE_ADAFACTOR: int
RATES_MEASURED: int

# Tables of the library, in the order of their enums; memscale/_base/vocabulary.py names the fields of a row.
ACTIONS: tuple[tuple[int, str, str, str, str, int, int, bool, bool, bool, bool], ...]
MODEL_OPTIONS: tuple[tuple[int, str, str, str, int, bool], ...]
TECHNIQUES: tuple[tuple[int, str, str], ...]
CATEGORIES: tuple[tuple[int, str, str], ...]
PHASES: tuple[tuple[int, str, str, str], ...]
REASONS: tuple[tuple[int, str, str], ...]
MODES: tuple[tuple[int, str, int, int], ...]

UnitRow = tuple[str, int, int, int, int, int]
Sizes = tuple[tuple[int, ...], ...]  # of the tensors of an input
Shape = tuple[int, int]  # batch and length

class MemScaleError(RuntimeError): ...

class BudgetError(MemScaleError):
    smallest_peak_bytes: int | None

class StopRecompute(BaseException): ...

class SavedTensors:
    def pack(self, tensor: Tensor, /) -> Any: ...
    def collect(self, tensor: Tensor, /) -> None: ...

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
    on_end: Callable[[], None] | None
    on_check: Callable[[int], None] | None
    on_save: Callable[[Call, int, Any], None] | None
    has_compiled: bool
    put_inputs: Callable[[list[Tensor]], OffloadedInputs | OffloadMark | None] | None
    keeps: int
    @property
    def trusts(self) -> list[str]: ...
    def __init__(self, name: str, module: Module, plain: Callable[..., Any]) -> None: ...
    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Any: ...  # the output, or a Call to be checked

class Call:
    opaque: type | None
    def __init__(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...
    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Any: ...
    # The output, (what is wrong, is it a surprise?), the tensors that were saved.
    def run_checked(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], /
    ) -> tuple[Any, tuple[str, bool] | None, list[Tensor]]: ...

# Events, operations, operands, kinds of storages, names; for each name what its kernels take after each of three
# results, in bytes; -1: by rule.
PackedTrace = tuple[bytes, bytes, bytes, bytes, list[str], bytes]

class Rates:
    source: int
    capability: int
    memory_bytes: int
    fp32_gflops: int
    tf32_gflops: int
    fp16_gflops: int
    bf16_gflops: int
    memory_mb_per_s: int
    to_device_mb_per_s: int
    from_device_mb_per_s: int
    both_mb_per_s: int
    pinning_mb_per_s: int
    launch_ns: int
    dispatch_ns: int
    product_ns: int
    view_ns: int
    backward_ns: int
    backward_product_ns: int
    backward_view_ns: int
    list_tensor_ns: int
    parameter_ns: int
    saved_tensor_ns: int
    recomputation_ns: int
    random_mb_per_s: int
    fresh_mb_per_s: int
    def __init__(self, **rates: int) -> None: ...
    @classmethod
    def from_json(cls, text: str, /) -> Rates: ...
    @classmethod
    def of_model(cls, name: str, /) -> Rates: ...
    @classmethod
    def guess(cls, capability: int, memory_bytes: int, n_multiprocessors: int, /) -> Rates: ...
    def to_json(self) -> str: ...
    def as_dict(self) -> dict[str, int]: ...

class Device:
    kind: str
    name: str
    rates: Rates
    usable_bytes: int
    n_multiprocessors: int
    capability: int
    def __init__(
        self,
        *,
        kind: str,
        name: str,
        rates: Rates,
        n_multiprocessors: int,
        usable_bytes: int,
        is_integrated: bool = False,
    ) -> None: ...
    @classmethod
    def of_model(cls, name: str, /) -> Device: ...

class Profile:
    def at(self, batch: int, length: int, /) -> Profile: ...
    def frontier(self, unit: int, device: Device, /) -> list[tuple[int, int, int, int]]: ...
    def simulate(
        self,
        device: Device,
        *,
        actions: bytes | None = None,
        limit_bytes: int = 0,
        flags: int = 0,
        model_options: int = 0,
        spacer: tuple[int, int] = (0, 0),
    ) -> dict[str, Any]: ...
    def compare(
        self,
        device: Device,
        readings: bytes,
        *,
        actions: bytes | None = None,
        flags: int = 0,
        margin_bytes: int = 0,
        prefetch_depth: int = 0,
    ) -> dict[str, Any]: ...
    def predict(
        self,
        device: Device,
        *,
        actions: bytes | None = None,
        flags: int = 0,
        usable_bytes: int = 0,
        was_run: bool = False,
        spacer: tuple[int, int] = (0, 0),
    ) -> dict[str, Any]: ...
    def units(self) -> list[UnitRow]: ...
    def costs(self, unit: int, phase: int, /) -> dict[str, int]: ...
    def to_json(self) -> str: ...

class Plan:
    def summary(self) -> dict[str, Any]: ...
    def entries(self) -> list[dict[str, Any]]: ...
    def explain(self) -> str: ...
    def to_json(self) -> str: ...
    def check_units(self, units: list[tuple[str, int]], /) -> None: ...

class Request:
    device: Device
    budget_bytes: int
    margin_bytes: int
    occupied_bytes: int
    limit_bytes: int
    host_limit_bytes: int
    slowdown_ppm: int
    actions: int
    model_options: int
    simulation: int
    flags: int
    def __init__(
        self,
        *,
        device: Device,
        techniques: int = 0,
        budget_bytes: int = 0,
        utilization_ppm: int = 850000,
        slowdown_ppm: int = -1,
        offload_limit_bytes: int = -1,
        force: bool = False,
        unrunnable: bool = False,
        fixed: bool = False,
        grown: bool = False,
        occupied_bytes: int = 0,
        overlaps: bool = False,
        prefetch_depth: int = 0,
    ) -> None: ...
    def cap(self, own_bytes: int, /) -> int: ...
    def plan(
        self,
        profile: Profile,
        *,
        half: Profile | None = None,
        plain: Profile | None = None,
        may_change: bytes | None = None,
        fused: bool = False,
        held: bool = False,
    ) -> Plan: ...
    def pareto(
        self,
        profile: Profile,
        n_points: int,
        *,
        half: Profile | None = None,
        plain: Profile | None = None,
        may_change: bytes | None = None,
        fused: bool = False,
    ) -> list[tuple[int, int, int, int, int]]: ...
    def find_budget(
        self,
        profile: Profile,
        *,
        half: Profile | None = None,
        plain: Profile | None = None,
        may_change: bytes | None = None,
        fused: bool = False,
    ) -> int: ...

class ShapePlans:
    def __init__(
        self,
        *,
        request: Request,
        plan: Plan,
        profile: Profile,
        sizes: Sizes,
        shape: Shape,
        source: Callable[[list[Sizes]], list[Profile] | None],
        wrap: Callable[[Plan], object],
        may_change: bytes | None = None,
        fused: bool = False,
        held: bool = False,
        like: ShapePlans | None = None,
    ) -> None: ...
    def find(self, sizes: Sizes, shape: Shape, times: tuple[int, int, int] = ..., /) -> Any: ...  # what wrap() made

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
    def components(self) -> list[tuple[str, bool, int, str]]: ...
    def hw(self, root: str = "", /) -> str: ...
    def checksum(self, device: int, address: int, n_bytes: int, stream: int, /) -> int: ...
    def link(self, device: int, n_bytes: int, /) -> Link: ...

class OffloadEngine:
    def __init__(
        self,
        device: Any,
        nothing: Tensor,
        *,
        index: int = -1,
        gpu: Gpu | None = None,
        limit_bytes: int = 0,
        pinned_bytes: int = -1,
        least_bytes: int = 0,
        delay_ns: int = 0,
        seed: int = 0,
    ) -> None: ...
    def run(
        self,
        unit: Any,
        plain: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: int,
        schedule: tuple[int, int, bool],
        /,
    ) -> Any: ...
    def run_kept(self, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Any: ...
    def mark(self, tensors: list[Tensor], /) -> OffloadMark | None: ...
    def put_inputs(self, key: int, schedule: tuple[int, int, bool], tensors: list[Tensor], /) -> OffloadedInputs: ...
    def reserve(self, n_bytes: int, /) -> None: ...
    def forget(self) -> None: ...
    def stats(self) -> dict[str, int]: ...

class OffloadMark:
    def bring(self) -> None: ...
    def passed(self, gradients: Any, /) -> None: ...

class OffloadedInputs:
    def bring(self) -> None: ...

class OffloadedTensors:
    def pack(self, tensor: Tensor, /) -> Any: ...

class PointwiseLayer:
    plain: Callable[..., Any]
    on_make: Callable[[], Any] | None
    on_made: Callable[[], Any] | None
    fuser: Gpu | Callable[..., Tensor] | bool | None
    trusts: list[str]
    def __init__(
        self,
        name: str,
        plain: Callable[..., Any],
        least_bytes: int = ...,
        compares: bool = ...,
        fuser: Gpu | Callable[..., Tensor] | bool | None = None,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

class PointwiseTensors:
    def pack(self, tensor: Tensor, /) -> Any: ...

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
def unpack(handle: Any, /) -> Tensor: ...
def unpack_offloaded(handle: Any, /) -> Tensor: ...
def unpack_pointwise(handle: Any, /) -> Tensor: ...
def pointwise(
    dtypes: tuple[int, ...],
    ops: tuple[tuple[int, int, int, int, float], ...],
    inputs: tuple[int, ...],
    output: int,
    n: int,
    place: tuple[Gpu, int, int] = ...,
    /,
) -> None: ...
def pointwise_source(dtypes: tuple[int, ...], ops: tuple[tuple[int, int, int, int, float], ...], /) -> str: ...
def tensors_in(obj: Any, /) -> list[Tensor]: ...
def hw_detect(root: str, /) -> str: ...
def hw_from_json(text: str, /) -> str: ...
def gpu_models() -> list[GpuModel]: ...
def gpu_model(name: str, /) -> GpuModel: ...
def capability_has_bf16(capability: int, /) -> bool: ...
def capability_has_fp16(capability: int, /) -> bool: ...
def find_units(
    parents: bytes, class_hashes: bytes, own_hashes: bytes, param_bytes: bytes, flags: bytes, /
) -> list[tuple[int, int]]: ...
def hash64(data: bytes, /) -> int: ...
def checksum(data: bytes, /) -> int: ...
def profile_from_traces(
    names: list[str],
    param_bytes: bytes,
    flags: bytes,
    traces: tuple[PackedTrace, PackedTrace | None, PackedTrace | None],  # plain, recomputed, pointwise
    shape: Shape,
    /,
) -> Profile: ...
def profile_from_watched(
    names: list[str], param_bytes: bytes, flags: bytes, trace: PackedTrace, shape: Shape, /
) -> Profile: ...
def profile_from_json(text: str, /) -> Profile: ...
def run_in_children(
    functions: tuple[Callable[[], bytes], ...], *, quiet_seconds: float, limit_seconds: float, memory_bytes: int = 0
) -> list[bytes | MemScaleError | OSError | ValueError]: ...
def profile_fit(profiles: list[Profile], /) -> Profile: ...
def fit_shapes(batch: int, length: int, /) -> list[Shape]: ...
def next_batch(*, fits: tuple[int, int], too_large: tuple[int, int], limit_bytes: int, n_tried: int) -> int: ...
def next_changes(
    *, allowed: int, tried: int, fitting: Iterable[int], limits: tuple[int, int], fixed: tuple[int, int, int]
) -> int: ...
def budget_for_peak(n: int, /) -> int: ...
def host_limit(n: int, /) -> int: ...
def plan_from_json(text: str, /) -> Plan: ...
def format_bytes(n: int, /) -> str: ...
def format_ns(n: int, /) -> str: ...
def format_place(phase: int, layer: str | None, /) -> str: ...
