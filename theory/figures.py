"""The figures of docs/papers/theorems.md and of docs/appendix/descent.md by name, collected from the subjects.

EXPERIMENTS return the data of a figure, rows for NAME.csv; FIGURES draw from those rows or from the CSV file's.
"""

from theory.descent import figures as descent
from theory.linear import figures as linear
from theory.memorization import figures as memorization
from theory.relu import figures as relu
from theory.shortcut import figures as shortcut

_THEORY = {**linear.FIGURES, **memorization.FIGURES, **shortcut.FIGURES}
_DESCENT = {**descent.FIGURES, **relu.FIGURES}

EXPERIMENTS = {name: experiment for name, (experiment, _) in _THEORY.items()}
FIGURES = {name: figure for name, (_, figure) in _THEORY.items()}
DESCENT_EXPERIMENTS = {name: experiment for name, (experiment, _) in _DESCENT.items()}
DESCENT_FIGURES = {name: figure for name, (_, figure) in _DESCENT.items()}
