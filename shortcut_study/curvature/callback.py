"""The Hessian during training: a Keras callback for `model.fit`, which writes to TensorBoard."""

import os
import warnings
from typing import Any

import keras
import numpy as np

from identity_matters.fields import require_counts
from shortcut_study.curvature.checks import check_examples, without_averages
from shortcut_study.curvature.examples import gathered
from shortcut_study.curvature.model_spectrum import ModelSpectrum, part_row
from shortcut_study.curvature.operator import Hessian
from shortcut_study.curvature.quadrature import Quadrature, lanczos_quadrature

NUM_LEVELS = 1000  # of the density in a histogram
SCALARS = "largest", "smallest", "trace"
UNKNOWN = dict.fromkeys((*SCALARS, "largest_error_bound", "smallest_error_bound", "trace_error"), np.nan)


class HessianCallback(keras.callbacks.Callback):
    """Records the extreme eigenvalues, the trace and the density of the Hessian before training and along it.

    Writes to log_dir the scalars hessian/largest, hessian/smallest and hessian/trace, and the histogram
    hessian/eigenvalues, at the number of epochs done, which starts at fit's initial_epoch; and the scalars into the
    logs of the epoch, for keras.callbacks.CSVLogger and History, if they come later in the list of callbacks. A value
    that was not measured is NaN, and so is one that cannot be measured, for instance after training diverged, with a
    warning. A network whose batch normalisation has averaged no batches yet is not measured before training.

    >>> callback = HessianCallback(images, labels, log_dir="logs", every=5)  # doctest: +SKIP
    >>> model.fit(images, labels, callbacks=[callback])  # doctest: +SKIP

    Args:
      x, y, **options: As for `Hessian`. Data sets and batches are read once, now.
      log_dir: str or path. None writes nothing; else TensorFlow must be installed, whatever the backend.
      every: int. Number of epochs between two measurements.
      order: int. Number of Lanczos steps a starting vector, each about three gradients.
      num_vectors, seed: int. Random starting vectors, the same each time; the trace's error takes two.

    Attributes:
      history: list of dict: epoch, largest, smallest, trace, and largest_error_bound, smallest_error_bound,
        trace_error.
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        log_dir: str | os.PathLike | None = None,
        every: int = 1,
        order: int = 20,
        num_vectors: int = 2,
        *,
        batch_size: int | None = None,
        sample_weight: Any = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        require_counts(1, every=every, order=order, num_vectors=num_vectors)
        self._examples = gathered(x, y, batch_size, sample_weight)
        self._options = options
        check_examples(self._examples, options.get("loss"), False)
        self._every = every
        self._lanczos = (order, num_vectors, seed)
        self._log_dir = log_dir
        self._writer = None
        self.history: list[dict[str, float]] = []

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Checks and compiles the products."""
        self._hessian = Hessian(self.model, self._examples, **self._options)
        self._is_measured = False
        if self._log_dir is not None:
            import tensorflow as tf

            self._writer = tf.summary.create_file_writer(os.fspath(self._log_dir))

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Measures the network as it is before the first update."""
        if not self._is_measured and not without_averages(self.model):
            self._measure(epoch)
        self._is_measured = True

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Measures the network after every `every` epochs."""
        row = self._measure(epoch + 1) if (epoch + 1) % self._every == 0 else UNKNOWN
        if logs is not None:  # at every epoch: CSVLogger takes its columns from the first
            logs.update({f"hessian_{name}": row[name] for name in SCALARS})

    def on_train_end(self, logs: dict | None = None) -> None:
        """Closes the event file."""
        if self._writer:
            self._writer.close()

    def _measure(self, epoch: int) -> dict[str, float]:
        h = self._hessian
        (order, num_vectors, seed) = self._lanczos
        h.move_to(self.model)
        dim = h.shape[0]
        row = UNKNOWN
        try:
            quadrature = lanczos_quadrature(h.__matmul__, dim, min(order, dim), num_vectors, seed, h.dtype)
        except ValueError as reason:
            warnings.warn(f"the Hessian after {epoch} epochs is not measured: {reason}", stacklevel=2)
        else:
            columns = part_row("", ModelSpectrum(quadrature, dim, np.empty((0, dim))))
            row = {name: columns[name] for name in UNKNOWN}
            if self._writer:
                import tensorflow as tf

                with self._writer.as_default(epoch):
                    for name in SCALARS:
                        tf.summary.scalar(f"hessian/{name}", row[name])
                    tf.summary.histogram("hessian/eigenvalues", eigenvalue_levels(quadrature))
                    self._writer.flush()
        self.history.append({"epoch": epoch} | row)
        return row


def eigenvalue_levels(quadrature: Quadrature, count: int = NUM_LEVELS) -> np.ndarray:
    """Returns `count` eigenvalues at evenly spaced shares of the estimated distribution, ascending."""
    order = np.argsort(quadrature.nodes, axis=None)
    cumulative = np.cumsum(quadrature.weights.ravel()[order]) / len(quadrature.weights)
    levels = (np.arange(count) + 0.5) / count
    return quadrature.nodes.ravel()[order][np.searchsorted(cumulative, levels)]
