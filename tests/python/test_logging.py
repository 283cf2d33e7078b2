"""What is logged, where it goes, and that logging is as before after detach."""

import contextlib
import io
import logging
import re

import pytest
import torch

import memscale
import zoo
from memscale import Config


@contextlib.contextmanager
def as_in_a_script():
    """Without pytest's own handlers on the root logger."""
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    try:
        yield
    finally:
        root.handlers = handlers


def one_step(model):
    args, kwargs = zoo.batch_of("gpt2")
    model(*args, **kwargs).loss.backward()


def test_standard_output_while_attached(capsys):
    with as_in_a_script():
        model = memscale.wrap(zoo.make("gpt2"), Config(force_optimize=True))
        one_step(model)
        memscale.detach(model)
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("memscale: ") for line in lines)
    text = "\n".join(lines)
    expected = ("host: ", "GB usable", "GPT2LMHeadModel", "the plan is made", "recompute", "peak", "detached")
    for words in expected:
        assert words in text
    logger = logging.getLogger("memscale")
    with as_in_a_script():
        logger.info("afterwards")
    assert [type(h) for h in logger.handlers] == [logging.NullHandler]
    assert logger.level == logging.NOTSET
    assert capsys.readouterr().out == ""


def train(model, x, kind=torch.optim.AdamW):
    """Two steps with an optimizer that is made now."""
    optimizer = kind(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()


def linears():
    return torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))


WAYS = {
    "with a sample": (True, {}, "", "nothing to do: "),
    "without": (False, {}, "; the plan is made in the first training forward", "nothing to do: "),
    "optimized": (False, {"force_optimize": True}, "; the plan is made in the first training forward", ""),
    "a budget": (True, {"memory_budget_gb": 1}, "", "keep all "),
    "watched": (False, {"use_static_profiling": False}, "; the plan is made after the first step, ", "nothing to do: "),
}


@pytest.mark.parametrize("way", WAYS)
def test_three_lines(way, capsys):
    """The hardware; the model, its budget and when it is planned; the plan. Nothing is said twice or taken back."""
    with_sample, changes, when, plan = WAYS[way]
    x = zoo.floats(4, 8)
    with as_in_a_script():
        model = memscale.wrap(linears(), Config(**changes), sample_input=x if with_sample else None)
        train(model, x)
        train(model, x)
        memscale.detach(model)
    hardware, about, planned, detached = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"memscale: host: .* usable of .*, \d+ cores", hardware)
    budget = "budget 1.00 GB" if way == "a budget" else r"budget \S+ GB, 85 % of what is usable"
    assert re.match(rf"memscale: model: \w+, \d+ layers, on cpu; {budget}{re.escape(when)}", about)
    assert when or re.search(budget + "$", about)
    assert planned.startswith(f"memscale: plan: {plan}")
    assert detached.startswith("memscale: detached")


def test_an_optimizer_that_comes_later(capsys):
    """A plan for a sample assumes AdamW. With another optimizer there is a second line that names it."""
    (x,), _ = zoo.batch_of("mlp")
    with as_in_a_script():
        model = memscale.wrap(zoo.make("mlp"), sample_input=x)
        train(model, x, torch.optim.SGD)
        memscale.detach(model)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[3].startswith("memscale: plan with SGD: ")


def test_a_step_that_has_to_be_watched(capsys):
    """That it is watched is said once, when it is known."""

    class Reads(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x) if x.sum().item() < 1e9 else x
            return x

    with as_in_a_script():
        model = memscale.wrap(Reads())
        train(model, zoo.floats(4, 8))
        memscale.detach(model)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[2].startswith("memscale: the plan is made after the first step, which is watched while it runs")


def test_two_models_share_the_handler(capsys):
    with as_in_a_script():
        first, second = (memscale.wrap(zoo.make("mlp")) for _ in range(2))
        memscale.detach(first)
        capsys.readouterr()
        memscale.detach(second)
    assert capsys.readouterr().out.count("detached") == 1


def test_a_handler_of_the_user_is_enough(capsys):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("memscale")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with as_in_a_script():
            memscale.detach(memscale.wrap(zoo.make("mlp"), sample_input=zoo.batch_of("mlp")[0]))
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert "plan: " in stream.getvalue()
    assert capsys.readouterr().out == ""


def test_off(capsys):
    with as_in_a_script():
        model = memscale.wrap(zoo.make("gpt2"), Config(enable_logging=False))
        one_step(model)
        memscale.detach(model)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_log_file_gets_everything_whatever_the_levels(tmp_path, capsys):
    path = tmp_path / "memscale.log"
    model = memscale.wrap(zoo.make("gpt2"), Config(log_file=path, force_optimize=True))
    one_step(model)
    memscale.detach(model)
    text = path.read_text()
    assert "host: " in text
    assert re.search(r"plan: .*: peak .* -> ", text)
    assert "detached" in text
    assert capsys.readouterr().out == ""  # pytest's handlers on the root logger take the rest


def test_use_cache_is_said_once(caplog):
    with caplog.at_level(logging.INFO, "memscale"):
        model = zoo.llama().train()
        memscale.wrap(model, Config(), plan=zoo.recompute_plan(model))
        for _ in range(3):
            model(zoo.tokens(1, 6)).logits.sum().backward()
        memscale.detach(model)
    assert sum("use_cache" in record.message for record in caplog.records) == 1
