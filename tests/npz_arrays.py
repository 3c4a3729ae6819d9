"""Four arrays such as --npz takes."""

import numpy as np


def arrays(**changes) -> dict[str, np.ndarray]:
    """Six images to train on and five to test on, of three classes."""
    rng = np.random.default_rng(0)
    return {
        "train_images": rng.integers(0, 256, (6, 8, 4, 3), np.uint8),
        "train_labels": np.array([0, 1, 2, 0, 1, 2]),
        "test_images": rng.integers(0, 256, (5, 8, 4, 3), np.uint8),
        "test_labels": np.array([2, 1, 0, 1, 2]),
    } | changes
