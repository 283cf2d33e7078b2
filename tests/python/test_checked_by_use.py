"""Plans that are checked by their use: a step is measured, layer by layer, and compared with its simulation.

On a CPU nothing can be read, so the readings here come from the tests: from torch's own reports of what it allocates
(meter.py), or from a script.
"""

import logging
import threading

import pytest
import torch

import memscale
import zoo
from memscale._run import checking
from meter import Meter
from quick import _as_users_train, _one_thread  # noqa: F401
from zoo import LARGE

MIB = 1 << 20


class Moment:
    """When a reading was made, in steps of a microsecond; the device is `late` questions behind."""

    late = 0

    def __init__(self, n):
        self.n = n

    def query(self):
        Moment.late -= 1
        return Moment.late < 0

    def elapsed_time(self, end):
        return (end.n - self.n) / 1000


class Scripted:
    """Says what it is told: the n-th reading is the n-th of `values`, then 0."""

    def __init__(self, values=(), peaks=()):
        self.values, self.peaks = list(values), list(peaks)
        self.n_read = self.n_moments = 0
        self.fails_at = -1
        self.ready = True

    def is_ready(self):
        return self.ready

    def allocated_bytes(self):
        self.n_read += 1
        if self.n_read == self.fails_at:
            raise RuntimeError("no figure")
        return self.values.pop(0) if self.values else 0

    def peak_bytes(self):
        return self.peaks.pop(0) if self.peaks else 0

    def moment(self):
        self.n_moments += 1
        return Moment(self.n_moments)


class Metered(Scripted):
    """Marks each reading for a meter, which knows the figures afterwards."""

    def __init__(self, meter):
        super().__init__()
        self.meter = meter

    def allocated_bytes(self):
        self.n_read += 1
        with self.meter.mark(str(self.n_read)):
            return self.n_read


def wrapped(monkeypatch, source, name="encoder", **config):
    """A model whose plan does something; its steps are read from this source."""
    monkeypatch.setattr(checking, "source_of", lambda model: source)
    settings = {"mode": "aggressive", "force_optimize": True, **config}
    return memscale.wrap(zoo.make(name), memscale.Config(**settings))


def train(model, n, name="encoder", batch=None):
    args, kwargs = batch or zoo.batch_of(name)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(n):
        zoo.loss_of(model(*args, **kwargs)).backward()
        optimizer.step()
        optimizer.zero_grad()


def measured_of(model):
    return memscale.executor_of(model).measured


def predicted_of(monkeypatch):
    """What the simulation says at each boundary of the model's step."""
    model = wrapped(monkeypatch, Scripted(), enable_logging=False)
    train(model, 3)
    found = [reading.predicted_bytes for reading in measured_of(model).readings]
    memscale.detach(model)
    return found


# What is measured


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "vit", "resnet", "llama"])
def test_boundaries_of_the_simulation_are_those_of_the_step(name, monkeypatch):
    """By torch's own reports: what is allocated where layers begin is what the simulation says for it."""
    with Meter() as meter:
        source = Metered(meter)
        monkeypatch.setattr(checking, "source_of", lambda model: source)
        model, batch = LARGE.make(name), LARGE.batch_of(name)
        profile = memscale.profile(model, batch[0] or batch[1])
        low, high = profile.predict("all").needed_bytes, profile.predict().needed_bytes
        budget = (low + 0.4 * (high - low)) * 64 / 63
        memscale.wrap(model, memscale.Config(memory_budget_gb=budget / 1e9, enable_logging=False))
        train(model, 4, batch=batch)
        executor = memscale.executor_of(model)
    assert executor.plan.n_changed > 0
    assert len(executor.measured.readings) >= 3 * len(executor.plan.entries) - 2
    figures = {n: meter[str(n)].before for n in range(1, source.n_read + 1)}
    start = executor.measured.start_bytes
    for reading in executor.measured.readings:
        found = figures[start + reading.measured_bytes] - figures[start]
        slack = 0.02 * executor.plan.predicted_peak_bytes
        if reading.boundary == "forward ends":  # whoever called the layer holds its inputs
            slack += 2 * MIB
        assert abs(found - reading.predicted_bytes) <= slack, reading
    memscale.detach(model)


def test_a_prediction_that_holds(monkeypatch, caplog):
    """A constant offset, from whatever else is there, does not count. Two steps are read, and then nothing is."""
    predicted = predicted_of(monkeypatch)
    source = Scripted([MIB, *(MIB + n for n in predicted)])
    with caplog.at_level(logging.INFO, "memscale"):
        model = wrapped(monkeypatch, source)
        executor = memscale.executor_of(model)
        train(model, 2)
        handlers = [unit.handler for unit in executor._units]
        assert (source.n_read, executor.measured) == (0, None)
        train(model, 1)
        found = executor.measured
        assert source.n_read == 1 + len(predicted)
        assert (found.start_bytes, found.difference_bytes, found.first) == (MIB, 0, None)
        assert found.margin_bytes == executor.plan.margin_bytes
        assert all(r.measured_bytes == r.predicted_bytes for r in found.readings)
        assert {r.measured_ns for r in found.readings} == {None}
        train(model, 1)
        monkeypatch.setattr(Moment, "late", 2)  # the device is two steps behind
        train(model, 2)
        assert executor.measured is found
        train(model, 5)
    assert [r.measured_ns for r in executor.measured.readings] == [1000 * (i + 1) for i in range(len(predicted))]
    times = [r.predicted_ns for r in found.readings]
    assert times == sorted(times)
    assert times[-1] > 0
    assert (source.n_read, source.n_moments) == (1 + len(predicted), 1 + len(predicted))
    assert [unit.handler for unit in executor._units] == handlers
    memscale.detach(model)
    assert found.difference_bytes == 0
    assert not [record for record in caplog.records if "predicted" in record.message]


