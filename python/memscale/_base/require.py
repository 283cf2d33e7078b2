"""torch, checked once: is it installed, and new enough? Importing this module also gives torch to the extension.

Every package above this one imports it first, so that a missing torch is reported in one sentence.
"""

from __future__ import annotations

MINIMUM = (2, 4)
_NEEDED = f"memscale needs PyTorch {MINIMUM[0]}.{MINIMUM[1]} or newer"


def parse_version(text: str) -> tuple[int, ...]:
    """Major and minor of torch's version, without the name of its build."""
    return tuple(int(part) for part in text.split("+")[0].split(".")[:2])


def _explain(error: ImportError) -> str:
    if error.name == "torch":
        return (
            f"{_NEEDED} and does not install it for you, so that it never replaces the build that fits your GPU. "
            "Install one with: pip install torch"
        )
    return f"{_NEEDED}, and the one that is installed cannot be imported: {error}. Reinstall it with: pip install torch"


try:
    import torch
except ImportError as error:
    raise ImportError(_explain(error), name="torch") from None
if parse_version(torch.__version__) < MINIMUM:
    raise ImportError(
        f"{_NEEDED}, this is {torch.__version__}. Upgrade it with: pip install --upgrade torch", name="torch"
    )

from .conditions import bind  # noqa: E402  It imports torch, which may be used from here on.

bind()
