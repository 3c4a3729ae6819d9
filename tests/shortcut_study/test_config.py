"""Invalid studies, and the figures' statements of their settings and size."""

import dataclasses

import numpy as np
import pytest
from refusals import refused

from identity_matters.config import DataConfig
from shortcut_study import dataset
from shortcut_study.config import PRESETS, StudyConfig
from shortcut_study.figures.all_figures import FIGURES
from shortcut_study.report import chosen_figures, is_paper_size, is_smoke_size, unused_fields

MISTAKES = {
    "num_runs must be a whole number, got '3'": {"num_runs": "3"},
    "depths must be whole numbers, got 3": {"depths": 3},
    "relu_depths must be a whole number, got 2.5": {"relu_depths": (2.5,)},
    "learning_rate must be a number, got True": {"learning_rate": True},
    "figure must be one of all, 3, 4, 5, 6, 7, 8, 9, 10, 11, convolutional, got '12'": {"figure": "12"},
    "depths must be numbers of at least 1, got (0, 6)": {"depths": (0, 6)},
    "depths must be numbers of at least 1, got ()": {"depths": ()},
    "multiples of shortcut_depth 2, got 5": {"depth": 5},
    "multiples of shortcut_depth 2, got 16 and (2, 3)": {"relu_depths": (2, 3)},
    "conv_depths must be multiples of 6": {"conv_depths": (6, 8)},
    "learning_rate must be positive, got -1": {"learning_rate": -1.0},
    "learning_rate must be a finite number, got nan": {"learning_rate": float("nan")},
    "num_runs must be at least 1, got 0": {"num_runs": 0},
    "seed must be at least 0, got -1": {"seed": -1},
    "input_scale must be at least 1e-06, got 0.0": {"input_scale": 0},
    "depth must be at most 10000": {"depth": 10_002},
}


@pytest.mark.parametrize("message", MISTAKES)
def test_an_impossible_study_is_rejected(message):
    assert message in refused(StudyConfig, **MISTAKES[message])
    assert StudyConfig(depths=[2, 3], learning_rate=1) == StudyConfig(depths=(2, 3), learning_rate=1)


@pytest.mark.parametrize(
    "figure, depths, lacks",
    [("3", (2, 4), 0), ("3", (3, 9), 2), ("5", (2, 4), 3), ("9", (6,), 0), ("10", (3,), 0), ("all", (3, 9), 2)],
)
def test_a_figure_needs_depths_for_the_networks_that_it_compares(figure, depths, lacks):
    config = StudyConfig(figure=figure, depths=depths)
    if lacks:
        assert f"no multiple of shortcut_depth {lacks}, for figure" in refused(chosen_figures, config)
    else:
        assert chosen_figures(config) == [FIGURES[figure]]


@pytest.mark.parametrize(
    "figure, command", [("1", "python -c"), ("2", "python -m launch.ablations --experiment=norms")]
)
def test_a_figure_that_is_not_drawn_is_rejected_with_the_command_that_shows_it(figure, command):
    text = refused(StudyConfig, figure=figure)
    assert text.startswith(f"figure {figure} ") and command in text and "\n" not in text


PAPER = PRESETS["paper"]


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_is_of_smoke_size_by_what_it_reads(figure):
    assert not is_smoke_size(PAPER, figure, 60_000) and not is_smoke_size(StudyConfig(), figure, 4_000)
    assert is_smoke_size(PAPER, figure, 300)  # of a small data set as of the first 300 of a large one
    few = {"relu_examples": 1000, "num_epochs": 100, "descent_epochs": 100}
    for name, value in few.items():
        smaller = dataclasses.replace(PAPER, **{name: value})
        assert is_smoke_size(smaller, figure, 60_000) == (name in FIGURES[figure].READS), name
    assert is_smoke_size(PRESETS["smoke"], figure, 4_000) == (figure not in ("5", "11", "convolutional"))


def test_the_size_of_the_paper_is_its_depths_and_its_runs():
    assert all(is_paper_size(PAPER, figure) for figure in FIGURES)
    more = dataclasses.replace(PAPER, depths=(*PAPER.depths, 120), num_runs=20)
    assert is_paper_size(more, "5") and is_paper_size(more, "6")
    for changes, smaller in (
        ({"depths": (2, 3, 6)}, "3 5 9"),
        ({"num_runs": 1}, "5 6 8"),
        ({"depth": 4}, "4 6 7 8 11"),
    ):
        config = dataclasses.replace(PAPER, **changes)
        assert [name for name in FIGURES if not is_paper_size(config, name)] == smaller.split()


def test_every_field_is_read_by_some_figure_or_by_all_and_the_others_are_named():
    data = {"dataset", "data_dir", "download", "examples", "input_scale", "centred", "mean_over_outputs"}
    fields = {field.name for field in dataclasses.fields(StudyConfig)}
    read = {name for figure in FIGURES.values() for name in figure.READS}
    assert read == fields - data - {"figure", "seed", "hparams"}
    assert all(set(figure.SIZE) <= set(figure.READS) for figure in FIGURES.values())
    ignored = unused_fields(dataclasses.replace(PAPER, figure="5"))
    assert ignored.keys() == read - {"depths", "num_runs", "hessian"}
    assert ignored["num_epochs"] == "figure 5 does not read it" and not unused_fields(PAPER)


def test_each_setting_of_the_data_reaches_them(monkeypatch):
    asked = []
    config = StudyConfig(
        dataset="d", data_dir="/d", download=True, examples=7, input_scale=0.5, centred=False, mean_over_outputs=True
    )
    monkeypatch.setattr(dataset, "open_source", asked.append)
    monkeypatch.setattr(dataset, "fits_in_memory", lambda source: False)
    with pytest.raises(ValueError, match="dataset d is not held in memory"):
        dataset.load_images(config)
    assert asked == [DataConfig("d", "/d", download=True, train_examples=7)]
    images = dataset.StudyImages(np.random.default_rng(0).integers(0, 9, (20, 3, 2, 1)), np.arange(20) % 3, 3)
    found, expected = dataset.study_data(config, images), dataset.whitened_components(*images, 0.5, False, True)
    np.testing.assert_array_equal(found.x, expected[0])
    np.testing.assert_array_equal(found.y, expected[1])
    assert found.images is images.images and found.labels is images.labels
