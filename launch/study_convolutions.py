"""The convolutional experiment of launch.shortcut_study: networks of identity_matters, Hessians of shortcut_study.

Not in the paper (Li et al. §6): does the condition number at the initial weights tell shortcuts of 1, 2 and 3 convolutions
apart, with and without batch normalisation? The networks are small, so that every eigenvalue can be had.
"""

import numpy as np

from identity_matters.config import ModelConfig
from identity_matters.runs.errors import UserError
from shortcut_study.sweep import Unit

NUM_IMAGES = 50
PIXELS = 4  # a side, that the stem leaves
WIDTH = 2
# Batch normalisation makes the scale of the kernels irrelevant to the function, and small kernels to the condition number.
INITIALIZATIONS = {0: ("small", "standard"), 1: ("small",)}


def convolutional_units(images, labels, num_classes: int, depths, seeds) -> list[Unit]:
    """Condition number of the Hessian in the residual kernels, before training.

    Args:
      images: uint8 [m, h, w, c], of which NUM_IMAGES are taken at random. labels: int [m].
      depths: Numbers of residual convolutions, multiples of 6.
      seeds: Of the kernels; one unit has them all, and the initialisers, because they share what is compiled.
    """
    chosen = np.random.default_rng(0).permutation(len(images))[:NUM_IMAGES]

    def unit(depth, shortcut_depth, batch_norm):
        def compute(progress):
            from identity_matters.model import all_conv_resnet, standardize
            from shortcut_study.convolutional import initial_spectra

            settings = [(kind, seed) for kind in INITIALIZATIONS[batch_norm] for seed in seeds]
            standardized = np.asarray(standardize(images[chosen]))
            models = (
                all_conv_resnet(_config(images, num_classes, depth, shortcut_depth, batch_norm, kind), seed)
                for kind, seed in settings
            )
            rows = []
            for (kind, seed), found in zip(settings, initial_spectra(models, standardized, labels[chosen])):
                found.pop("num_weights")
                rows.append({"initialisation": kind, "seed": seed, "status": "done"} | found)
                progress(1 / len(settings))
            return rows

        key = {"experiment": "convolutional", "shortcut_depth": shortcut_depth, "activations": "relu"}
        cost = 10 + len(seeds) * len(INITIALIZATIONS[batch_norm]) * (2e-3 * depth**2 + 1)
        return Unit(key | {"batch_norm": batch_norm, "depth": depth}, cost, compute)

    return [unit(depth, n, batch_norm) for depth in depths for n in (1, 2, 3) for batch_norm in (0, 1)]


def _config(images, num_classes: int, depth: int, shortcut_depth: int, batch_norm: int, kind: str) -> ModelConfig:
    """A stem that leaves PIXELS × PIXELS pixels of WIDTH channels, and one stage of blocks that keeps them."""
    height, width = images.shape[1:3]
    if height != width or height % PIXELS:
        raise UserError(
            f"the convolutional networks take square images of a multiple of {PIXELS} pixels, got {height}x{width}"
        )
    return ModelConfig(
        image_shape=images.shape[1:],
        num_classes=num_classes,
        stem_width=WIDTH,
        stem_kernel_size=height // PIXELS,
        stem_stride=height // PIXELS,
        widths=(WIDTH,),
        blocks_per_stage=(depth // shortcut_depth,),
        convs_per_block=shortcut_depth,
        use_batch_norm=bool(batch_norm),
        residual_initializer=kind,
    )
