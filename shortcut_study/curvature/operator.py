"""The Hessian of a Keras model, as one object: products, spectrum, diagonal, spectra of layers, SciPy's operator.

    equations                          code
    L(w), w flat [dim]                 mean loss of the trained weights, in the model's order
    Hv = d/dt ∇L(w + tv) at t = 0      Hessian @ v; a sum over batches of products of a backend

A product is: check (once), mean over the batches, block of some variables.
"""

import functools
import importlib
import inspect
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import scipy.sparse.linalg

from identity_matters.errors import UserError, translate_errors
from identity_matters.fields import require_counts
from shortcut_study.curvature import checks, derivative_checks
from shortcut_study.curvature.estimators import Diagonal, Trace, hutchinson, xdiag, xtrace
from shortcut_study.curvature.examples import gathered
from shortcut_study.curvature.landscapes import Landscape, losses_around
from shortcut_study.curvature.measurement import MeasurementContext
from shortcut_study.curvature.model_spectrum import Groups, ModelSpectrum, PartSpectra, part_row, parts, positions
from shortcut_study.curvature.objective import COMPUTE_LOSS, Objective, first_reason, loss_name, loss_of, weights_dtype
from shortcut_study.curvature.quadrature import ORDER, deflated_quadrature

BACKENDS = {name: f"shortcut_study.curvature.{name}_backend" for name in ("tensorflow", "jax", "torch")}
PRECISIONS = "highest", "high", "default"
DIAGONALS = {"hutchinson": hutchinson, "xdiag": xdiag}
Path = str | os.PathLike | None


