"""MemScale: train larger models on the GPU you have.

``memscale.wrap(model)`` profiles a model, lets a deterministic engine decide which of its layers are recomputed, and
attaches hooks. The training loop stays as it is, gradients are the same, and ``memscale.detach(model)`` puts everything
back.
"""

from ._torch import require_torch

require_torch()

from . import _core  # noqa: E402
from ._calibrate import calibrate  # noqa: E402
from ._dry_run import plan  # noqa: E402
from ._measure import Measurement, measure_peak  # noqa: E402
from .api import detach, optimize, wrap  # noqa: E402
from .config import AsyncOffloadConfig, Config, OptimizationMode  # noqa: E402
from .errors import BudgetError, MemScaleError, MemScaleWarning  # noqa: E402
from .plans import ParetoPoint, Plan  # noqa: E402
from .profiles import Prediction, Profile, predict, profile  # noqa: E402

__version__: str = _core.version

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
    "measure_peak",
    "optimize",
    "plan",
    "predict",
    "profile",
    "wrap",
]
