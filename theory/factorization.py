"""`theory.linear.factorization` under its public name."""

from theory.linear.factorization import (
    METHODS,
    augment,
    factorize,
    flip_label,
    log_condition,
    norm_bound,
    norm_lower_bound,
    rescale,
)

__all__ = [
    "METHODS",
    "augment",
    "factorize",
    "flip_label",
    "log_condition",
    "norm_bound",
    "norm_lower_bound",
    "rescale",
]
