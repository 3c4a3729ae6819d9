"""A labelled sample as `memorization.memorize` takes it: checked, and without its repetitions."""

import numbers

import numpy as np


def checked_sample(x: np.ndarray, labels: np.ndarray, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns x [n, d] and labels [n] as arrays, or a ValueError that says what is wrong with them."""
    x, labels = np.asarray(x), np.asarray(labels)
    if x.ndim != 2 or not x.size:
        raise ValueError(f"x must be [n, d] with n ≥ 1 and d ≥ 1, got shape {x.shape}")
    if x.dtype.kind not in "biuf" or x.dtype.itemsize > 8:
        raise ValueError(f"x must be real numbers of up to 64 bits, got {x.dtype}")
    if labels.shape != x.shape[:1] or labels.dtype.kind not in "iu":
        raise ValueError(f"labels must be {len(x)} integers, as x has rows, got {labels.dtype} of shape {labels.shape}")
    if not isinstance(num_classes, numbers.Integral) or num_classes < 1:
        raise ValueError(f"num_classes must be an integer of at least 1, got {num_classes!r}")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(f"labels must lie in 0–{num_classes - 1}, got {labels.min()}–{labels.max()}")
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8:
        is_large = max(int(x.max()), -int(x.min())) > 2**53
        rounded = x[x.astype(np.float64).astype(object) != x.astype(object)] if is_large else x[:0]
        if len(rounded):
            raise ValueError(
                f"x must hold integers that float64 represents, got {rounded[0]}: subtract an offset from all"
            )
    for start in range(0, len(x), 1024):
        finite = np.isfinite(x[start : start + 1024])
        if not finite.all():
            row, column = np.argwhere(~finite)[0] + (start, 0)
            raise ValueError(f"x must be finite, got {x[row, column]} in row {row}, column {column}")
    return x, labels


def distinct(x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns rows of x [n, d] of which no two are equal, the first of each kind: int64, ascending."""
    first, zero = {}, x.dtype.type(0)
    for i, row in enumerate(x):
        key = hash((row + zero).tobytes())  # −0 + 0 is 0
        j = first.setdefault(key, i)
        if not np.array_equal(x[j], row):  # two points of one hash
            first[key, i] = i
        elif labels[i] != labels[j]:
            raise ValueError(f"points {j} and {i} are equal but have the labels {labels[j]} and {labels[i]}")
    return np.fromiter(first.values(), np.int64)
