"""`memscale estimate`: its options, its output, its exit status, and the models that it knows by name."""

import dataclasses
import io
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import pytest
import torch
import transformers

import memscale
import zoo
from memscale import cli
from memscale._base import step_kinds as _kinds
from memscale._base import step_kinds as _precision
from memscale._cli import commands
from memscale._cli import estimate_command as _estimate
from memscale._cli import model_registry as _models
from memscale._cli import options as _options
from memscale._hw import devices as _devices
from memscale._plan import advice as _advice
from memscale._show import terminal as _terminal
from memscale._show import text as _figures

TINY = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 500, "n_positions": 128}
KEYS = {
    "model": str, "n_parameters": int, "n_trainable": int, "batch": int, "seq": int, "gpu": str, "capability": int,
    "precision": str, "precision_is_default": bool, "optimizer": str, "recompute": str,
    "budget_gb": (float, type(None)), "fits": bool, "peak_bytes": int, "needed_bytes": int, "low_bytes": int,
    "high_bytes": int, "usable_bytes": int, "margin_bytes": int, "reserved_bytes": int,
    "first_peak_bytes": int, "steady_peak_bytes": int, "idle_bytes": int, "parts": dict, "place": dict,
    "passes": dict, "step_seconds": float, "rates": str, "source": str, "alternatives": list, "notes": list,
}  # fmt: skip
PARTS = {
    "parameters", "gradients", "optimizer_state", "activations", "temporaries", "buffers", "inputs",
    "library_workspaces", "unused",
}  # fmt: skip
# What the models are known to have, in millions.
MILLIONS = {
    "gpt2": 124.4, "gpt2-medium": 354.8, "gpt2-large": 774.0, "gpt2-xl": 1557.6, "bert-base": 109.5,
    "bert-large": 335.2, "distilbert": 67.0, "roberta-base": 124.7, "llama-1b": 1235.8, "llama-3b": 3212.7,
    "llama-7b": 6738.4, "llama-8b": 8030.3, "mistral-7b": 7248.0, "qwen-0.5b": 494.0, "qwen-1.5b": 1543.7,
    "qwen-7b": 7615.6, "opt-125m": 125.2, "opt-1.3b": 1315.8, "phi-2": 2779.7, "phi-3-mini": 3821.1, "t5-small": 60.5,
    "t5-base": 222.9, "t5-large": 737.7, "bart-base": 139.4, "whisper-small": 241.7, "vit-base": 85.8,
    "vit-large": 303.3, "vit-huge": 630.8,
}  # fmt: skip
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")

TRAIN = """
import torch
from torch import nn
print("a word from the module")

def build(batch=3, seq=16):
    print("a word from the function")
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4)]
    return nn.Sequential(nn.Embedding(100, 64), *blocks), torch.zeros(batch, seq, dtype=torch.int64)

def plain():
    return nn.Linear(8, 8), torch.ones(2, 8)

def own():
    model = nn.Linear(8, 8)
    return model, torch.ones(2, 8), torch.optim.SGD(model.parameters(), lr=1, momentum=0.9)

def wide(batch):
    layers = [nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(8)]
    return nn.Sequential(*layers), torch.ones(batch, 256, 512)

def length(seq):
    return nn.Linear(8, 8), torch.ones(2, seq, 8)

def part():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[0].requires_grad_(False)
    return model, {"input": torch.ones(2, 8)}

class Asks(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x

class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, ids):
        return self.table(ids) if ids.max() < 10 else None

def known():
    return Positions(), torch.zeros(3, 4, dtype=torch.int64, device="cpu")

def unknown():
    return Positions(), torch.zeros(3, 4, dtype=torch.int64)

def asks():
    return Asks(8, 8), torch.ones(2, 8)

def frozen():
    return nn.Linear(8, 8).requires_grad_(False), torch.ones(2, 8)

def foreign():
    return nn.Linear(8, 8), torch.ones(2, 8), torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=1)

def on_cpu():
    return nn.Linear(8, 8, device="cpu"), torch.ones(2, 8)

def looks():
    return nn.Linear(int(torch.ones(1).item()), 8), torch.ones(2, 1)

def raises():
    raise KeyError("nothing\\nhere")

def leaves():
    raise SystemExit("goodbye")

def needs(something):
    pass

def nothing():
    pass

def numbers():
    return 1, 2

def odd_optimizer():
    return nn.Linear(8, 8), torch.ones(2, 8), "sgd"

def odd_sample():
    return nn.Linear(8, 8), "x"

def odd_shapes():
    return nn.Linear(8, 8), torch.ones(2, 7)

not_one = 3
"""


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    return str(path)


@pytest.fixture
def train(tmp_path, monkeypatch):
    """A module in the current folder; gives its name."""
    name = f"train_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    yield name
    sys.modules.pop(name, None)


@pytest.fixture
def patient(monkeypatch):
    """No deadline for alternatives: the answer does not depend on the speed of the machine."""
    monkeypatch.setattr(_estimate, "_SECONDS", 1e6)


def request(model, gpu="rtx3090", **fields):
    return _options.EstimateOptions(model, gpu=gpu, **fields)


