"""Random unit vectors with random labels."""

import numpy as np


def unit_points(n: int, d: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True), rng.integers(0, 5, n)
