"""What is logged, where it goes, and that logging is as before after detach."""

import contextlib
import io
import logging

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
    expected = ("host: ", "GB usable", "GPT2LMHeadModel", "the plan is made", "recompute", "predicted", "detached")
    for words in expected:
        assert words in text
    logger = logging.getLogger("memscale")
    with as_in_a_script():
        logger.info("afterwards")
    assert [type(h) for h in logger.handlers] == [logging.NullHandler]
    assert logger.level == logging.NOTSET
    assert capsys.readouterr().out == ""


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
    assert "layers recomputed: peak" in text
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