def command(capsys, *arguments):
    """Exit code, output and errors of `memscale estimate`."""
    capsys.readouterr()
    try:
        code = cli.main(["estimate", *arguments])
    except SystemExit as end:
        code = end.code
    return (code, *capsys.readouterr())


# The registry


def test_every_model_has_the_size_that_it_is_known_for():
    assert set(MILLIONS) == set(_models.REGISTRY)
    for name, millions in MILLIONS.items():
        model = _models.make_model(name)
        assert all(p.is_meta for p in model.parameters())
        assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.06), name


FAMILIES = {entry.config: name for name, entry in reversed(_models.REGISTRY.items())}  # the smallest of each


@pytest.mark.parametrize("name", list(FAMILIES.values()))
def test_every_family_is_traced_without_running(name, monkeypatch):
    """Two equal layers."""
    entry = _models.REGISTRY[name]
    known = vars(getattr(transformers, entry.config)())
    shallow = {key: 2 for key in DEPTHS if key in entry.sizes or key in known}
    monkeypatch.setitem(_models.REGISTRY, name, dataclasses.replace(entry, sizes={**entry.sizes, **shallow}))
    found = _estimate.run(request(name, "h200", batch=2, seq=None if name.startswith("vit") else 16))
    assert found.prediction.source == "static"
    assert found.prediction.fits
    assert found.prediction.parts["parameters"] >= 4 * found.n_parameters
    assert re.search(r" parameters, (.* of them trained, )?2 ", found.heading[1])


def test_lengths():
    """Position embeddings limit the length of a sequence; a trace on meta tensors would not notice."""
    limits = {"gpt2": 1024, "opt-125m": 2048, "bert-base": 512, "roberta-base": 512, "distilbert": 512}
    limits |= {"bart-base": 1024, "whisper-small": 448, "t5-small": None, "vit-base": None, "qwen-0.5b": None}
    for name, limit in limits.items():
        assert _models.max_length(_models.make_model(name)) == limit, name
    model = transformers.RobertaForMaskedLM(transformers.RobertaConfig(max_position_embeddings=20, num_hidden_layers=1))
    limit = _models.max_length(model)
    model(torch.full((1, limit), 5))
    with pytest.raises((IndexError, RuntimeError)):
        model(torch.full((1, limit + 1), 5))


@pytest.mark.parametrize(
    ("kind", "settings", "shape", "dtype"),
    [
        ("BertForSequenceClassification", {}, (3,), torch.int64),
        ("BertForSequenceClassification", {"num_labels": 1}, (3,), torch.float32),
        ("BertForSequenceClassification", {"problem_type": "multi_label_classification", "num_labels": 5}, (3, 5),
         torch.float32),
        ("BertForTokenClassification", {}, (3, 8), torch.int64),
        ("BertForMaskedLM", {}, (3, 8), torch.int64),
    ],
)  # fmt: skip
def test_labels(kind, settings, shape, dtype):
    """The labels are what the model takes: it is run with them."""
    config = transformers.BertConfig(num_hidden_layers=1, hidden_size=32, num_attention_heads=2, **settings)
    model = getattr(transformers, kind)(config)
    batch = _models.make_batch(config, 3, 8, "cpu", model_class=type(model))
    assert (batch["labels"].shape, batch["labels"].dtype) == (shape, dtype)
    assert model(**batch).loss.isfinite()


# Configuration files


def test_a_configuration_file_and_its_folder(tiny, tmp_path, capsys):
    code, output, errors = command(capsys, "--model", tiny, "--gpu", "rtx3090", "--batch", "2", "--json")
    assert (code, errors) == (0, "")
    report = json.loads(output)
    assert (report["batch"], report["seq"], report["precision"]) == (2, 128, "bf16")
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    code, output, errors = command(
        capsys, "--model", str(tmp_path), "--gpu", "NVIDIA GeForce RTX 3090", "--batch", "2", "--json"
    )
    assert (code, errors) == (0, "")
    assert json.loads(output) == {**report, "model": str(tmp_path)}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model_type": "bert", "architectures": ["BertModel"]}, "BertForMaskedLM"),
        ({"model_type": "bert", "architectures": ["BertForSequenceClassification"]}, "BertForSequenceClassification"),
        ({"model_type": "bert", "architectures": ["logging", "Nothing", 3]}, "BertForMaskedLM"),
        ({"model_type": "bart"}, "BartForConditionalGeneration"),
        ({"model_type": "gpt2", "architectures": ["GPT2ForSequenceClassification"], "pad_token_id": 0},
         "GPT2ForSequenceClassification"),
        ({"model_type": "t5"}, "T5ForConditionalGeneration"),
        ({"model_type": "beit"}, "BeitForImageClassification"),
        ({"model_type": "deit"}, "DeiTForImageClassification"),
        ({"model_type": "resnet"}, "ResNetForImageClassification"),
        ({"model_type": "whisper"}, "WhisperForConditionalGeneration"),
    ],
)  # fmt: skip
def test_the_class_of_a_configuration(settings, words, tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(settings))
    config = _models.make_config(str(path))
    found = _models._model_class(config, str(path))
    assert found.__name__ == words
    assert "labels" in _models.make_batch(config, 2, 8, model_class=found)


