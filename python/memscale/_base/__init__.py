"""The lowest layer: argument checks, logging, hooks on modules, and what the extension needs of torch."""
