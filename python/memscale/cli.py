"""The command line as an entry point: ``memscale.cli:main``."""

from ._cli.commands import main

__all__ = ["main"]