def test_more_than_predicted_is_said_once(monkeypatch, caplog):
    predicted = predicted_of(monkeypatch)
    model = wrapped(monkeypatch, Scripted())
    layers = [unit.name for unit in memscale.executor_of(model)._units]
    margin = memscale.plan(model, *zoo.batch_of("encoder")[0], config=memscale.executor_of(model).config).margin_bytes
    memscale.detach(model)
    more = [0, 0, *[margin + 10**9] * (len(predicted) - 2)]
    more[4] += 10**9
    source = Scripted([0, *(n + extra for n, extra in zip(predicted, more))])
    with caplog.at_level(logging.WARNING, "memscale"):
        model = wrapped(monkeypatch, source)
        train(model, 8)
    (record,) = caplog.records
    assert measured_of(model).difference_bytes == margin + 2 * 10**9
    assert (measured_of(model).worst.layer, measured_of(model).first.layer) == (layers[2], layers[1])
    words = (
        f"allocated before the forward of layer '{layers[2]}' where ",
        f"The difference begins before the forward of layer '{layers[1]}'. Steps may run out of memory. ",
        "Config(use_static_profiling=False) plans from a step that is watched",
    )
    assert all(part in record.message for part in words), record.message
    memscale.detach(model)


def test_what_a_loss_takes_is_named(monkeypatch, caplog):
    predicted = predicted_of(monkeypatch)
    n_forward = 2 * len(predicted) // 3
    late = [10**15 * (i >= n_forward) for i in range(len(predicted))]
    with caplog.at_level(logging.WARNING, "memscale"):
        model = wrapped(monkeypatch, Scripted([0, *(n + extra for n, extra in zip(predicted, late))]))
        train(model, 4)
        memscale.detach(model)
    assert "A loss outside of the model is predicted as the sum of its outputs." in caplog.records[0].message


def test_less_than_predicted_is_no_warning(monkeypatch, caplog):
    with caplog.at_level(logging.INFO, "memscale"):
        model = wrapped(monkeypatch, Scripted([10**15]))
        train(model, 4)
    (said,) = [record for record in caplog.records if "were predicted" in record.message]
    assert said.levelno == logging.INFO
    assert "less" in said.message
    assert measured_of(model).difference_bytes < 0
    memscale.detach(model)


def test_a_peak_is_known_where_it_is_the_highest(monkeypatch):
    highest = Scripted(peaks=[5, 7 * MIB])
    model = wrapped(monkeypatch, highest, enable_logging=False)
    train(model, 3)
    peak = measured_of(model).readings[-1]
    assert (peak.layer, peak.boundary, peak.measured_bytes) == (None, "peak", 7 * MIB)
    assert peak.predicted_bytes >= max(r.predicted_bytes for r in measured_of(model).readings[:-1])
    memscale.detach(model)
    model = wrapped(monkeypatch, Scripted(peaks=[5, 5]), enable_logging=False)
    train(model, 3)
    assert "peak" not in {reading.boundary for reading in measured_of(model).readings}
    memscale.detach(model)


# What is not


def test_training_is_the_same(monkeypatch, no_warnings):
    batch = zoo.batch_of("gpt2")
    plain = zoo.train(zoo.make("gpt2"), batch, steps=6)
    source = Scripted()
    model = wrapped(monkeypatch, source, "gpt2", enable_logging=False)
    zoo.assert_same(plain, zoo.train(model, batch, steps=6))
    assert source.n_read > 0
    assert source.n_moments > 0
    memscale.detach(model)


def test_where_nothing_is_done_nothing_is_read(monkeypatch):
    source = Scripted()
    monkeypatch.setattr(checking, "source_of", lambda model: source)
    model = memscale.wrap(zoo.make("encoder"), memscale.Config(enable_logging=False))
    train(model, 5)
    assert memscale.executor_of(model).plan.skipped
    assert (source.n_read, measured_of(model)) == (0, None)
    memscale.detach(model)


def test_a_plan_that_is_given_has_no_prediction(monkeypatch):
    source = Scripted()
    monkeypatch.setattr(checking, "source_of", lambda model: source)
    model = zoo.everything_recomputed(zoo.make("encoder"))
    train(model, 5)
    assert source.n_read == 0
    memscale.detach(model)


