"""The Hessian during training: a Keras callback for `model.fit`, which writes to TensorBoard."""

import os
import warnings
from typing import Any

import keras
import numpy as np

from shortcut_study.curvature.checks import check_examples, without_averages
from shortcut_study.curvature.examples import gathered
from shortcut_study.curvature.operator import Hessian
from shortcut_study.curvature.quadrature import Quadrature, extreme_eigenvalues, lanczos_quadrature, mean_eigenvalue

NUM_LEVELS = 1000  # of the density in a histogram
_UNKNOWN = dict.fromkeys(("largest", "smallest", "trace"), np.nan)
_UNKNOWN_ERRORS = dict.fromkeys(("largest_error_bound", "smallest_error_bound", "trace_error"), np.nan)


class HessianCallback(keras.callbacks.Callback):
    """Records the extreme eigenvalues, the trace and the density of the Hessian before training and along it.

    Writes to log_dir the scalars hessian/largest, hessian/smallest and hessian/trace, and the histogram
    hessian/eigenvalues, at the number of epochs done, which starts at fit's initial_epoch; and the scalars into the
    logs of the epoch, so that keras.callbacks.CSVLogger and History have them if they come later in the list of
    callbacks; of an epoch between two measurements they are NaN. What cannot be measured, as where training diverged or
    the loss is within rounding of 0, is NaN in history and logs, with a warning. A network whose batch normalisation
    has averaged no batches yet is not measured before training.

    >>> callback = HessianCallback(images, labels, log_dir="logs", every=5)  # doctest: +SKIP
    >>> model.fit(images, labels, callbacks=[callback])  # doctest: +SKIP

    Args:
      x, y, **options: The mean loss over these examples, as for `Hessian`: loss, batch_size, gauss_newton, …; the loss
        is by default that of compile. Data sets and batches are read once, now.
      log_dir: str or path. None writes nothing; else TensorFlow must be installed, whatever the backend.
      every: int. Number of epochs between two measurements.
      order: int. Number of Lanczos steps a starting vector, each about three gradients.
      num_vectors: int. Random starting vectors; the trace's error takes two.
      seed: int. Of the starting vectors, the same each time.

    Attributes:
      history: list of dict. epoch, largest, smallest, trace; largest_error_bound, smallest_error_bound, trace_error,
        the last by Student's t for 95 times in 100 (NaN for one vector).

    Raises:
      ValueError: every, order or num_vectors is not positive; from fit, as `Hessian`.
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
        if min(every, order, num_vectors) < 1:
            raise ValueError(f"every, order and num_vectors must be at least 1, got {every}, {order} and {num_vectors}")
        self._examples, self._options = gathered(x, y, batch_size, sample_weight), options
        check_examples(self._examples, options.get("loss"), False)
        self._every, self._lanczos = every, (order, num_vectors, seed)
        self._log_dir, self._writer = log_dir, None
        self.history: list[dict[str, float]] = []

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Checks and compiles the products."""
        x, y, sample_weight, batch_size = self._examples
        given = {"sample_weight": sample_weight, "batch_size": batch_size}
        self._hessian = Hessian(self.model, x, y, **given, **self._options)
        if self._log_dir is not None:
            import tensorflow as tf

            self._writer = tf.summary.create_file_writer(os.fspath(self._log_dir))
        self._is_measured = False

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Measures the network as it is before the first update."""
        if not self._is_measured and not without_averages(self.model):
            self._measure(epoch)
        self._is_measured = True

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Measures the network after every `every` epochs."""
        found = self._measure(epoch + 1) if (epoch + 1) % self._every == 0 else _UNKNOWN
        if logs is not None:  # at every epoch: CSVLogger takes its columns from the first
            logs.update({f"hessian_{name}": value for name, value in found.items()})

    def on_train_end(self, logs: dict | None = None) -> None:
        """Closes the event file."""
        if self._writer:
            self._writer.close()

    def _measure(self, epoch: int) -> dict[str, float]:
        order, num_vectors, seed = self._lanczos
        self._hessian.move_to(self.model)
        dim = self._hessian.shape[0]
        try:
            quadrature = lanczos_quadrature(
                self._hessian.__matmul__, dim, min(order, dim), num_vectors, seed, self._hessian.dtype
            )
        except ValueError as reason:
            warnings.warn(f"the Hessian after {epoch} epochs is not measured: {reason}", stacklevel=2)
            self.history.append({"epoch": epoch} | _UNKNOWN | _UNKNOWN_ERRORS)
            return _UNKNOWN
        ends = [extreme_eigenvalues(quadrature, 1, largest) for largest in (True, False)]
        numbers, errors = zip(*((float(value[0]), float(bound[0])) for value, bound in ends))
        mean, error = mean_eigenvalue(quadrature)
        row = dict(zip(_UNKNOWN, (*numbers, mean * dim)))
        if self._writer:
            import tensorflow as tf

            with self._writer.as_default(epoch):
                for name, value in row.items():
                    tf.summary.scalar(f"hessian/{name}", value)
                tf.summary.histogram("hessian/eigenvalues", eigenvalue_levels(quadrature))
                self._writer.flush()
        self.history.append({"epoch": epoch} | row | dict(zip(_UNKNOWN_ERRORS, (*errors, error * dim))))
        return row


def eigenvalue_levels(quadrature: Quadrature, count: int = NUM_LEVELS) -> np.ndarray:
    """Returns `count` eigenvalues at evenly spaced shares of the estimated distribution, ascending."""
    order = np.argsort(quadrature.nodes, axis=None)
    cumulative = np.cumsum(quadrature.weights.ravel()[order]) / len(quadrature.weights)
    levels = (np.arange(count) + 0.5) / count
    at = np.minimum(np.searchsorted(cumulative, levels), len(order) - 1)
    return quadrature.nodes.ravel()[order][at]
