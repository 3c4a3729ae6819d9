"""The Hessian of a Keras model, as one object: products, spectrum, diagonal, spectra of layers, SciPy's operator.

    equations                          code
    L(w), w flat [dim]                 mean loss of the trained weights, in the model's order
    Hv = d/dt ∇L(w + tv) at t = 0      Hessian @ v; a sum over batches of products of a backend

A product is: check (once), mean over the batches, block of some variables. What watches products, a bar and a folder
that keeps them, is a wrapper around this: watched.py.
"""

import functools
import importlib
import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import scipy.sparse.linalg

from shortcut_study.curvature import checks
from shortcut_study.curvature.deflation import ORDER, deflated_quadrature
from shortcut_study.curvature.dtypes import widest
from shortcut_study.curvature.examples import Examples, gathered, mapped
from shortcut_study.curvature.hutchinson import Hutchinson, hutchinson
from shortcut_study.curvature.landscapes import Landscape, losses_around
from shortcut_study.curvature.model_spectrum import ModelSpectrum, PartSpectra, part_row, parts, positions
from shortcut_study.curvature.objective import Objective, first_reason, flat, loss_name, loss_of
from shortcut_study.curvature.watched import Watched
from shortcut_study.curvature.xtrace import Trace, xtrace

BACKENDS = {name: f"shortcut_study.curvature.{name}_backend" for name in ("tensorflow", "jax", "torch")}
PRECISIONS = "highest", "high", "default"
AT_ONCE = 8  # vectors of a matrix that a batch is multiplied with at a time


