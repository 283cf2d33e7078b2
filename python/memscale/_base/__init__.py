"""The lowest layer: argument checks, logging, hooks on modules, and torch handed to the extension."""
