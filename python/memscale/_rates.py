"""How fast a device is: expected of a GPU by its data sheet, or measured on this machine. Checked and written in C."""

from __future__ import annotations

import dataclasses
import json

from . import _core

_VERSION_KEY = "memscale_rates"


@dataclasses.dataclass(frozen=True)
class Rates:
    """What a device reaches, in whole numbers; MB are 1e6 bytes.

    Attributes:
        source: 0 from the table of GPUs, 1 measured.
        capability: 10 times the major and the minor compute capability; 0 for the CPU.
        memory_bytes: memory of the device.
        fp32_gflops: matrix products, in GFLOP/s.
        tf32_gflops, fp16_gflops, bf16_gflops: the same in other types; 0 where they are no faster than fp32.
        memory_mb_per_s: bytes read and written.
        to_device_mb_per_s, from_device_mb_per_s, both_mb_per_s: copies from and to pinned host memory, one way and both
            at once; 0 for the CPU.
        pinning_mb_per_s: pinning of host memory; 0 where there is none.
        launch_ns: the least time that a kernel takes on the device.
        dispatch_ns: what an operator takes on the host.
    """

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

    @classmethod
    def of_model(cls, name: str) -> Rates:
        """What can be expected of a GPU of this name. Raises ``ValueError`` for one that is not in the table."""
        return cls.from_json(_core.rates_of_model(name))

    @classmethod
    def from_json(cls, text: str) -> Rates:
        """The rates that :meth:`to_json` wrote. Raises ``ValueError`` or ``MemScaleError`` on anything else."""
        record = json.loads(_core.rates_from_json(text))
        del record[_VERSION_KEY]
        return cls(**record)

    def to_json(self) -> str:
        """The rates as JSON text, for :meth:`from_json` and ``ms_rates_from_json``."""
        return _core.rates_from_json(json.dumps({_VERSION_KEY: _core.RATES_VERSION, **dataclasses.asdict(self)}))