def test_configurations_that_cannot_be_used(tmp_path, capsys):
    cases = {
        "{": "cannot read the configuration {path}: it is not JSON",
        "[]": "{path} is not a configuration of transformers: it has no model_type",
        '{"model_type": 3}': "{path} is not a configuration of transformers",
        '{"model_type": "nope"}': f"{{path}}: transformers {transformers.__version__} knows no model_type 'nope'",
        '{"model_type": "gpt2", "n_embd": "x"}': "transformers does not take the configuration {path}: ",
        '{"model_type": "gpt2", "n_embd": 100, "n_head": 7}': "transformers cannot make a model from {path}: ",
        '{"model_type": "clip"}': "{path}: no batch can be made for models of type 'clip'; give module:function",
        '{"model_type": "bert", "architectures": ["BertForQuestionAnswering"]}': "{path}: no batch can be made",
        "[" * 100_000: "cannot read the configuration {path}: it is not JSON",
        b"\xff\xfe": "cannot read the configuration {path}: it is not JSON",
    }
    path = tmp_path / "broken.json"
    for text, words in cases.items():
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        code, output, errors = command(capsys, "--model", str(path), "--gpu", "t4")
        assert (code, output) == (1, "")
        assert errors.startswith("memscale: error: " + words.format(path=path))
        assert errors.count("\n") == 1
        assert len(errors) < 600
    path.unlink()
    for name in (path, tmp_path):
        code, output, errors = command(capsys, "--model", str(name), "--gpu", "t4")
        assert (code, output) == (1, "")
        assert errors.endswith(": No such file or directory\n")


def test_quantized_weights_are_noted(tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps({**TINY, "quantization_config": {"quant_method": "gptq", "bits": 4}}))
    assert "quantized" in _estimate.run(request(str(path))).notes[0]


# Functions


def test_a_function(train, capsys):
    path = list(sys.path)
    code, output, errors = command(capsys, "--model", f"{train}:build", "--gpu", "rtx3090", "--json")
    assert code == 0
    report = json.loads(output)  # what it prints is not between
    assert "a word from the module\na word from the function\n" in errors
    assert (report["batch"], report["seq"]) == (3, 16)
    code, output, _ = command(capsys, "--model", f"{train}:build", "--gpu", "rtx3090", "--batch", "5", "--json")
    assert (json.loads(output)["batch"], json.loads(output)["seq"]) == (5, 16)
    assert sys.path == path


def test_functions_with_other_signatures(train):
    found = _estimate.run(request(f"{train}:plain"))
    assert (found.batch, found.seq, found.optimizer) == (2, None, "adamw")
    assert ", input 2 x 8, " in found.heading[1]
    assert found.prediction.parts["optimizer_state"] >= 2 * 4 * 72
    found = _estimate.run(request(f"{train}:own"))
    assert (found.optimizer, found.prediction.parts["optimizer_state"]) == ("SGD", 1024)
    found = _estimate.run(request(f"{train}:own", optimizer="sgd"))
    assert (found.optimizer, found.prediction.parts["optimizer_state"]) == ("sgd", 0)
    assert _estimate.run(request(f"{train}:wide")).batch == 1
    assert _estimate.run(request(f"{train}:length", seq=5)).seq == 5
    found = _estimate.run(request(f"{train}:part"))
    assert (found.n_parameters, found.n_trainable) == (144, 72)
    assert _estimate.run(request(f"{train}:known")).prediction.fits


def test_functions_that_cannot_be_used(train, capsys):
    what = "it must return (model, sample_input) or (model, sample_input, optimizer)"
    cases = {
        "on_cpu": "makes its model on 'cpu'. It is run on the meta device",
        "looks": "failed: RuntimeError: Tensor.item() cannot be called on meta tensors",
        "raises": f"failed: KeyError: 'nothing\\nhere' ({train}.py, line ",
        "leaves": "failed: SystemExit: goodbye",
        "needs": "takes 'something'; it may take nothing but batch and seq",
        "nothing": f"returned NoneType; {what}",
        "numbers": f"returned int as model; {what}",
        "odd_optimizer": f"returned str as optimizer; {what}",
        "odd_sample": "sample_input must be a tensor, a tuple of positional inputs or a dict",
        "odd_shapes": "cannot be traced: RuntimeError: ",
        "asks": f"cannot be traced: UnknownValueError: the model's Python depends on values of tensors ({train}.py, ",
        "frozen": "the model has no parameter that is trained",
        "foreign": "the optimizer holds none of this model's parameters",
        "length": "needs a length: give --seq",
        "missing": f"there is no function 'missing' in the module {train}",
        "not_one": f"'not_one' is not a function in the module {train}",
    }
    for function, words in cases.items():
        code, output, errors = command(capsys, "--model", f"{train}:{function}", "--gpu", "t4")
        assert (code, output) == (1, "")
        last = errors.splitlines()[-1]
        assert last.startswith("memscale: error: ")
        assert words in last, function
    for option in ("batch", "seq"):
        code, _, errors = command(capsys, "--model", f"{train}:plain", "--gpu", "t4", f"--{option}", "3")
        assert code == 1
        assert f"takes no {option}: leave --{option} out" in errors


