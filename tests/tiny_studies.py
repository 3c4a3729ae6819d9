"""Studies of a second or two: networks of width 3, which test_piecewise_gradient.py has compiled, on three digits."""

import contextlib
import dataclasses
import functools
import warnings

import pytest

from identity_matters.data.digits import mnist_sample
from launch.config_flags import flags_of
from shortcut_study.config import PRESETS
from shortcut_study.dataset import StudyImages

CONFIG = dataclasses.replace(
    PRESETS["smoke"],
    examples=200,
    depths=(2, 3, 6),
    relu_depths=(2, 4),
    num_epochs=6,
    rates_per_decade=1,
    learning_rate=0.3,
    descent_epochs=40,
    num_levels=2,
)
FLAGS = flags_of(CONFIG, PRESETS)


@functools.cache
def zeros_ones_and_twos():
    """The digits 0, 1 and 2 at 7×7 pixels, of which the principal components are quick."""
    images, labels, *_ = mnist_sample()
    return images[labels < 3, ::4, ::4], labels[labels < 3]


def load_three_digits(config):
    """In place of dataset.load_images."""
    images, labels = zeros_ones_and_twos()
    return StudyImages(images[: config.examples or None], labels[: config.examples or None], 3)


def run_study(run_dir, figure):
    """Computes a figure in run_dir; its output goes to run_dir.out and run_dir.err. Warnings are errors."""
    from launch import shortcut_study

    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(f"{run_dir}.out", "w"))))
        stack.enter_context(contextlib.redirect_stderr(stack.enter_context(open(f"{run_dir}.err", "w"))))
        stack.enter_context(pytest.MonkeyPatch.context()).setattr(shortcut_study, "load_images", load_three_digits)
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("error", module=r"shortcut_study")
        shortcut_study.main(dataclasses.replace(CONFIG, figure=figure), str(run_dir))
