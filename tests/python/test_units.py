"""The units of models whose blocks are in stages: the blocks are found, and nothing inside of them."""

import re

import pytest
import torch
import transformers

from memscale._trace.model_modules import find_units


def _make(name, **fields):
    with torch.device("meta"):
        return getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**fields))


@pytest.mark.parametrize(
    ("model", "blocks", "n_blocks"),
    [
        (("ConvNext", {"depths": [3, 3, 27, 3]}), r"encoder\.stages\.\d\.layers\.\d+", 36),
        (("ConvNext", {"depths": [1, 1, 3, 1]}), r"encoder\.stages\.\d\.layers\.\d", 6),
        (("ConvNextV2", {}), r"encoder\.stages\.\d\.layers\.\d", 18),
        (("Swin", {}), r"encoder\.layers\.\d\.blocks\.\d", 12),
        (("Segformer", {}), r"stages\.\d\.blocks\.\d", 8),
        (("ResNet", {}), r"encoder\.stages\.\d\.layers\.\d", 16),
        (("ResNet", {"layer_type": "basic", "depths": [2, 2, 2, 2]}), r"encoder\.stages\.\d\.layers\.\d", 8),
        (("RegNet", {}), r"encoder\.stages\.\d\.layers\.\d+", 22),
        (("MobileNetV2", {}), r"layer\.\d+", 16),
        (("Cvt", {}), r"encoder\.stages\.\d\.layers\.\d", 13),
        (("Hiera", {}), r"encoder\.stages\.\d\.layers\.\d+", 24),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_blocks_of_stages_are_units(model, blocks, n_blocks):
    name, fields = model
    units = list(find_units(_make(name, **fields)))
    found = [unit for unit in units if re.fullmatch(blocks, unit)]
    inside = [unit for unit in units if re.match(blocks + r"\.", unit)]
    assert len(found) == n_blocks
    assert not inside


def test_experts_stay_inside_their_block():
    model = _make("DeepseekV3", num_hidden_layers=2, first_k_dense_replace=1, hidden_size=64, n_routed_experts=8)
    units = list(find_units(model))
    assert {"layers.0", "layers.1"} <= set(units)
    assert not any(unit.startswith("layers.1.") for unit in units)