class Hessian:
    """The Hessian of the mean loss over examples in the trained weights of a Keras model, known by exact products.

    L = 1/m Σ ℓ(y, outputs), ℓ the loss of compile, else −log softmax(logits)[label]. Weight penalties are left out:
    (λ/2)‖w‖² adds λ to every eigenvalue. Weights, and the statistics of batch normalisation, are copied now; the model
    and its random generators stay as they are.

    >>> import keras, numpy as np
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, use_bias=False, kernel_initializer="zeros")])
    >>> h = Hessian(model, np.eye(2), np.array([0, 1]))
    >>> h.shape, (h @ np.array([1.0, 0.0, 0.0, 0.0])).tolist()  # 1/m Σ x xᵀ ⊗ (diag p − p pᵀ), p = (½, ½)
    ((4, 4), [0.125, -0.125, 0.0, 0.0])

    Before the first number it is compared with Keras's loss, gradient and differences of gradients: see `checks`. On
    the digits network that takes as long as two products over 256 images.

    Args:
      model: keras.Model, built: functional, sequential or of a class of its own, on TensorFlow, JAX or PyTorch.
      x: [m, …] as the model takes them, or a list or dict for several inputs; or, without y, batches: a
        tf.data.Dataset, a PyDataset or an iterable of (x, y) or (x, y, sample_weight), which are read once.
      y: [m] or what the loss takes, or a list or dict for several outputs.
      loss, loss_weights: As compile takes them. None: those of compile, else the cross-entropy of logits. The mean over
        values is taken, for every reduction; with ignore_class or a mask, over those that count.
      variables: Some of model.trainable_variables: only their diagonal block. Costs as much as all.
      gauss_newton: bool. The Gauss–Newton matrix Jᵀ∇²ℓJ in place of the Hessian (weights in a loss held).
      training: bool. Batch normalisation by each batch's own moments, so that batch_size belongs to the definition of
        the loss. Dropout has one mask then, that of its generator's present state.
      sample_weight: [m], or as y.
      batch_size: int. Examples at a time; sets the memory, not the result. None: chosen by their size.
      dtype: "float32" or "float64". None: that of the weights, also of a model in mixed precision.
      precision: "highest", or "default": a GPU may then round factors to TensorFloat-32, 0.2 % off and faster.
      on_batch: callable. Called without arguments after each batch.

    Attributes:
      shape, dtype: (dim, dim), and the NumPy type of products.
      rounding: float. Of a product, as a share of it, at a point near the weights.

    Raises:
      ValueError: in one line, what is not taken or what has no Hessian; from a product, a vector of another shape.
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
        if (backend := keras.backend.backend()) not in BACKENDS:
            raise ValueError(f"Hessian products need KERAS_BACKEND=tensorflow, jax or torch, got {backend}")
        if precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
        self.model, self.on_batch = model, on_batch
        dtype = dtype or widest(model)
        self.dtype = np.dtype(dtype).type
        self.loss_is_default = loss is None and getattr(model, "loss", None) is None
        self.loss, loss_weights = loss_of(model, loss, loss_weights)
        num = (len(of) if (of := getattr(model, ends, None)) else None for ends in ("inputs", "outputs"))
        examples = gathered(x, y, batch_size, sample_weight, *num)
        checks.check_examples(examples, self.loss, self.loss_is_default, model)
        module = importlib.import_module(BACKENDS[backend])
        size, devices = examples.batch_size, module.num_devices()
        size = -(-size // devices) * devices if batch_size is None else size  # which several devices divide
        self._chosen = None if variables is None else positions(model, variables)
        self.gauss_newton = gauss_newton
        self.objective = Objective(model, self.loss, loss_weights, training, dtype)
        # Whole numbers stay what they are: an id beyond 2²⁴ is another one in float32.
        self.examples = Examples(mapped(self._as_floats, examples.x), *examples[1:3], min(size, len(examples)))
        self._backend = module.Backend(self.objective, gauss_newton, precision, self.examples)
        self._weights, self._others = self._backend.values(model, dtype)
        self.rounding = self._explained(self._check)

    def _as_floats(self, array: np.ndarray) -> np.ndarray:
        return array.astype(self.dtype) if array.dtype.kind == "f" else array

    @property
    def num_weights(self) -> int:
        """The number of trained weights of the model, which `variables` may choose some of."""
        return sum(math.prod(variable.shape) for variable in self.model.trainable_variables)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and columns."""
        dim = self.num_weights if self._chosen is None else len(self._chosen)
        return dim, dim

    @property
    def num_batches(self) -> int:
        """How many batches a product takes."""
        return -(-len(self.examples) // self.examples.batch_size)

    @property
    def loss_in_words(self) -> str:
        """Which mean over how many examples the loss is."""
        loss = "cross-entropy of logits" if self.loss_is_default else loss_name(self.loss)
        return f"mean {loss} over {len(self.examples):,} examples"

    def problem(self) -> dict[str, list]:
        """Returns the arrays and words that decide the products, by what they are."""
        losses = [of for of in keras.tree.flatten(self.loss) if isinstance(of, keras.losses.Loss)]
        configurations = [str(of.get_config()) for of in losses]
        loss = [loss_name(self.loss), *configurations, str(self.objective.loss_weights)]
        matrix = [str(self.dtype), str(self.objective.training), str(self.gauss_newton)]
        matrix += [] if self._chosen is None else [self._chosen]
        matrix += [str(self.examples.batch_size)] * self.objective.training  # which then belongs to the loss
        weights = [keras.ops.convert_to_numpy(array) for array in (*self._weights, *self._others)]
        examples = [a for tree in self.examples[:3] if tree is not None for a in keras.tree.flatten(tree)]
        return {"weights": weights, "examples": examples, "loss": loss, "matrix": matrix}

    def move_to(self, model: keras.Model) -> None:
        """Takes the present weights and statistics of a model of the same architecture; compiles nothing."""
        self._weights, self._others = self._backend.values(model, self.objective.dtype)

    def __matmul__(self, v: Any) -> np.ndarray:
        """Returns Hv [dim] for v [dim], or HV [dim, k] for V [dim, k] in one pass over the examples; NumPy."""
        v, dim = np.asarray(v), self.shape[0]
        if v.ndim not in (1, 2) or len(v) != dim:
            raise ValueError(f"the vector must have shape ({dim},), or ({dim}, k) for k of them, got {v.shape}")
        vectors = v.reshape(dim, -1).T.astype(self.dtype)
        if self._chosen is not None:
            whole = np.zeros((len(vectors), self.num_weights), self.dtype)
            whole[:, self._chosen] = vectors
            vectors = whole
        found = self._explained(lambda: self._sum(vectors))
        found = found if self._chosen is None else found[:, self._chosen]
        return found[0] if v.ndim == 1 else found.T

    def _sum(self, vectors: np.ndarray) -> np.ndarray:
        """Returns the products [k, dim] with vectors [k, dim] of the whole matrix."""
        starts = range(0, len(vectors), AT_ONCE)
        placed = self._backend.tensors([vectors[start : start + AT_ONCE] for start in starts], self.objective.dtype)
        totals: list = [None] * len(placed)  # on the device: a GPU would wait for each vector of weights to come and go
        for batch in self.examples.batches():
            for i, some in enumerate(placed):
                part = self._backend.product(self._weights, self._others, some, batch, self._scales)
                totals[i] = self._backend.sum(totals[i], part)
            if self.on_batch:
                self.on_batch()
        total = np.concatenate([np.asarray(of) for of in totals])
        if not np.isfinite(total).all():
            is_finite = all(np.isfinite(keras.ops.convert_to_numpy(w)).all() for w in self._weights)
            what = "loss, or a derivative of it, is" if is_finite else "model's weights are"
            raise ValueError(f"there is no Hessian product: the {what} NaN or infinite")
        return total

    def part(self, vector: np.ndarray) -> np.ndarray:
        """Returns of a vector for all trained weights the entries that this matrix has rows for."""
        return vector if self._chosen is None else vector[self._chosen]

    def loss_at(self, step: np.ndarray | None = None) -> float:
        """Returns the mean loss at the weights and a step [dim] from there."""
        return float(self._over_batches("loss", step))

    def gradient_at(self, step: np.ndarray | None = None) -> np.ndarray:
        """Returns the gradient [dim] at the weights and a step [dim] from there."""
        return self.part(np.asarray(self._over_batches("gradient", step)))

    def _over_batches(self, what: str, step: np.ndarray | None) -> Any:
        here, total = self._weights, None
        if step is not None:
            whole = flat(here)
            whole[slice(None) if self._chosen is None else self._chosen] += np.asarray(step, self.dtype)
            parts = checks.parts_of(whole, [variable.shape for variable in self.model.trainable_variables])
            here = self._backend.tensors(parts, self.objective.dtype)
        of_batch = functools.partial(getattr(self._backend, what), here, self._others)
        for batch in self.examples.batches():
            total = self._backend.sum(total, self._explained(functools.partial(of_batch, batch, self._scales)))
            if self.on_batch:
                self.on_batch()
        return total

    def _check(self) -> float:
        """Compares loss, gradient and a product with Keras's own, and counts the values in the loss."""
        checked = self.examples.part(0, min(self._backend.num_checked, len(self.examples)))
        fixed = self.objective, self._backend, self._weights, self._others
        sums = checks.check_objective(*fixed, checked, self.loss_is_default)
        counts = [part.count * len(self.examples) / len(keras.tree.flatten(checked)[0]) for part in sums]
        if not all(part.by_shape for part in sums):
            counts = np.sum([self._counts(batch) for batch in self.examples.batches()], axis=0)
        if not np.all(counts):
            raise ValueError("the loss ignores all labels")
        self._backend.compile()
        factors = np.array([part.factor for part in sums])
        self._scales = factors / np.array(counts)
        own = np.array([part.count for part in sums])
        if not own.all() or not all(np.isfinite(part.total) for part in sums):
            return math.nan
        return checks.check_derivatives(*fixed, checked, factors / own, not self.gauss_newton)

    def _counts(self, batch: tuple) -> list[float]:
        def counts(weights: list, others: list, batch: tuple) -> list:
            x, y, sample_weight = batch
            with self.objective.at(weights, others):
                return [part.count for part in self.objective.sums(y, self.objective.outputs(x), sample_weight)]

        placed = self._backend.on_device(batch)
        return [float(count) for count in self._backend.evaluate(counts, self._weights, self._others, placed)]

    def _explained(self, function: Callable) -> Any:
        """Calls a function; says in one line where a backend does not take the examples."""
        try:
            return function()
        except self._backend.refusals as error:
            raise ValueError(f"the model or the loss does not take these examples: {first_reason(error)}") from error

    def to_scipy(self) -> scipy.sparse.linalg.LinearOperator:
        """Returns the operator that scipy.sparse.linalg takes, for eigsh, cg and others."""
        return scipy.sparse.linalg.LinearOperator(
            self.shape,
            matvec=lambda v: self @ np.ravel(v),
            matmat=self.__matmul__,
            rmatvec=self.__matmul__,
            dtype=self.dtype,
        )

    def spectrum(
        self, *, path: str | os.PathLike | None = None, progress: bool = True, **accuracy: float
    ) -> ModelSpectrum:
        """Returns extreme eigenvalues, trace and density, each with its error: print it, or `.plot()`.

        By default the extreme eigenvalues are found to a thousandth of the largest, and 24 random vectors estimate the
        rest: 70 to 130 products for a trained classifier, each some 3 gradients over all examples.

        Args:
          path: A folder that has each product as soon as it is finished; the same call goes on after an interruption.
          progress: bool. Shows a bar.
          **accuracy: order, num_vectors, tolerance, seed, as for `deflation.deflated_quadrature`.
        """
        with Watched(self, path, progress) as watched:
            found = _spectrum(watched, "", None, accuracy)
        matrix = "Gauss–Newton matrix" if self.gauss_newton else "Hessian"
        heading = f"{matrix} of the {self.loss_in_words} in {found.dim:,} weights"
        heading += f", {watched.num_products} Hessian-vector products"
        return found._replace(heading=heading)

    def diagonal(
        self, *, num_vectors: int = 100, path: str | os.PathLike | None = None, progress: bool = True, **accuracy: float
    ) -> Hutchinson:
        """Returns the diagonal and the trace, with errors, by Hutchinson's estimator.

        For the trace alone `trace` takes fewer products.

        Args:
          num_vectors, **accuracy: num_vectors, tolerance, seed, as for `hutchinson`.
          path, progress: As for `spectrum`.
        """
        with Watched(self, path, progress) as watched:
            watched.plan("", num_vectors)
            found = hutchinson(watched.product(), self.shape[0], num_vectors, dtype=self.dtype, **accuracy)
            watched.plan("", found.num_vectors, is_final=True)
        return found

    def trace(
        self, *, num_products: int = 60, seed: int = 0, path: str | os.PathLike | None = None, progress: bool = True
    ) -> Trace:
        """Returns the trace with its error, by XTrace (Epperly, Tropp & Webber 2024).

        Args:
          num_products: int. At least 4. So many vectors of all weights are held in memory.
          seed: int. Of the random vectors.
          path, progress: As for `spectrum`.
        """
        with Watched(self, path, progress) as watched:
            watched.plan("", min(num_products, self.shape[0]))
            return xtrace(watched.product(), self.shape[0], num_products, seed, self.dtype)

    def per_layer(
        self,
        groups: Mapping[str, Sequence[keras.Variable]] | str = "layer",
        *,
        path: str | os.PathLike | None = None,
        progress: bool = True,
        **accuracy: float,
    ) -> PartSpectra:
        """Returns the spectrum of the diagonal block of each layer, or of each group of weights.

        Every layer costs as many products as `spectrum` does for the whole model.

        Args:
          groups: "layer"; "block" for residual blocks, of layers named stage1_block1…; or the trained variables of each
            group, by its name.
          path, progress, **accuracy: As for `spectrum`.

        Raises:
          ValueError: in one line, the groups are not of trained variables, or the Hessian is of some variables only.
        """
        if self._chosen is not None:
            raise ValueError("per_layer takes a Hessian of all weights: give groups={name: variables}, not variables")
        chosen = parts(self.model, groups)
        with Watched(self, path, progress) as watched:
            for name, entries in chosen.items():
                watched.plan(name, min(accuracy.get("order", ORDER), len(entries)))
            return PartSpectra([
                part_row(name, _spectrum(watched, name, entries, accuracy)) for name, entries in chosen.items()
            ])  # fmt: skip

    def landscape(
        self,
        directions: Any = "random",
        *,
        span: float = 1.0,
        points: int = 25,
        seed: int = 0,
        path: str | os.PathLike | None = None,
        progress: bool = True,
    ) -> Landscape:
        """Returns the loss on a line or a plane through the weights, beside its quadratic model: print or `.plot()` it.

        points² losses on a plane, each as long as a third of a gradient over all examples.

        Args:
          directions: "random": two, each filter as long as the weights' own (Li et al. 2018); "eigenvectors": those of
            the two eigenvalues of largest size, of length 1; or one or two vectors [dim].
          span: float. How far to either side, in multiples of a direction.
          points: int. Along each direction, odd: the weights are in the middle.
          seed: int. Of the random directions, and of the iteration that finds eigenvectors.
          path, progress: As for `spectrum`, whose folder may be given.
        """
        with Watched(self, path, progress, "losses and products") as watched:
            return losses_around(self, watched, directions, span, points, seed)


def _spectrum(watched: Watched, name: str, entries: np.ndarray | None, accuracy: dict) -> ModelSpectrum:
    """Returns the spectrum of the whole matrix, or of its block at some entries."""
    h, dim = watched.operator, watched.operator.shape[0] if entries is None else len(entries)
    plan = functools.partial(watched.plan, name)
    quadrature, vectors = deflated_quadrature(
        watched.product(name, entries), dim, dtype=h.dtype, on_plan=plan, **accuracy
    )
    return ModelSpectrum(quadrature, dim, vectors)


def spectrum(model: keras.Model, x: Any, y: Any = None, loss: Any = None, **options: Any) -> ModelSpectrum:
    """Returns the spectrum of the Hessian of a model: Hessian(model, x, y, loss, …).spectrum(…).

    >>> import keras, numpy as np
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, use_bias=False, kernel_initializer="zeros")])
    >>> found = spectrum(model, np.eye(2), np.array([0, 1]), progress=False)
    >>> round(found.largest[0], 6), found.dim  # twice the eigenvalues of 1/m · Σ x xᵀ ⊗ (diag p − p pᵀ): ¼ and 0
    (0.25, 4)

    Args:
      model, x, y, loss, **options: As for `Hessian` and `Hessian.spectrum`.
    """
    return _measured("spectrum", model, x, y, loss, options)


def diagonal(model: keras.Model, x: Any, y: Any = None, loss: Any = None, **options: Any) -> Hutchinson:
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


def _measured(name: str, model: keras.Model, x: Any, y: Any, loss: Any, options: dict) -> Any:
    """Returns a measurement of a Hessian; each of the two takes its options."""
    of_hessian = {key: value for key, value in options.items() if key in inspect.signature(Hessian).parameters}
    rest = {key: value for key, value in options.items() if key not in of_hessian}
    return getattr(Hessian(model, x, y, loss, **of_hessian), name)(**rest)