def test_modules_that_cannot_be_used(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad_import.py").write_text("import something_that_is_not_there")
    (tmp_path / "bad_syntax.py").write_text("def f(:")
    (tmp_path / "bad_code.py").write_text("1 / 0")
    cases = {
        "bad_import:f": "importing bad_import failed: ModuleNotFoundError: No module named 'something_that_",
        "bad_syntax:f": "importing bad_syntax failed: SyntaxError: ",
        "bad_code:f": "importing bad_code failed: ZeroDivisionError: division by zero (bad_code.py, line 1)",
        "not_here:f": f"there is no module 'not_here' in {tmp_path}",
        "not.here:f": "there is no module 'not.here'",
        "sub/train.py:build": "'sub/train.py:build' names a file; as a module it is sub.train:build",
    }
    cases |= {name: f"'{name}' is not module:function" for name in ("train:", ":build", "a:b:c", "a b:c", "a/b:c", ":")}
    for name, words in cases.items():
        code, output, errors = command(capsys, "--model", name, "--gpu", "t4")
        assert (code, output) == (1, "")
        assert errors.startswith(f"memscale: error: {words}")
        assert errors.count("\n") == 1


# Options


def test_usage_errors(capsys):
    for arguments in (
        (),
        ("--model",),
        ("--json",),
        ("--gpu", "t4"),
        *(("--model", "gpt2", "--batch", value) for value in ("0", "-1", "x", "1.5", "", "99999999999")),
        ("--model", "gpt2", "--seq", "0"),
        *(("--model", "gpt2", "--budget", value) for value in ("0", "-1", "nan", "inf", "x")),
        ("--model", "gpt2", "--optimizer", "lion"),
        ("--model", "gpt2", "--precision", "int8"),
        ("--model", "gpt2", "--recompute", "some"),
        ("gpt2",),
    ):
        code, output, errors = command(capsys, *arguments)
        assert (code, output) == (2, ""), arguments
        assert "usage: memscale" in errors


def test_errors(capsys, monkeypatch, tiny):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    none = "torch cannot use a GPU here: name one with --gpu, such as rtx3060, rtx3090,"
    cases = {
        ("gpt2-mediun", "t4"): "there is no model 'gpt2-mediun'. Did you mean 'gpt2-medium'?",
        ("meta-llama/Llama-3.1-8B", "t4"): "there is no model 'meta-llama/Llama-3.1-8B'. Nothing is downloaded: ",
        ("", "t4"): "there is no model ''. Known are gpt2, ",
        ("gpt2", "rtx309"): '--gpu: no GPU "rtx309" is known; the closest is "rtx3090" (--gpu list shows all)',
        ("gpt2", "x" * 500): "--gpu: no GPU ",
        ("gpt2", "cuda"): none,
        ("gpt2", "cuda:1"): none,
        ("gpt2", "cpu:x"): "--gpu: device='cpu:x' is not allowed: Invalid device string",
        ("gpt2", "t4", "--seq", "1025"): "gpt2 takes at most 1024 tokens, not 1025",
        ("vit-base", "t4", "--seq", "3"): "vit-base takes images, which have no length: leave --seq out",
        ("gpt2", "t4", "--batch", "100000"): "a batch of 100000 x 512 tokens is too large: ",
        (tiny, "t4", "--budget", "50"): "a budget of 50.0 GB is more than Tesla T4 has: 15.1 GB",
    }
    for (model, gpu, *more), words in cases.items():
        code, output, errors = command(capsys, "--model", model, "--gpu", gpu, *more)
        assert (code, output) == (1, "")
        assert errors.startswith(f"memscale: error: {words}")
        assert errors.count("\n") == 1
        assert len(errors) < 400
    code, output, errors = command(capsys, "--model", tiny)
    assert (code, output) == (1, "")
    assert errors.startswith(f"memscale: error: {none}")


def test_without_transformers(capsys, monkeypatch, train):
    monkeypatch.setitem(sys.modules, "transformers", None)
    code, output, errors = command(capsys, "--model", "gpt2", "--gpu", "t4")
    assert (code, output) == (1, "")
    assert "transformers, which is not installed (pip install transformers)" in errors
    assert command(capsys, "--model", f"{train}:plain", "--gpu", "t4")[0] == 0


def test_this_machines_gpu_is_the_default(monkeypatch, train):
    here = zoo.device_with(_devices.find("rtx4090"), name="the one here", usable_bytes=3 * 10**9)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(_devices, "_this_gpu", lambda place: here)
    assert _estimate.run(request(f"{train}:plain", None)).prediction.device == "the one here"
    assert _estimate.run(request(f"{train}:plain", "cuda:0")).prediction.usable_bytes == 3 * 10**9

    def absent(place):
        raise AssertionError("Invalid device id")

    monkeypatch.setattr(_devices, "_this_gpu", absent)
    with pytest.raises(memscale.MemScaleError, match="--gpu: Invalid device id"):
        _estimate.run(request(f"{train}:plain", "cuda:7"))


def test_the_cpu_as_a_device(tiny, capsys):
    code, output, errors = command(capsys, "--model", tiny, "--gpu", "cpu")
    assert (code, errors) == (0, "")
    assert "fp32, adamw" in output
    assert "reserved" not in output


def test_precisions(train, capsys):
    assert [_precision.default_precision(c) for c in (61, 70, 75, 80, 90, 120)] == [
        "fp32",
        *["fp16"] * 2,
        *["bf16"] * 3,
    ]
    subject, sizes = f"{train}:wide", {}
    for precision in ("fp32", "bf16", "fp16", "pure-bf16", "pure-fp16"):
        found = _estimate.run(request(subject, batch=8, precision=precision))
        assert (found.precision, found.notes) == (precision, ())
        sizes[precision] = found.prediction.parts["parameters"]
    assert sizes["fp32"] == sizes["bf16"]
    assert sizes["pure-bf16"] == sizes["pure-fp16"] == pytest.approx(sizes["fp32"] / 2, rel=0.05)
    assert _estimate.run(request(subject, "t4")).precision == "fp16"
    assert _estimate.run(request(subject, "gtx1080")).precision == "fp32"
    assert "this GPU has no bf16" in _estimate.run(request(subject, "t4", precision="bf16")).notes[0]
    assert "bf16 autocast (default for this GPU), adamw" in command(capsys, "--model", subject, "--gpu", "a100")[1]
    assert "pure-bf16, adamw" in command(capsys, "--model", subject, "--gpu", "a100", "--precision", "pure-bf16")[1]


def test_optimizers(train):
    state = {}
    for name in _kinds.OPTIMIZERS:
        found = _estimate.run(request(f"{train}:wide", optimizer=name))
        assert found.optimizer == name
        state[name] = found.prediction.parts["optimizer_state"]
        weights = found.prediction.parts["parameters"]
    assert state["sgd"] == 0
    assert state["sgd-momentum"] == weights
    assert state["adam"] == state["adamw"] == state["adamw-fused"] == 2 * weights
    assert 0 < state.get("adafactor", 1) < weights


def test_recomputing(tiny, train):
    peaks = {way: _estimate.run(request(tiny, batch=64, recompute=way)) for way in _options.RECOMPUTE}
    for way in ("blocks", "all"):
        assert peaks[way].prediction.peak_bytes < peaks["none"].prediction.peak_bytes
        assert peaks[way].prediction.step_seconds > peaks["none"].prediction.step_seconds
    assert "no repeated blocks" in _estimate.run(request(f"{train}:plain", recompute="blocks")).notes[0]


def test_lists(capsys):
    for arguments in (("--list-gpus",), ("--gpu", "list")):
        code, output, errors = command(capsys, *arguments)
        assert (code, errors) == (0, "")
        assert "rtx3090           25.3 GB  bf16  NVIDIA GeForce RTX 3090\n" in output
        code, output, errors = command(capsys, *arguments, "--json")
        gpus = json.loads(output)["gpus"]
        assert (code, errors) == (0, "")
        assert all(set(gpu) == {"key", "name", "memory_bytes", "capability", "precision"} for gpu in gpus)
    code, output, errors = command(capsys, "--list-models")
    assert (code, errors) == (0, "")
    assert [line.split()[0] for line in output.splitlines()] == list(_models.REGISTRY)
    models = json.loads(command(capsys, "--list-models", "--json")[1])["models"]
    assert {"name": "gpt2", "class": "GPT2LMHeadModel", "seq": 512} in models
    assert {"name": "vit-base", "class": "ViTForImageClassification", "seq": None} in models


# Its output


def check_schema(report):
    assert list(report) == list(KEYS)
    for key, kind in KEYS.items():
        assert isinstance(report[key], kind), key
    assert set(report["parts"]) == PARTS
    assert sum(report["parts"].values()) == report["steady_peak_bytes"]
    assert report["low_bytes"] < report["peak_bytes"] < report["high_bytes"]
    assert report["peak_bytes"] == max(report["first_peak_bytes"], report["steady_peak_bytes"])
    assert report["peak_bytes"] <= report["needed_bytes"]
    assert report["fits"] == (report["needed_bytes"] <= report["usable_bytes"] - report["margin_bytes"])
    assert set(report["place"]) == {"unit", "phase"}
    assert set(report["passes"]) == {"unit", "phase", "peak_bytes", "parts"}
    assert report["passes"]["peak_bytes"] <= report["steady_peak_bytes"]
    assert report["source"] == "static"
    for way in report["alternatives"]:
        assert list(way) == ["options", "text", "fits", "peak_bytes", "step_seconds"]


def test_json_and_exit_codes(tiny, capsys, patient):
    arguments = ("--model", tiny, "--gpu", "rtx3090", "--batch", "64", "--json")
    code, output, errors = command(capsys, *arguments)
    assert (code, errors) == (0, "")
    report = json.loads(output)
    check_schema(report)
    assert report["alternatives"] == []
    assert report["fits"]
    code, output, errors = command(capsys, *arguments, "--budget", "0.15")
    assert (code, errors) == (3, "")
    less = json.loads(output)
    check_schema(less)
    assert not less["fits"]
    assert (less["budget_gb"], less["usable_bytes"]) == (0.15, 150_000_000)
    assert less["peak_bytes"] == report["peak_bytes"]
    assert [way["options"].split()[0] for way in less["alternatives"]] == ["--budget", "--recompute", "--batch"]
    code, output, errors = command(capsys, *arguments[:-1], "--budget", "0.15")
    assert (code, errors) == (3, "")
    for words in ("does not fit", "alternatives", "--recompute blocks", "150 MB budget"):
        assert words in output


@pytest.mark.parametrize("before", [None, "0"])
def test_the_environment_is_left_as_it_was(tiny, monkeypatch, before):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    if before is not None:
        monkeypatch.setenv("HF_HUB_OFFLINE", before)
    environment = dict(os.environ)
    _estimate.run(request(tiny))
    assert dict(os.environ) == environment
    with pytest.raises(memscale.MemScaleError):
        _estimate.run(request("nothing:of-this-name"))
    assert dict(os.environ) == environment


def test_equal_questions_have_equal_answers(tiny):
    first, second = (_estimate.run(request(tiny, batch=3)).to_dict() for _ in range(2))
    assert first == second


def test_the_largest_batch_is_the_largest(train, patient):
    """The batch that is found is the largest that fits, and few traces are needed to find it."""
    subject = f"{train}:wide"
    for budget in (0.12, 0.15, 0.5):
        found = _estimate.run(request(subject, batch=100, budget=budget))
        assert not found.prediction.fits
        way = next(way for way in found.alternatives if way.options.startswith("--batch"))
        assert (way.fits, way.text) == (True, "the largest batch"), way
        batch = int(way.options.split()[1])
        at, beyond = (_estimate.run(request(subject, batch=n, budget=budget)) for n in (batch, batch + 1))
        assert at.prediction.fits
        assert at.prediction.peak_bytes == way.peak_bytes
        assert not beyond.prediction.fits


def on_a_small_gpu(monkeypatch, n_bytes):
    """An RTX 3090 with this much memory. Larger GPUs are as they are."""
    find = _devices.find
    small = zoo.device_with(find("rtx3090"), usable_bytes=n_bytes)
    monkeypatch.setattr(_devices, "find", lambda name, model=None: small if name == "rtx3090" else find(name, model))


def test_out_of_time(train, monkeypatch):
    """What needs no other trace is tried all the same."""
    monkeypatch.setattr(_estimate, "_SECONDS", 0)
    found = _estimate.run(request(f"{train}:wide", batch=100, budget=0.5))
    assert [way.options.split()[0] for way in found.alternatives] == ["--budget", "--recompute"]
    on_a_small_gpu(monkeypatch, 10**8)
    ways = _estimate.run(request(f"{train}:wide", batch=100)).alternatives
    assert [way.fits for way in ways] == [False, False, True]
    assert ways[1].text == "not all of them could be tried in time"


def test_changes_that_fit_together(train, monkeypatch, patient):
    """The cheapest sets of changes are named, with arguments that do fit, and none that contains another."""
    on_a_small_gpu(monkeypatch, 76_000_000)
    found = _estimate.run(request(f"{train}:wide", batch=8))
    assert not found.prediction.fits
    wanted = (
        r"--batch [1-7] --precision pure-bf16",
        r"--batch [1-7] --optimizer adafactor",
        r"--precision pure-bf16 --optimizer adafactor --recompute blocks",
    )
    assert len(found.alternatives) == len(wanted)
    for pattern, way in zip(wanted, found.alternatives):
        assert re.fullmatch(pattern, way.options)
        words = way.options.replace("--", "").split()
        changes = {"batch": 8, **dict(zip(words[::2], words[1::2]))}
        changed = _estimate.run(request(f"{train}:wide", **{**changes, "batch": int(changes["batch"])})).prediction
        assert (changed.fits, changed.peak_bytes, changed.step_seconds) == (True, way.peak_bytes, way.step_seconds)


def test_nothing_fits(train, monkeypatch, patient):
    """Nothing fits: what came closest, and a larger GPU, if one exists."""
    on_a_small_gpu(monkeypatch, 20_000_000)
    closest, larger = _estimate.run(request(f"{train}:wide", batch=8)).alternatives
    assert not closest.fits
    assert closest.peak_bytes > 20_000_000
    assert larger.fits
    assert larger.options.startswith("--gpu ")


def test_a_larger_gpu(monkeypatch, train, patient):
    small, find = zoo.device_with(_devices.find("t4"), usable_bytes=10**7), _devices.find
    monkeypatch.setattr(_devices, "find", lambda name, model=None: small if name == "t4" else find(name, model))
    way = _estimate.run(request(f"{train}:plain", "t4")).alternatives[-1]
    assert (way.options, way.fits) == ("--gpu gtx1650", True)  # the smallest that has fp16
    way = _estimate.run(request(f"{train}:plain", "t4", precision="bf16")).alternatives[-1]
    assert (way.options, way.fits) == ("--gpu rtx5060", True)  # and bf16: it has 7680 MiB


def test_a_model_that_does_not_take_small_batches(train, tmp_path, patient):
    text = "def picky(batch):\n    assert batch > 90\n    return wide(batch)\n"
    (tmp_path / f"{train}.py").write_text(f"{TRAIN}\n{text}")
    found = _estimate.run(request(f"{train}:picky", batch=100, budget=0.12))
    assert found.alternatives
    assert not any("--batch" in way.options for way in found.alternatives)


# What a terminal gets


class Terminal(io.StringIO):
    """A terminal of any encoding."""

    def __init__(self, encoding):
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self):
        return self._encoding

    def isatty(self):
        return True


