"""The figures of docs/theory.md and of docs/descent.md by name, collected from the subjects.

EXPERIMENTS return the data of a figure, rows for NAME.csv; FIGURES draw from those rows, also as a CSV file gives them.
"""

from theory.descent import figures as descent
from theory.linear import figures as linear
from theory.memorization import figures as memorization
from theory.relu import figures as relu
from theory.shortcut import figures as shortcut

EXPERIMENTS = {
    "norms": linear.norms_against_layers,
    "printed_construction": linear.printed_construction,
    "gradient_ratios": linear.gradient_ratios,
    "descent": linear.descent_rates,
    "memorization": memorization.memorizing_networks,
    "spectra": shortcut.spectra_at_zero,
    "condition_numbers": shortcut.condition_numbers_at_zero,
}
FIGURES = {
    "norms": linear.norms_figure,
    "printed_construction": linear.printed_construction_figure,
    "gradient_ratios": linear.gradient_ratios_figure,
    "descent": linear.descent_figure,
    "memorization": memorization.memorization_figure,
    "spectra": shortcut.spectra_figure,
    "condition_numbers": shortcut.condition_numbers_figure,
}
DESCENT_EXPERIMENTS = {
    "eigenvalues": descent.eigenvalues,
    "rotations": descent.rotations,
    "saddle": descent.saddle,
    "rates": descent.rates,
    "linear_output": relu.linear_output,
    "excess_by_radius": relu.excess_by_radius,
}
DESCENT_FIGURES = {
    "eigenvalues": descent.eigenvalues_figure,
    "rotations": descent.rotations_figure,
    "saddle": descent.saddle_figure,
    "rates": descent.rates_figure,
    "linear_output": relu.linear_output_figure,
    "excess_by_radius": relu.excess_by_radius_figure,
}
