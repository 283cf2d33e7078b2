"""torch, checked once: is it there, and new enough?"""

from __future__ import annotations

MINIMUM = (2, 4)


def parse_version(text: str) -> tuple[int, ...]:
    """Major and minor of torch's version, without what its build is called."""
    return tuple(int(part) for part in text.split("+")[0].split(".")[:2])


def require_torch() -> None:
    """Raise an ImportError that says what to do if torch is missing or too old; hand torch to the extension."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"memscale needs PyTorch {MINIMUM[0]}.{MINIMUM[1]} or newer and does not install it for you, "
            "so that it never replaces the build that fits your GPU. Install one with: pip install torch"
        ) from error
    if parse_version(torch.__version__) < MINIMUM:
        raise ImportError(
            f"memscale needs PyTorch {MINIMUM[0]}.{MINIMUM[1]} or newer, this is {torch.__version__}. "
            "Upgrade it with: pip install --upgrade torch"
        )
    from ._conditions import bind

    bind()
