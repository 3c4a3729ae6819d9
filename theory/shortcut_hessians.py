"""`theory.shortcut.hessians` under its public name."""

from theory.shortcut.hessians import (
    Spectrum,
    commutation_matrix,
    condition_number_at_zero,
    condition_number_lower_bound,
    hessian_at_zero,
    moment_gap,
    spectrum_at_zero,
    unit_block,
)

__all__ = [
    "Spectrum",
    "commutation_matrix",
    "condition_number_at_zero",
    "condition_number_lower_bound",
    "hessian_at_zero",
    "moment_gap",
    "spectrum_at_zero",
    "unit_block",
]
