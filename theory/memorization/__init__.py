"""Residual networks that fit any labelling of any distinct points (Hardt & Ma, Theorem 3.2)."""

from theory.memorization.blocks import transform_block
from theory.memorization.construction import METHODS, memorize, parameter_count
from theory.memorization.first_layer import (
    common_bias_width,
    default_width,
    pair_failure_probability,
    row_bias_width,
    separation,
)
from theory.memorization.network import MemorizingNetwork

__all__ = [
    "METHODS",
    "MemorizingNetwork",
    "common_bias_width",
    "default_width",
    "memorize",
    "pair_failure_probability",
    "parameter_count",
    "row_bias_width",
    "separation",
    "transform_block",
]
