"""shortcut_study.config in Python: the command line gives the types of the fields, a caller anything."""

import dataclasses
import re

import pytest

from shortcut_study.config import PRESETS, READ_BY, StudyConfig

MISTAKES = {
    "num_runs must be a whole number, got '3'": {"num_runs": "3"},
    "depth must be a whole number, got 16.0": {"depth": 16.0},
    "depths must be a list of whole numbers, got 3": {"depths": 3},
    "relu_depths must be a list of whole numbers, got (2.5,)": {"relu_depths": (2.5,)},
    "learning_rate must be a number, got True": {"learning_rate": True},
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_value_of_another_type_is_refused(message):
    with pytest.raises(ValueError, match=re.escape(message)):
        StudyConfig(**MISTAKES[message])
    assert StudyConfig(depths=[2, 3], learning_rate=1) == StudyConfig(depths=(2, 3), learning_rate=1)


PAPER = PRESETS["paper"]


@pytest.mark.parametrize("figure", READ_BY)
def test_a_figure_is_a_toy_by_what_it_reads(figure):
    read = READ_BY[figure]
    assert not PAPER.is_toy_size(figure, 60_000) and not StudyConfig().is_toy_size(figure, 4_000)
    assert PAPER.is_toy_size(figure, 300)  # of a small data set as of the first 300 of a large one
    few = {"relu_examples": 1000, "num_epochs": 100, "descent_epochs": 100}
    for name, value in few.items():
        assert dataclasses.replace(PAPER, **{name: value}).is_toy_size(figure, 60_000) == (name in read), name
    assert PRESETS["smoke"].is_toy_size(figure, 500)


def test_the_size_of_the_paper_is_its_depths_and_its_runs():
    assert all(PAPER.is_paper_size(figure) for figure in READ_BY)
    more = dataclasses.replace(PAPER, depths=(*PAPER.depths, 120), num_runs=20)
    assert more.is_paper_size("5") and more.is_paper_size("6")
    for changes, smaller in (({"depths": (2, 3, 6)}, "359"), ({"num_runs": 1}, "568"), ({"depth": 4}, "678")):
        config = dataclasses.replace(PAPER, **changes)
        assert [name for name in READ_BY if not config.is_paper_size(name)] == list(smaller)


def test_every_field_is_read_by_some_figure_or_by_all():
    of_all = {
        "figure",
        "dataset",
        "data_dir",
        "download",
        "examples",
        "input_scale",
        "centred",
        "mean_over_outputs",
        "seed",
    }
    fields = {field.name for field in dataclasses.fields(StudyConfig)}
    assert set().union(*READ_BY.values()) == fields - of_all - {"hparams"}


def test_fields_that_the_figure_does_not_read_are_named():
    config = dataclasses.replace(PAPER, figure="5")
    assert config.ignored_fields().keys() == set().union(*READ_BY.values()) - {"depths", "num_runs"}
    assert config.ignored_fields()["num_epochs"] == "figure 5 does not read it"
    assert not dataclasses.replace(config, figure="all").ignored_fields()