@pytest.fixture
def show(monkeypatch):
    """What a terminal shows, line by line."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def run(found, width, encoding="utf-8"):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys, "stdout", Terminal(encoding))
        _estimate.show(found)
        return sys.stdout.getvalue().splitlines()

    return run


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """An estimate that fits, one that does not, one that nearly does, and some unusual ones."""
    path = tmp_path_factory.mktemp("answers") / "a-configuration-with-a-long-name.json"
    path.write_text(json.dumps(TINY))
    fits = _estimate.run(_options.EstimateOptions(str(path), gpu="h200", batch=128))
    peak = fits.prediction.peak_bytes
    far, near, scattered = (
        dataclasses.replace(fits.prediction, fits=False, usable_bytes=int(peak * share)) for share in (0.3, 0.99, 1.001)
    )
    ways = (
        _advice.Alternative("--recompute blocks", "", True, 10**9, 0.5),
        _advice.Alternative("--batch 1 --recompute blocks", "no batch fits: 4 GB do not depend on it", False),
    )
    first = dataclasses.replace(fits.simulation, first_peak_bytes=peak + 1, steady_peak_bytes=peak)
    optimizer = dataclasses.replace(fits.prediction, place=(None, "optimizer_step"))
    large = dataclasses.replace(
        fits.prediction, **{name: getattr(far, name) * 10**6 for name in ("peak_bytes", "low_bytes", "high_bytes")}
    )
    return [
        fits,
        dataclasses.replace(fits, prediction=far, alternatives=ways),
        dataclasses.replace(fits, prediction=near, alternatives=ways),
        dataclasses.replace(fits, prediction=scattered, alternatives=ways, notes=("a note",)),
        dataclasses.replace(fits, prediction=optimizer, simulation=first),
        dataclasses.replace(fits, prediction=large),
    ]


def plain(line):
    return re.sub(r"\x1b\[\d+m", "", line)


def test_any_width(answers, show):
    for width, encoding in itertools.product(range(20, 203), ("utf-8", "ascii")):
        for found in answers:
            for line in map(plain, show(found, width, encoding)):
                assert len(line) <= width, (width, line)
                assert line == line.rstrip()
                assert encoding != "ascii" or line.isascii()


def test_bars(answers, show):
    fits, far = answers[:2]
    for width in (40, 80, 120, 200):
        lines = [plain(line) for line in show(fits, width)]
        chart = lines[lines.index("") + 1 :][:9]
        at = {line.index("│") for line in chart}
        assert at == {width - 1}  # the limit, at the end of the scale
        assert "█" in chart[-1] or "▒" in chart[-1]
        lines = [plain(line) for line in show(far, width)]
        chart = lines[lines.index("") + 1 :][:9]
        (at,) = {line.index("│") for line in chart}
        assert at < width / 2 + 15
        assert "█" in chart[-1][at:]
        assert chart[-1].endswith("▒")
        starts = [line.index("█") for line in chart[:-1] if "█" in line]
        assert starts == sorted(starts)  # one after the other
    assert not any(set("█▒│#") & set(line) for line in show(fits, 30))  # no room
    text = "\n".join(show(far, 80, "ascii"))
    assert "#" in text
    assert "|" in text
    text = "\n".join(show(far, 80, "cp437"))  # which has some of the blocks, not all
    assert text.isascii()


def test_words(answers, show):
    fits, far, near, scattered, optimizer, large = ("\n".join(map(plain, show(found, 200))) for found in answers)
    for words in (
        "128 sequences of 128 tokens, bf16 autocast (default for this GPU), adamw",
        " to spare of the 149 GB",
    ):
        assert words in fits
    assert "alternatives" not in fits
    assert "modelled from the data sheet's rates, not measured" in fits
    assert re.search(r"^does not fit  .* more than the ", far, re.MULTILINE)
    assert "--recompute blocks            fits: 1.00 GB, 500 ms a step" in far
    assert "--batch 1 --recompute blocks  no batch fits: 4 GB do not depend on it" in far
    assert "but barely: the error band begins below it" in near
    assert "has to stay free, since predictions may be wrong" in scattered
    assert "note          a note" in scattered
    assert re.search(r"^peak .* in the optimizer step$", optimizer, re.MULTILINE)
    assert re.search(r"^backward .* of it activations$", optimizer, re.MULTILINE)
    assert "that is in the first step; later ones take" in optimizer
    assert "TB" in large


def test_colour(answers, show, monkeypatch):
    fits, far = answers[:2]
    assert any(line.startswith("\x1b[32mfits") for line in show(fits, 80))
    lines = show(far, 80)
    assert any(line.startswith("\x1b[31mdoes not fit") for line in lines)
    assert any("\x1b[31m█" in line for line in lines)  # beyond the limit
    monkeypatch.setenv("NO_COLOR", "")
    assert not any("\x1b" in line for line in show(far, 80))
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not any("\x1b" in line for line in show(far, 80))


def test_elsewhere_lines_stay_whole(answers, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    _estimate.show(answers[0])
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert "128 sequences of 128 tokens, bf16 autocast (default for this GPU), adamw\n" in output
    monkeypatch.setattr(sys, "stdout", None)
    _estimate.show(answers[1])  # closed: no error


def test_figures():
    for n in (0, 1, 999, 1000, 9994, 9995, 99_949, 99_950, 999_499, 999_500, 10**9, 123_456_789_012, 10**15):
        assert len(_figures.size(n)) <= 7, n
    assert [_figures.size(n) for n in (0, 999_499, 999_500, 1_423_000_000)] == ["0 B", "999 kB", "1.00 MB", "1.42 GB"]
    assert [_figures.quantity(n) for n in (7, 1500, 354_823_168, 8_030_261_248)] == ["7", "1.50 k", "354.8 M", "8.03 B"]
    assert [_figures.duration(s) for s in (5e-5, 0.0042, 0.198, 1.72, 33)] == [
        "50.0 us",
        "4.20 ms",
        "198 ms",
        "1.72 s",
        "33.0 s",
    ]


def test_progress(monkeypatch):
    """Quick work shows no progress, and a line of progress is removed afterwards."""
    stream = Terminal("utf-8")
    progress = _terminal.Progress(stream, delay=0.05)
    progress("quick")
    progress.close()
    time.sleep(0.1)
    assert stream.getvalue() == ""
    progress = _terminal.Progress(stream, delay=0.05)
    progress("slow")
    deadline = time.monotonic() + 20
    while not stream.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)
    progress("slower")
    progress.close()
    assert stream.getvalue() == "slow...\r       \rslower...\r         \r"
    silent = io.StringIO()
    progress = _terminal.Progress(silent, delay=0.01)
    progress("not a terminal")
    time.sleep(0.05)
    progress.close()
    assert silent.getvalue() == ""


def test_progress_of_the_command(monkeypatch, tiny, capsys):
    lines = []
    _estimate.run(request(tiny), lines.append)
    assert lines == [f"making {tiny}", f"tracing {tiny}"]


# Documents

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "docs/ESTIMATE.md")


def test_every_command_in_a_document_is_one():
    for document in DOCUMENTS:
        lines = re.findall(
            r"^(?:\$ |# train.py: )?(memscale estimate .*)$", (ROOT / document).read_text(), re.MULTILINE
        )
        assert lines
        for line in lines:
            assert commands.make_parser().parse_args(shlex.split(line)[1:]).model


def test_the_example_of_the_readme(capsys, monkeypatch):
    """The output is as in the README, except for figures."""
    monkeypatch.setenv("COLUMNS", "90")
    text = re.search(r"```\n\$ memscale estimate (.*)\n([^`]*)```", (ROOT / "README.md").read_text())
    code, output, errors = command(capsys, *shlex.split(text.group(1)))
    assert (code, errors) == (0, "")

    def words(lines):
        return [re.sub(r"[^a-z]+", " ", line) for line in lines.splitlines()]

    assert words(output) == words(text.group(2))


def test_the_function_of_the_document(tmp_path, monkeypatch):
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs/ESTIMATE.md").read_text(), re.DOTALL).group(1)
    model = """
