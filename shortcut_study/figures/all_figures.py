"""FIGURES: the figures of Li et al. by their numbers in the paper, and the convolutional one."""

from shortcut_study.figures import (
    convolutional,
    figure_3,
    figure_5,
    figure_6,
    figure_7,
    figure_8,
    figure_9,
    figure_10,
)

FIGURES = {
    "3": figure_3,
    "5": figure_5,
    "6": figure_6,
    "7": figure_7,
    "8": figure_8,
    "9": figure_9,
    "10": figure_10,
    "convolutional": convolutional,
}
