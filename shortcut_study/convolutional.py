"""Condition numbers of convolutional residual networks at their initial weights, with and without batch normalisation.

Not in the paper: Li et al. §6 leave convolutions and batch normalisation to future work.

    Li et al.                             here
    W^{r,l}, r = 1 … R, l = 1 … n         kernels of the layers stage…_block…_conv…, R blocks of n convolutions
    L = 1/(2m) Σ‖y − ŷ‖²                  mean cross-entropy
    Hessian in all weights                its block of those kernels
    |λ|_max, |λ|_(0.1), index             max_abs, p10_abs, index, as of conditioning.Spectrum

Only the kernels inside the shortcuts are included. The stem, γ and β of batch normalisation and the last layer belong
to no W^{r,l}; there are as many kernels with batch normalisation as without. Restricted to them, the condition number
does not depend on the scale of the kernels under batch normalisation, except through its ε: L(αw) = L(w), so H(αw) =
H(w)/α².

Batch normalisation uses the moments of the whole sample, as its first training step on it would. The moving
statistics of a network that has seen no batch are 0 and 1.

The eigenvalues are crowded around the 10th percentile, 10² to 10⁵ times below the largest, and Lanczos finds it last.
After half of all steps its range still reached from about 0 to 1.4–6 times the value, for 216 to 864 weights without
batch normalisation, and the estimate itself was up to 5 times too small. So all the steps are taken, which finds every
eigenvalue: the condition numbers were those of the dense matrix to 14 digits. float32 would do to 6 digits, but took no
less time at this size, and cannot distinguish a small eigenvalue from 0.
"""

import re
from collections.abc import Iterable, Iterator

import keras
import numpy as np

from shortcut_study.conditioning import summarize
from shortcut_study.curvature.lanczos import lanczos, ritz
from shortcut_study.curvature.operator import Hessian

RESIDUAL_KERNEL = re.compile(r"block\d+_conv\d+/kernel$")


def initial_spectra(models: Iterable[keras.Model], images: np.ndarray, labels: np.ndarray) -> Iterator[dict]:
    """Yields condition number and index of the Hessian in the residual kernels, for each of several models.

    L = 1/m Σ −log softmax(logits)[label], without the weight penalties, in float64. The models must be of one
    architecture: their Hessian product is compiled once, which for a batch-normalised network takes as long as
    hundreds of products. It costs num_weights products, and exact eigenvalues come of it. At a kink of ReLU the second
    derivative is taken as 0.

    Args:
      models: Images to logits; layers named as by identity_matters.model.all_conv_resnet. Not changed.
      images: [m, …] as the models take them, standardised. All at once: batch normalisation's moments are theirs.
      labels: int [m].

    Yields:
      max_abs: Largest |λ|.
      p10_abs: 10th percentile of |λ|.
      condition_number: max_abs / p10_abs; inf if more than a tenth of the eigenvalues vanish, as they do if the last of
        three convolutions is 0.
      index: Share of negative eigenvalues; what vanishes within rounding is not negative.
      num_weights: In the residual kernels.

    Raises:
      ValueError: no residual kernel, models of several architectures, no examples.
    """
    h = None
    first = []
    for model in models:
        kernels = [v for v in model.trainable_variables if RESIDUAL_KERNEL.search(v.path)]
        if not kernels:
            raise ValueError("the model trains no residual kernel, a variable named like stage1_block1_conv1/kernel")
        if h is None:
            options = {"batch_size": len(images), "training": True, "dtype": "float64"}
            h = Hessian(model, images, labels, variables=kernels, **options)
            first = _shapes(model)
        if _shapes(model) != first:
            raise ValueError("the models must be of one architecture, their variables differ in name or shape")
        h.move_to(model)
        decomposition = lanczos(h.__matmul__, h.shape[0], h.shape[0])
        summary = summarize(ritz(decomposition).values, decomposition.rounding)
        yield summary.columns() | {"num_weights": h.shape[0]}


def _shapes(model: keras.Model) -> list[tuple]:
    return [(variable.path, tuple(variable.shape)) for variable in model.variables]
