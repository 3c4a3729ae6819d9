"""The weights of the all-convolutional network of Hardt & Ma's Table 1, counted from the table."""

from typing import NamedTuple

STEM_WIDTH = 16
STAGES = (64, 128, 256)
BLOCKS = 9


class Count(NamedTuple):
    """The number of convolutions and of their weights."""

    convolutions: int
    weights: int


class Sample(NamedTuple):
    """The size of a data set: n, d and r of Hardt & Ma §3."""

    examples: int
    dimension: int
    classes: int


def data_sets() -> dict[str, Sample]:
    """Returns the training sets of Hardt & Ma §4: images of 32 × 32 × 3 and, §4.2, of 224 × 224 × 3 numbers."""
    small, large = 32 * 32 * 3, 224 * 224 * 3
    return {
        "CIFAR-10": Sample(50_000, small, 10),
        "CIFAR-100": Sample(50_000, small, 100),
        "ImageNet": Sample(1_281_167, large, 1000),
    }


def count_weights(biases: bool = False, projections: bool = False) -> Count:
    """Returns the count for Table 1: a 3 × 3 stem of 16 channels, then 9 blocks of two 3 × 3 convolutions a stage.

    Args:
      biases: One more weight an output channel, which the table does not mention.
      projections: 1 × 1 convolutions as shortcuts when the width changes, in place of the paper's pooling and padding.
    """
    shapes = [(3, 3, STEM_WIDTH)]
    width = STEM_WIDTH
    for stage in STAGES:
        if projections:
            shapes.append((1, width, stage))
        for _ in range(BLOCKS):
            shapes += [(3, width, stage), (3, stage, stage)]
            width = stage
    weights = sum(size * size * inputs * outputs for size, inputs, outputs in shapes)
    main_path = [outputs for size, _, outputs in shapes if size == 3]
    return Count(len(shapes), weights + (sum(main_path) if biases else 0))
