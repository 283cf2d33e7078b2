"""Peaks of many architectures on the CPU, predicted and measured: within 2 %. bench/predictions.py writes the table."""

import importlib.util

import pytest

from architectures import ARCHITECTURES
from prediction_cases import Case, rows_of
from quick import _as_users_train, _one_thread  # noqa: F401
from test_predict import skip_unknown_bf16

TOLERANCE = 0.02
SOME = ("deberta-v3", "qwen3", "bart", "clip", "swin", "timm-convnext", "wav2vec2")


def check(case):
    package = ARCHITECTURES[case.name].package
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    rows = rows_of(case)
    assert {row.source for row in rows} == {"static"}
    for row in rows:
        kind = "recomputed" if row.recomputed else "plain"
        error = f"{kind}, {row.step} step: {row.predicted} predicted, {row.measured} measured ({row.error:+.2%})"
        assert abs(row.error) <= TOLERANCE, error


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures(name):
    check(Case(name))


@pytest.mark.parametrize("optimizer", ["sgd", "adafactor"])
@pytest.mark.parametrize("name", SOME)
def test_optimizers(name, optimizer):
    check(Case(name, optimizer=optimizer))


@pytest.mark.parametrize("name", SOME)
def test_hooks_that_change_outputs(name):
    check(Case(name, "hooks", "sgd"))


@pytest.mark.parametrize("name", SOME)
def test_autocast_inside_forward(name):
    skip_unknown_bf16()
    check(Case(name, "autocast inside", "sgd"))
