"""FIGURES: the modules of the figures of Li et al. by their numbers in the paper, and the convolutional one."""

import importlib

from shortcut_study.figures import MODULES

FIGURES = {name: importlib.import_module(f"shortcut_study.figures.{module}") for name, module in MODULES.items()}
