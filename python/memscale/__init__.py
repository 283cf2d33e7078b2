"""MemScale: train larger models on the GPU you have.

``memscale.wrap(model)`` profiles a model, lets a deterministic engine decide which of its layers are recomputed, and
attaches hooks. The training loop stays as it is, gradients are the same, and ``memscale.detach(model)`` puts everything
back.
"""

import importlib
import logging
from typing import TYPE_CHECKING

from ._core import version as __version__

if TYPE_CHECKING:
    from ._hw.calibration import calibrate
    from ._hw.measure import Measurement, measure_peak
    from ._plan.dry_run import plan
    from .api import detach, executor_of, optimize, wrap
    from .config import AsyncOffloadConfig, Config, OptimizationMode
    from .errors import BudgetError, MemScaleError, MemScaleWarning
    from .plans import ParetoPoint, Plan
    from .profiles import Prediction, Profile, predict, profile

__all__ = [
    "AsyncOffloadConfig",
    "BudgetError",
    "Config",
    "Measurement",
    "MemScaleError",
    "MemScaleWarning",
    "OptimizationMode",
    "ParetoPoint",
    "Plan",
    "Prediction",
    "Profile",
    "__version__",
    "calibrate",
    "detach",
    "executor_of",
    "measure_peak",
    "optimize",
    "plan",
    "predict",
    "profile",
    "wrap",
]

# Where each public name is. It is loaded when it is first used, so that `import memscale` and the command line do not
# wait for torch.
_HOMES = {
    "_hw.calibration": ("calibrate",),
    "_hw.measure": ("Measurement", "measure_peak"),
    "_plan.dry_run": ("plan",),
    "api": ("detach", "executor_of", "optimize", "wrap"),
    "config": ("AsyncOffloadConfig", "Config", "OptimizationMode"),
    "errors": ("BudgetError", "MemScaleError", "MemScaleWarning"),
    "plans": ("ParetoPoint", "Plan"),
    "profiles": ("Prediction", "Profile", "predict", "profile"),
}
_WITHOUT_TORCH = ("config", "errors", "plans")
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

logging.getLogger(__name__).addHandler(logging.NullHandler())  # the host program decides what is shown


def __getattr__(name: str) -> object:
    """Load a public name, or a public module, when it is first used."""
    if name in _HOMES:
        return importlib.import_module(f".{name}", __name__)
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if home not in _WITHOUT_TORCH:
        importlib.import_module("._base.require", __name__)  # explains what to do if torch is missing
    value: object = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