def test_only_steps_like_the_profiled_one(monkeypatch):
    """Of other sizes, or with gradients that are held: these are other steps."""
    (x,), _ = zoo.batch_of("encoder")
    source = Scripted()
    model = wrapped(monkeypatch, source, enable_logging=False)
    train(model, 2)
    train(model, 2, batch=((x[:1],), {}))
    model(x).sum().backward()
    source.n_read = 0
    for _ in range(3):
        model(x).sum().backward()
    assert source.n_read == 0
    model.zero_grad()
    train(model, 3)
    assert source.n_read > 0
    memscale.detach(model)


def test_a_capture_is_not_measured(monkeypatch):
    source = Scripted()
    source.ready = False
    model = wrapped(monkeypatch, source, enable_logging=False)
    train(model, 5)
    assert (source.n_read, measured_of(model)) == (0, None)
    memscale.detach(model)


@pytest.mark.parametrize("fails_at", [1, 2, 9])
def test_a_reading_that_fails_is_not_the_users_problem(fails_at, monkeypatch, no_warnings):
    source = Scripted()
    source.fails_at = fails_at
    model = wrapped(monkeypatch, source, enable_logging=False)
    train(model, 3)
    assert measured_of(model) is None
    train(model, 3)
    assert (measured_of(model) is None) == (fails_at == 1)  # another step is measured in its place
    memscale.detach(model)


def test_a_forward_that_raises(monkeypatch):
    class Breaks(torch.nn.Linear):
        breaks = False

        def forward(self, x):
            if self.breaks:
                raise ZeroDivisionError
            return super().forward(x)

    source = Scripted()
    monkeypatch.setattr(checking, "source_of", lambda model: source)
    settings = memscale.Config("aggressive", force_optimize=True, enable_logging=False)
    blocks = [torch.nn.Sequential(Breaks(64, 64), torch.nn.GELU()) for _ in range(4)]
    model = memscale.wrap(torch.nn.Sequential(*blocks), settings)
    batch = (zoo.floats(256, 64),), {}
    train(model, 2, batch=batch)
    executor = memscale.executor_of(model)
    handlers = [unit.handler for unit in executor._units]
    assert any(handlers)
    blocks[2][0].breaks = True
    with pytest.raises(ZeroDivisionError):
        train(model, 1, batch=batch)
    assert source.n_read > 1
    assert [unit.handler for unit in executor._units] == handlers
    blocks[2][0].breaks = False
    train(model, 3, batch=batch)
    assert executor.measured is not None
    memscale.detach(model)


def test_detached_in_the_middle_of_a_step(monkeypatch):
    (x,), _ = zoo.batch_of("encoder")
    source = Scripted()
    model = wrapped(monkeypatch, source, enable_logging=False)
    train(model, 2)
    executor = memscale.executor_of(model)
    loss = model(x).sum()
    n_read = source.n_read
    assert n_read > 0
    memscale.detach(model)
    loss.backward()
    assert source.n_read == n_read
    assert executor.measured is None
    assert all(unit.handler is None for unit in executor._units)


def test_backward_on_another_thread(monkeypatch):
    (x,), _ = zoo.batch_of("encoder")
    model = wrapped(monkeypatch, Scripted(), enable_logging=False)
    train(model, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(6):
        thread = threading.Thread(target=model(x).sum().backward)
        thread.start()
        thread.join()
        optimizer.step()
        optimizer.zero_grad()
    assert measured_of(model) is None
    memscale.detach(model)


def test_called_twice_in_a_step(monkeypatch):
    (x,), _ = zoo.batch_of("encoder")
    source = Scripted()
    model = wrapped(monkeypatch, source, enable_logging=False)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(8):
        (model(x) + model(x)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    n_read = source.n_read
    train(model, 4)
    assert source.n_read == n_read  # it was tried often enough
    memscale.detach(model)


def test_two_models_in_turns(monkeypatch):
    (x,), _ = zoo.batch_of("encoder")
    sources = [Scripted(), Scripted()]
    models = [wrapped(monkeypatch, source, enable_logging=False) for source in sources]
    optimizers = [torch.optim.AdamW(model.parameters()) for model in models]
    for _ in range(5):
        loss = sum(model(x).pow(2).mean() for model in models)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for model, source in zip(models, sources):
        assert len(measured_of(model).readings) == source.n_read - 1
        memscale.detach(model)


def test_hooks_of_the_user_around_the_model(monkeypatch):
    """Its layers run as without MemScale then, which is not what was simulated."""
    (x,), _ = zoo.batch_of("encoder")
    model = wrapped(monkeypatch, Scripted(), enable_logging=False)
    for _ in range(5):
        with torch.autograd.graph.save_on_cpu():
            loss = model(x).sum()
        loss.backward()
        model.zero_grad()
    assert measured_of(model) is None
    memscale.detach(model)


@pytest.mark.watched
def test_a_plan_from_a_watched_step(monkeypatch):
    source = Scripted()
    model = wrapped(monkeypatch, source, enable_logging=False)
    train(model, 6)
    assert measured_of(model) is not None
    assert all(reading.predicted_bytes is not None for reading in measured_of(model).readings)
    memscale.detach(model)
