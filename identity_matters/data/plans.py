"""The plan of a training batch: a pure function of (seed, step), computed on the host.

    plan    int32 [n, 4]: of each image its index, two offsets of the crop, and whether it is mirrored

The numbers come from a counter-based generator (Philox) keyed by the seed, so any step's plan is computed without those
before it.
"""

import functools

import numpy as np

_ORDER, _AUGMENTATION = 0, 1  # what a Philox key is used for


def _random_words(seed: int, purpose: int, index: int, count: int) -> np.ndarray:
    """Returns uint64 [count], raw output of Philox, which is the same in every NumPy version."""
    # Raw words, not a Generator's integers or permutation: NumPy may change how it makes these of the same stream.
    return np.random.Philox(key=[seed, purpose], counter=[0, 0, 0, index]).random_raw(count)


@functools.lru_cache(maxsize=4)
def epoch_order(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    """Returns the order of the examples in one epoch: int64 [num_examples], a permutation."""
    # Stable, so that the order of equal words does not depend on NumPy's sorting algorithm.
    return np.argsort(_random_words(seed, _ORDER, epoch, num_examples), kind="stable")


def plan_batch(
    seed: int, step: int, batch_size: int, num_examples: int, crop_padding: int = 0, random_flip: bool = False
) -> np.ndarray:
    """Returns the plan of one step: which examples its batch holds, and how each is augmented.

    Every epoch visits each example once; a batch may end one epoch and begin the next. Steps count from 0. Crops are
    offset by −crop_padding … crop_padding pixels; with random_flip half of the images are mirrored.

    >>> plan_batch(seed=7, step=2, batch_size=3, num_examples=20, crop_padding=4, random_flip=True).tolist()
    [[2, 2, -3, 0], [19, 1, 0, 1], [12, -3, -2, 0]]

    Returns:
      int32 [batch_size, 4]: example, row offset, column offset, flipped (0 or 1).
    """
    position = step * batch_size + np.arange(batch_size)
    epoch = position // num_examples
    example = np.empty(batch_size, np.int64)
    for e in np.unique(epoch):
        in_epoch = epoch == e
        example[in_epoch] = epoch_order(seed, int(e), num_examples)[position[in_epoch] % num_examples]
    words = _random_words(seed, _AUGMENTATION, step, 3 * batch_size).reshape(3, batch_size)
    # With 64-bit words the bias of the remainder is negligible. Unsigned numbers would wrap below 0, hence the cast.
    offsets = (words[:2] % np.uint64(2 * crop_padding + 1)).astype(np.int64) - crop_padding
    flipped = words[2] >> np.uint64(63) if random_flip else np.zeros(batch_size)
    return np.stack([example, *offsets, flipped], axis=1).astype(np.int32)