class Hessian:
    """The Hessian of the mean loss over examples in the trained weights of a Keras model, known by exact products.

    L = 1/m Σ ℓ(y, outputs), ℓ the loss of compile, else −log softmax(logits)[label]. Weight penalties are omitted:
    (λ/2)‖w‖² adds λ to every eigenvalue. Weights, and the statistics of batch normalisation, are copied now; the model
    and its random generators stay as they are.

    >>> import keras, numpy as np
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, use_bias=False, kernel_initializer="zeros")])
    >>> h = Hessian(model, np.eye(2), np.array([0, 1]))
    >>> h.shape, (h @ np.array([1.0, 0.0, 0.0, 0.0])).tolist()  # 1/m Σ x xᵀ ⊗ (diag p − p pᵀ), p = (½, ½)
    ((4, 4), [0.125, -0.125, 0.0, 0.0])

    Args:
      model: keras.Model, built: functional, sequential or of a class of its own.
      x: [m, …] as the model takes them, or a list or dict for several inputs; or, without y, batches: a
        tf.data.Dataset, a PyDataset or an iterable of (x, y) or (x, y, sample_weight), which are read once.
      y, sample_weight: [m] or what the loss takes, or a list or dict for several outputs.
      loss, loss_weights: As compile takes them. None: what `fit` minimises, the model's compute_loss if its class
        overrides it, else the loss of compile, else the cross-entropy of logits. The mean over values is taken, for
        every reduction; with ignore_class or a mask, over those that count.
      variables: Some of model.trainable_variables: only their diagonal block. Costs as much as all.
      gauss_newton: bool. The Gauss–Newton matrix Jᵀ∇²ℓJ in place of the Hessian (weights in a loss held).
      training: bool. Batch normalisation by each batch's own moments, so that batch_size belongs to the definition of
        the loss. Dropout has one mask then, that of its generator's present state.
      batch_size: int. Examples at a time; sets the memory, not the result: a loss that depends on it raises ValueError,
        unless one batch holds all examples. None: chosen by their size.
      dtype: "float32" or "float64". None: that of the weights, also of a model in mixed precision.
      precision: "highest", or "default": a GPU may then round factors to TensorFloat-32, 0.2 % off and faster.
      on_batch: callable. Called without arguments after each batch.

    Attributes:
      shape, dtype: (dim, dim), and the NumPy type of products.
      num_weights: int. The number of all trained weights, of which `variables` may choose some.
      rounding: float. Relative rounding error of a product, at the weights and near them; NaN if it is not known.
      is_checked_by_differences: bool. Whether products agree with differences of gradients, at the weights or near
        them. Otherwise, as at a kink of ReLU or with Dropout in training, nothing could be compared.
      is_coupled: bool. Whether the loss of an example depends on the others of its batch.

    Raises:
      ValueError: invalid arguments, or a loss without a Hessian; see `checks` and `derivative_checks`.
    """

    def __init__(
        self,
        model: keras.Model,
        x: Any,
        y: Any = None,
        loss: Any = None,
        variables: Sequence[keras.Variable] | None = None,
        gauss_newton: bool = False,
        training: bool = False,
        *,
        loss_weights: Any = None,
        sample_weight: Any = None,
        batch_size: int | None = None,
        dtype: str | None = None,
        precision: str = "highest",
        on_batch: Callable | None = None,
    ) -> None:
        checks.check_model(model, dtype)
        name = keras.backend.backend()
        if name not in BACKENDS:
            raise UserError(f"Hessian products need KERAS_BACKEND=tensorflow, jax or torch, got {name}")
        if precision not in PRECISIONS:
            raise UserError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
        dtype = dtype or weights_dtype(model)
        self.model = model
        self.on_batch = on_batch
        self.dtype = np.dtype(dtype).type
        self.gauss_newton = gauss_newton
        self.objective = Objective(model, *loss_of(model, loss, loss_weights), training, dtype)
        self.loss_is_default = loss is None and self.objective.loss is not COMPUTE_LOSS and not _has_loss(model)
        examples = gathered(x, y, batch_size, sample_weight, model)
        checks.check_examples(examples, self.objective.loss, self.loss_is_default, model)
        backend = importlib.import_module(BACKENDS[name]).Backend
        devices = backend.num_devices
        if batch_size is None and examples.batch_size % devices:
            size = min(-(-examples.batch_size // devices) * devices, len(examples))  # which the devices divide
            examples = examples.take(np.arange(len(examples)), size)
        self.examples = examples.cast_inputs(dtype)
        self._chosen = np.s_[:] if variables is None else positions(model, [*variables])
        self.num_weights = sum(math.prod(variable.shape) for variable in model.trainable_variables)
        checks.check_memory_to_build(self.num_weights, dtype)
        dim = self.num_weights if variables is None else len(self._chosen)
        self.shape = (dim, dim)
        self.num_batches = len(self.examples.batches)
        self._backend = backend(self.objective, gauss_newton, precision, self.examples)
        with translate_errors(self._backend.translate_error, _not_in_type(dtype)):
            checked = derivative_checks.check(self._backend, self.loss_is_default)
        self._backend.scales = checked.scales
        self._backend.on_batch = lambda: self.on_batch and self.on_batch()
        self.rounding = checked.rounding
        self.is_checked_by_differences = checked.by_differences
        self.is_coupled = checked.is_coupled

    @property
    def loss_in_words(self) -> str:
        """Which mean over how many examples the loss is."""
        loss = "cross-entropy of logits" if self.loss_is_default else loss_name(self.objective.loss, self.model)
        batches = f" in batches of {self.examples.batch_size:,}" if self.is_coupled else ""
        return f"mean {loss} over {len(self.examples):,} examples{batches}"

    def problem(self) -> dict[str, list]:
        """Returns the arrays and text that determine the products, by name."""
        loss, loss_weights, training = self.objective[1:4]
        losses = [part for part in keras.tree.flatten(loss) if isinstance(part, keras.losses.Loss)]
        matrix = [str(self.dtype), str(training), str(self.gauss_newton), np.arange(self.num_weights)[self._chosen]]
        if self.is_coupled:  # the batch size then belongs to the loss
            matrix.append(str(self.examples.batch_size))
        return {
            "weights": [keras.ops.convert_to_numpy(array) for array in keras.tree.flatten(self._backend.values)],
            "examples": self.examples.arrays(),
            "loss": [loss_name(loss, self.model), *(str(part.get_config()) for part in losses), str(loss_weights)],
            "matrix": matrix,
        }

    def move_to(self, model: keras.Model) -> None:
        """Takes the present weights and statistics of a model of the same architecture; compiles nothing."""
        self._backend.move_to(model)

    def __matmul__(self, v: Any) -> np.ndarray:
        """Returns Hv [dim] for v [dim], or HV [dim, k] for V [dim, k] in one pass over the examples; NumPy."""
        v = np.asarray(v)
        dim = self.shape[0]
        fits = v.ndim in (1, 2) and len(v) == dim and v.size > 0
        if not fits:
            raise UserError(f"the vector must have shape ({dim},), or ({dim}, k) for k of them, got {v.shape}")
        vectors = np.zeros((math.prod(v.shape[1:]), self.num_weights), self.dtype)
        vectors[:, self._chosen] = v.reshape(dim, -1).T
        products = self._backend.total(self._backend.products, self._backend.values[0], self._backend.place(vectors))
        if not np.isfinite(products).all():
            is_finite = np.isfinite(keras.ops.convert_to_numpy(self._backend.values[0])).all()
            subject = "loss, or a derivative of it, is" if is_finite else "model's weights are"
            raise ValueError(f"there is no Hessian product: the {subject} NaN or infinite")
        products = products[:, self._chosen]
        return products[0] if v.ndim == 1 else products.T

    def part(self, vector: np.ndarray) -> np.ndarray:
        """Returns of a vector for all trained weights the entries that this matrix has rows for."""
        return vector[self._chosen]

    def loss_at(self, step: np.ndarray | None = None) -> float:
        """Returns the mean loss at the weights and a step [dim] from there."""
        return float(self._backend.total(self._backend.loss, self._moved(step)))

    def gradient_at(self, step: np.ndarray | None = None) -> np.ndarray:
        """Returns the gradient [dim] at the weights and a step [dim] from there."""
        return self.part(self._backend.total(self._backend.gradient, self._moved(step)))

    def _moved(self, step: np.ndarray | None) -> Any:
        if step is None:
            return self._backend.values[0]
        moved = np.array(keras.ops.convert_to_numpy(self._backend.values[0]))
        moved[self._chosen] += np.asarray(step, self.dtype)
        return self._backend.place(moved)

    def to_scipy(self) -> scipy.sparse.linalg.LinearOperator:
        """Returns the operator that scipy.sparse.linalg takes, for eigsh, cg and others."""
        product = self.__matmul__
        return scipy.sparse.linalg.LinearOperator(
            self.shape, lambda v: product(np.ravel(v)), matmat=product, rmatvec=product, dtype=self.dtype
        )

    def spectrum(self, *, path: Path = None, progress: bool = True, **accuracy: float) -> ModelSpectrum:
        """Returns extreme eigenvalues, trace and density, each with its error: print it, or `.plot()`.

        By default the extreme eigenvalues are found to a thousandth of the largest, and 24 random vectors estimate the
        rest: 70 to 130 products for a trained classifier, each some 3 gradients over all examples.

        Memory is order + 12 vectors of its dimension. A basis of more than half of the available memory is a file, in
        the folder around `path` or that for temporary files, which is gone with the call: with the default order 110
        million weights take up to 26 GB of disk in place of memory, and the same products. So are eigenvectors, until
        the result is gone.

        Args:
          path: A folder that stores each product as soon as it is finished; the same call resumes after an
            interruption.
          progress: bool. Shows a bar.
          **accuracy: order, num_vectors, tolerance, seed, as for `quadrature.deflated_quadrature`.
        """
        with MeasurementContext(self, path, progress) as measurement:
            measured = self._spectrum(measurement, "", None, accuracy)
        matrix = "Gauss–Newton matrix" if self.gauss_newton else "Hessian"
        heading = f"{matrix} of the {self.loss_in_words} in {measured.dim:,} weights"
        heading += f", {measurement.num_products} Hessian-vector products"
        if not self.is_checked_by_differences:
            heading += ", not checked by differences"
        return measured._replace(heading=heading)

    def diagonal(
        self,
        *,
        num_vectors: int = 100,
        method: str = "hutchinson",
        path: Path = None,
        progress: bool = True,
        **accuracy: float,
    ) -> Diagonal:
        """Returns the diagonal and the trace, with errors, from at most num_vectors products.

        Args:
          method: "hutchinson"; or "xdiag" (Epperly, Tropp & Webber 2024), whose error is smaller if few eigenvalues
            dominate the matrix and larger if all are alike; it stores num_vectors · dim numbers.
          path, progress, **accuracy: As for `spectrum`; seed, and of "hutchinson" tolerance, as for it.
        """
        if method not in [*DIAGONALS]:
            raise UserError(f"method must be one of {', '.join(DIAGONALS)}, got {method!r}")
        require_counts(1, num_vectors=num_vectors)
        with MeasurementContext(self, path, progress) as measurement:
            measurement.plan("", num_vectors)
            estimate = DIAGONALS[method](
                measurement.product(), self.shape[0], num_vectors, dtype=self.dtype, **accuracy
            )
            measurement.plan("", estimate.num_vectors, is_final=True)
        return estimate

    def trace(self, *, num_products: int = 60, seed: int = 0, path: Path = None, progress: bool = True) -> Trace:
        """Returns the trace with its error, by XTrace (Epperly, Tropp & Webber 2024).

        Raises ValueError unless ½ num_products + 4 vectors of its dimension fit in memory.
        """
        require_counts(4, num_products=num_products)
        with MeasurementContext(self, path, progress) as measurement:
            measurement.plan("", min(num_products, self.shape[0]))
            return xtrace(measurement.product(), self.shape[0], num_products, seed, self.dtype)

    def per_layer(
        self, groups: Groups = "layer", *, path: Path = None, progress: bool = True, **accuracy: float
    ) -> PartSpectra:
        """Returns the spectrum of the diagonal block of each layer, or group of weights; each takes as many products as
        all.

        Args:
          groups: "layer"; "block" for residual blocks, of layers named stage1_block1…; or the trained variables of each
            group, by its name.
          path, progress, **accuracy: As for `spectrum`.
        """
        is_whole = isinstance(self._chosen, slice)
        if not is_whole:
            raise UserError("per_layer takes a Hessian of all weights: give groups={name: variables}, not variables")
        chosen = parts(self.model, groups)
        with MeasurementContext(self, path, progress) as measurement:
            for name, entries in chosen.items():
                measurement.plan(name, min(accuracy.get("order", ORDER), len(entries)))
            spectra = {name: self._spectrum(measurement, name, entries, accuracy) for name, entries in chosen.items()}
        return PartSpectra([part_row(name, spectrum) for name, spectrum in spectra.items()])

    def _spectrum(
        self, measurement: MeasurementContext, name: str, entries: np.ndarray | None, accuracy: dict
    ) -> ModelSpectrum:
        """Returns the spectrum of a diagonal block, or of the whole matrix."""
        dim = self.shape[0] if entries is None else len(entries)
        options = {
            "dtype": self.dtype,
            "on_plan": functools.partial(measurement.plan, name),
            "folder": measurement.folder,
        }
        quadrature, vectors = deflated_quadrature(measurement.product(name, entries), dim, **options | accuracy)
        return ModelSpectrum(quadrature, dim, vectors)

    def landscape(
        self,
        directions: Any = "random",
        *,
        span: float = 1.0,
        points: int = 25,
        seed: int = 0,
        path: Path = None,
        progress: bool = True,
    ) -> Landscape:
        """Returns the loss on a line or a plane through the weights, beside its quadratic model: print or `.plot()` it.

        Args:
          directions: "random": two, each filter as long as the weights' own (Li et al. 2018); "eigenvectors": those of
            the two eigenvalues of largest size, of length 1; or one or two vectors [dim].
          span, points: How far to either side, in multiples of a direction; an odd number of losses along each
            direction.
          seed, path, progress: Of random directions and of the iteration; as for `spectrum`, whose folder may be given.
        """
        with MeasurementContext(self, path, progress, "losses and products") as measurement:
            return losses_around(self, measurement, directions, span, points, seed)


def spectrum(model: keras.Model, x: Any, y: Any = None, loss: Any = None, **options: Any) -> ModelSpectrum:
    """Returns the spectrum of the Hessian of a model: Hessian(model, x, y, loss, …).spectrum(…).

    >>> import keras, numpy as np
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, use_bias=False, kernel_initializer="zeros")])
    >>> measured = spectrum(model, np.eye(2), np.array([0, 1]), progress=False)
    >>> round(measured.largest[0], 6), measured.dim  # twice the eigenvalues of 1/m · Σ x xᵀ ⊗ (diag p − p pᵀ): ¼ and 0
    (0.25, 4)
    """
    return _measured("spectrum", model, x, y, loss, options)


def diagonal(model: keras.Model, x: Any, y: Any = None, loss: Any = None, **options: Any) -> Diagonal:
    """Returns the diagonal of the Hessian of a model, and its trace: Hessian(model, x, y, loss, …).diagonal(…)."""
    return _measured("diagonal", model, x, y, loss, options)


def trace(model: keras.Model, x: Any, y: Any = None, loss: Any = None, **options: Any) -> Trace:
    """Returns the trace of the Hessian of a model: Hessian(model, x, y, loss, …).trace(…)."""
    return _measured("trace", model, x, y, loss, options)


def per_layer(model: keras.Model, x: Any, y: Any = None, loss: Any = None, **options: Any) -> PartSpectra:
    """Returns the spectra of a model's layers, or groups of weights: Hessian(model, x, y, loss, …).per_layer(…)."""
    return _measured("per_layer", model, x, y, loss, options)


def landscape(model: keras.Model, x: Any, y: Any = None, loss: Any = None, **options: Any) -> Landscape:
    """Returns the loss around the weights of a model: Hessian(model, x, y, loss, …).landscape(…)."""
    return _measured("landscape", model, x, y, loss, options)


def _not_in_type(dtype: str) -> Callable:
    """Returns the rule for a layer that computes in one type only, as one with constants in float32 does."""

    def rule(error: Exception) -> Exception | None:
        if dtype != "float64" or not isinstance(error, TypeError):
            return None
        return ValueError(f"the model does not compute in float64 ({first_reason(error)}); take dtype='float32'")

    return rule


def _has_loss(model: keras.Model) -> bool:
    return getattr(model, "loss", None) is not None


def _measured(name: str, model: keras.Model, x: Any, y: Any, loss: Any, options: dict) -> Any:
    """Returns a measurement of a Hessian; each of the two takes its options."""
    of_hessian = {key: value for key, value in options.items() if key in inspect.signature(Hessian).parameters}
    rest = {key: value for key, value in options.items() if key not in of_hessian}
    return getattr(Hessian(model, x, y, loss, **of_hessian), name)(**rest)
