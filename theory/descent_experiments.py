"""The data of the figures of docs/descent.md: one function a figure, rows of plain numbers and words.

Rows go to a CSV file, and theory/descent_figures.py draws from that file alone.
"""

import numpy as np

from theory import descent

EIGENVALUES = (-1.0, -0.5, 0.0, 0.25, 0.5, 1.5, 2.0)
ANGLES = (60, 120, 150, 170, 180)


def eigenvalues(seed: int = 0, num_layers: int = 8, num_steps: int = 3_000) -> list[dict]:
    """Excess |w − φ|² and |λ − 1| of gradient descent from zero by eigenvalue φ, at the largest learning rate of all.

    Args:
      seed: Not used: nothing here is random.
      num_layers: ℓ.
      num_steps: The last step; steps are listed more sparsely the later they are.
    """
    learning_rate = descent.largest_learning_rate(np.array(EIGENVALUES), num_layers)
    values = descent.eigenvalue_recursion(np.array(EIGENVALUES), num_layers, learning_rate, num_steps)
    steps = np.unique(np.append(0, np.geomspace(1, num_steps, 120).astype(int)))
    return [
        {
            "num_layers": num_layers,
            "learning_rate": learning_rate,
            "eigenvalue": eigenvalue,
            "step": int(step),
            "excess": float((values[step, k] ** num_layers - eigenvalue) ** 2),
            "norm": float(abs(values[step, k] - 1)),
        }
        for k, eigenvalue in enumerate(EIGENVALUES)
        for step in steps
    ]


def rotations(seed: int = 0, num_layers: int = 8, learning_rate: float = 0.01, num_steps: int = 3_000) -> list[dict]:
    """w of gradient descent from zero on rotations by 60 … 180 degrees: points of the complex plane.

    Args:
      seed: Not used.
      num_layers: ℓ. learning_rate: Below that of stability, 1/ℓ. num_steps: The last step.
    """
    phi = np.exp(1j * np.radians(np.array(ANGLES)))
    phi[-1] = -1  # exactly: rounding off the axis would let descent escape in the end
    w = descent.eigenvalue_recursion(phi, num_layers, learning_rate, num_steps) ** num_layers
    return [
        {"angle": angle, "step": step, "real": float(w[step, k].real), "imaginary": float(w[step, k].imag)}
        for k, angle in enumerate(ANGLES)
        for step in [*range(400), *range(400, num_steps + 1, 50)]
    ]