import torch

class MyModel(torch.nn.Embedding):
    def __init__(self):
        super().__init__(100, 8)

    def forward(self, input_ids, labels):
        return super().forward(input_ids).sum()
"""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "train_of_the_document", raising=False)
    (tmp_path / "train_of_the_document.py").write_text(f"{model}\n{code}")
    found = _estimate.run(request("train_of_the_document:build", batch=8, seq=1024))
    assert (found.batch, found.seq, found.optimizer) == (8, 1024, "AdamW")


# Manners


def test_transformers_and_warnings_are_quiet_inside_and_as_they_were_outside(tiny, capsys, monkeypatch):
    logger = transformers.utils.logging
    before = logger.get_verbosity()
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "info")
    logger.set_verbosity_info()
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            code, _, errors = command(capsys, "--model", tiny, "--gpu", "t4")
        assert (code, errors, seen) == (0, "", [])
        assert logger.get_verbosity() == logger.INFO
        assert os.environ["TRANSFORMERS_VERBOSITY"] == "info"
    finally:
        logger.set_verbosity(before)


def environment(**changes):
    path = os.pathsep.join([str(Path(memscale.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    kept = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    return {**kept, "PYTHONPATH": path, **changes}


def test_no_network_no_files_no_noise(tmp_path):
    """As a process of its own, with every warning an error and no sockets."""
    code = """
        import os, socket, sys

        def refuse(*arguments, **named):
            raise AssertionError("a socket")

        socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
        from memscale.cli import main

        code = main(["estimate", "--model", "opt-125m", "--gpu", "rtx3090", "--seq", "32"])
        from huggingface_hub import constants

        assert constants.HF_HUB_OFFLINE  # it was off line when it was loaded
        assert "HF_HUB_OFFLINE" not in os.environ
        sys.exit(code)
        """
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env=environment(HF_HOME=str(tmp_path / "hub"), HOME=str(tmp_path), PYTHONIOENCODING="ascii"),
        cwd=tmp_path,
        timeout=200,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.isascii()
    assert "opt-125m on NVIDIA GeForce RTX 3090\n125.2 M parameters, 1 sequence of 32 tokens," in result.stdout
    assert not (tmp_path / "hub").exists()


def test_a_reader_that_leaves():
    process = subprocess.Popen(
        [sys.executable, "-m", "memscale", "estimate", "--list-gpus"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=100) == 1
