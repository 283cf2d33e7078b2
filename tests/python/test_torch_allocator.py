"""Settings of torch's allocator: one field changes, all others stay, and afterwards everything is as before.

The allocator is a fake that parses as torch does: some fields fall back to their defaults if a string does not name
them. ``tests/gpu/test_detach_gpu.py`` has the same with the real one.
"""

from types import SimpleNamespace

import pytest
import torch

import memscale
import zoo
from memscale._core import Device
from memscale._hw import devices, torch_allocator
from memscale._run.torch_state import GrowingSegments

_SIZES = [str(1 << i) for i in range(16)]


class Allocator:
    """What the values in force are, and how a string changes them."""

    def __init__(self, text=None):
        self.settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False, "pinned_num_register_threads": 1}
        self._fall_back()
        if text is not None:
            self.parse(text)

    def _fall_back(self):
        self.settings |= {"max_split_size": -1, "garbage_collection_threshold": 0.0}
        self.settings |= {"roundup_power2_divisions": dict.fromkeys(_SIZES, 0)}

    def parse(self, text):
        self._fall_back()
        self.settings["PYTORCH_CUDA_ALLOC_CONF"] = text
        inner = text.partition("[")[2].partition("]")[0]
        for field in text.replace(f"[{inner}]", "list").split(","):
            key, _, value = field.partition(":")
            if key == "expandable_segments":
                self.settings[key] = value == "True"
            elif key == "max_split_size_mb":
                self.settings["max_split_size"] = int(value) << 20
            elif key == "garbage_collection_threshold":
                self.settings[key] = float(value)
            elif key == "roundup_power2_divisions":
                pairs = dict(pair.split(":") for pair in inner.split(",")) if inner else dict.fromkeys(_SIZES, value)
                self.settings[key] |= {size: int(n) for size, n in pairs.items()}
            elif key == "pinned_num_register_threads":
                self.settings[key] = int(value)

    def read(self):
        return {**self.settings, "roundup_power2_divisions": dict(self.settings["roundup_power2_divisions"])}


@pytest.fixture
def fake(monkeypatch):
    def install(text=None):
        allocator = Allocator(text)
        monkeypatch.setattr(torch_allocator, "read_settings", allocator.read)
        monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", allocator.parse, raising=False)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        return allocator

    return install


STRINGS = [
    None,
    "",
    "max_split_size_mb:128",
    "garbage_collection_threshold:0.6",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2]",
    "max_split_size_mb:200,garbage_collection_threshold:0.8,roundup_power2_divisions:[64:8],pinned_num_register_threads:4",
    "expandable_segments:True",
    "expandable_segments:True,max_split_size_mb:64",
]


@pytest.mark.parametrize("text", STRINGS)
def test_settings_stay_and_come_back(fake, text):
    allocator = fake(text)
    before = allocator.read()
    growing = GrowingSegments()
    assert growing.works
    during = allocator.read()
    assert during["expandable_segments"] is True
    assert torch_allocator._others(during) == torch_allocator._others(before)
    growing.release()
    growing.release()
    assert allocator.read() == before


def test_a_string_that_does_not_say_all(fake):
    """Set by two strings, one after the other: the last one alone gives other values."""
    allocator = fake("pinned_num_register_threads:4")
    allocator.parse("max_split_size_mb:128")
    allocator.settings["garbage_collection_threshold"] = 0.5  # not in any string
    before = allocator.read()
    GrowingSegments().release()
    after = allocator.read()
    assert torch_allocator._others(after) == torch_allocator._others(before)
    assert after["expandable_segments"] is False


def test_what_the_user_sets_meanwhile_stays(fake):
    allocator = fake("max_split_size_mb:128")
    growing = GrowingSegments()
    allocator.parse("expandable_segments:True,max_split_size_mb:256")
    growing.release()
    assert allocator.read()["max_split_size"] == 256 << 20
    assert allocator.read()["expandable_segments"] is False
    growing = GrowingSegments()
    allocator.parse("expandable_segments:False")
    before = allocator.read()
    growing.release()
    assert allocator.read() == before


def test_several_holders(fake):
    allocator = fake()
    before = allocator.read()
    first, second = GrowingSegments(), GrowingSegments()
    first.release()
    assert allocator.read()["expandable_segments"] is True
    del second
    assert allocator.read() == before


def test_segments_that_cannot_grow(fake, monkeypatch):
    allocator = fake("max_split_size_mb:128")
    before = allocator.read()

    def refuse(text):
        if "expandable_segments:True" in text:
            raise RuntimeError("not on this platform")
        allocator.parse(text)

    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", refuse, raising=False)
    growing = GrowingSegments()
    assert not growing.works
    growing.release()
    assert allocator.read() == before


def test_another_allocator(monkeypatch):
    monkeypatch.setattr(torch_allocator, "read_settings", lambda: None)
    growing = GrowingSegments()
    assert not growing.works
    growing.release()
    assert not torch_allocator.can_grow(torch.device("cuda"))


def test_segments_do_not_grow_where_they_cannot(fake, monkeypatch):
    """Under WSL2 they fail with errors of the driver, whatever a plan does."""
    release = SimpleNamespace(system="Linux", release="5.15.167.4-microsoft-standard-WSL2")
    allocator, device = fake(""), torch.device("cuda", 0)
    monkeypatch.setattr(torch_allocator.platform, "uname", lambda: release)
    assert not torch_allocator.can_grow(device)
    model = memscale.wrap(zoo.make("mlp"), memscale.Config("aggressive", enable_logging=False))
    memory = memscale.executor_of(model)._device_memory
    monkeypatch.setattr(memory, "_is_gpu", True)
    monkeypatch.setattr(memory, "_count", lambda: (0, 0))
    memory.use(SimpleNamespace(needed_bytes=1, grows=False, n_changed=3))
    assert allocator.settings["expandable_segments"] is False
    monkeypatch.undo()
    memscale.detach(model)


@pytest.mark.parametrize("text", ["", "expandable_segments:True"])
def test_what_other_attachments_do_changes_no_plan(fake, monkeypatch, text):
    """Segments that grow because MemScale lets them are not a setting of the user."""
    fake(text)
    device = Device.of_model("rtx3090")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda place: device.name)
    monkeypatch.setattr(torch_allocator, "can_grow", lambda place: True)
    before = devices.segments_of(device)
    assert before["grown"] is bool(text)
    growing = GrowingSegments()
    assert devices.segments_of(device) == before
    growing.release()
    assert devices.segments_of(device) == before
