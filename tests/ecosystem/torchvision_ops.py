"""Lets a torchvision that was built for another torch be imported: its own operators, which no model here calls, are
declared before torchvision describes them. Import this module before anything that imports torchvision."""

import sys

import torch

_OPERATORS = ("nms", "qnms")

try:
    import torchvision  # noqa: F401
except ImportError:
    pass
except RuntimeError:  # its library did not load, so that its operators do not exist
    for _name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[_name]
    _library = torch.library.Library("torchvision", "DEF")
    for _name in _OPERATORS:
        _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
