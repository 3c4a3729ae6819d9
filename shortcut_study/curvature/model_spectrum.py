"""The Hessian of a Keras model for users: its spectrum, its diagonal, the spectra of its layers."""

import contextlib
import functools
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from matplotlib.figure import Figure

from shortcut_study.curvature import report
from shortcut_study.curvature.checks import Loss
from shortcut_study.curvature.deflation import NUM_VECTORS, ORDER, TOLERANCE, deflated_quadrature
from shortcut_study.curvature.examples import gathered, loss_name, loss_of
from shortcut_study.curvature.hutchinson import Hutchinson, hutchinson
from shortcut_study.curvature.kept import KeptProducts
from shortcut_study.curvature.products import block, flat_weights, model_mvp, positions
from shortcut_study.curvature.quadrature import Quadrature, density, extreme_eigenvalues, mean_eigenvalue

RESIDUAL_BLOCK = re.compile(r"^stage\d+_block\d+")
NUM_PRINTED = 3  # eigenvalues at either end
LONG_SECONDS = 600


class ModelSpectrum(NamedTuple):
    """The spectrum of a Hessian: print it, or draw it with .plot().

    Attributes:
      quadrature: Known eigenvalues, and Ritz values, weights and error bounds of random vectors for the others.
      dim: Number of eigenvalues.
      eigenvectors: [k, dim], of the known eigenvalues quadrature.known, in the order of model.trainable_variables.
        Each is off by an angle of its known_bound over the distance to the next eigenvalue, at most.
      heading: Whose spectrum it is.
    """

    quadrature: Quadrature
    dim: int
    eigenvectors: np.ndarray
    heading: str = ""

    @property
    def largest(self) -> tuple[float, float]:
        """The largest eigenvalue found, and its error bound: some eigenvalue lies as near as that."""
        return self._end(largest=True)

    @property
    def smallest(self) -> tuple[float, float]:
        """The smallest eigenvalue found, and its error bound."""
        return self._end(largest=False)

    @property
    def trace(self) -> tuple[float, float]:
        """The trace, and the error that it is within 95 times in 100, by Student's t (NaN for one random vector)."""
        mean, error = mean_eigenvalue(self.quadrature)
        return mean * self.dim, error * self.dim

    def _end(self, largest: bool) -> tuple[float, float]:
        values, bounds = extreme_eigenvalues(self.quadrature, 1, largest)
        return float(values[0]), float(bounds[0])

    def __str__(self) -> str:
        """Returns the extreme eigenvalues, the trace and what else is resolved, each with its error: see `report`."""
        text = report.report(self.quadrature, NUM_PRINTED, self.dim)
        return f"{self.heading}\n{text}" if self.heading else text

    def plot(self, title: str = "") -> Figure:
        """Returns a Matplotlib figure of the density of the eigenvalues, the extreme ones marked."""
        rows = report.quadrature_rows(self.quadrature)
        return report.spectrum_figure(rows, report.density_rows(density(self.quadrature)), title)


def spectrum(
    model: keras.Model,
    x: Any,
    y: Any = None,
    loss: Loss = None,
    *,
    batch_size: int | None = None,
    order: int = ORDER,
    num_vectors: int = NUM_VECTORS,
    tolerance: float = TOLERANCE,
    seed: int = 0,
    path: str | os.PathLike | None = None,
    progress: bool = True,
    **options: Any,
) -> ModelSpectrum:
    """Returns the spectrum of the Hessian of a mean loss in the trained weights of a model.

    The products are exact. By default the extreme eigenvalues are found to a thousandth of the largest, and 24 random
    vectors estimate the rest: 70 to 130 products for a trained classifier, each some 3 gradients over all examples.

    >>> import keras, numpy as np
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, use_bias=False, kernel_initializer="zeros")])
    >>> found = spectrum(model, np.eye(2), np.array([0, 1]), progress=False)
    >>> round(found.largest[0], 6), found.dim  # twice the eigenvalues of 1/m · Σ x xᵀ ⊗ (diag p − p pᵀ): ¼ and 0
    (0.25, 4)

    Args:
      model: keras.Model of one input and one output, functional or sequential, on TensorFlow.
      x: [m, …] as the model takes them; or, without y, batches: a tf.data.Dataset, a PyDataset or an iterable of pairs
        (x, y), which are read once.
      y: int [m], or what the loss takes.
      loss: A Keras loss, its name, or a function with one value an example; None: that with which the model is
        compiled, or the cross-entropy of logits where it is not.
      batch_size: int. Examples at a time; sets the memory, not the result. None: chosen by their size.
      order, num_vectors, tolerance: As for `deflated_quadrature`.
      seed: int. Of the random vectors.
      path: str or path. A file that has each product as soon as it is finished; the same call with it goes on after an
        interruption. None: nothing is kept.
      progress: bool. Shows a bar.
      **options: training, variables, gauss_newton, on_batch, as for `model_mvp`.

    Raises:
      ValueError: as `model_mvp` and `lanczos`; path holds products of something else.
    """
    with _products(model, x, y, loss, batch_size, path, progress, options) as made:
        found = made.spectrum("", order, num_vectors, tolerance, seed)
    matrix = "Gauss–Newton matrix" if options.get("gauss_newton") else "Hessian"
    heading = f"{matrix} of the mean {made.loss} over {made.num_examples:,} examples in {found.dim:,} weights"
    return found._replace(heading=f"{heading}, {made.num_products} Hessian-vector products")


def diagonal(
    model: keras.Model,
    x: Any,
    y: Any = None,
    loss: Loss = None,
    *,
    batch_size: int | None = None,
    num_vectors: int = 100,
    tolerance: float = 0.0,
    seed: int = 0,
    path: str | os.PathLike | None = None,
    progress: bool = True,
    **options: Any,
) -> Hutchinson:
    """Returns the diagonal of the Hessian of a model, and its trace, with errors, by Hutchinson's estimator.

    For the trace alone `spectrum` takes fewer products.

    Args:
      model, x, y, loss, batch_size, path, progress, **options: As for `spectrum`.
      num_vectors, tolerance, seed: As for `hutchinson`.

    Raises:
      ValueError: as `model_mvp` and `hutchinson`.
    """
    with _products(model, x, y, loss, batch_size, path, progress, options) as made:
        made.plan("", num_vectors)
        found = hutchinson(*made.matrix(), num_vectors, seed, tolerance, made.dtype)
        made.plan("", found.num_vectors, is_final=True)
        return found


class PartSpectra(NamedTuple):
    """The spectra of diagonal blocks of a Hessian: print them as a table, or draw them with .plot().

    Attributes:
      rows: A dict for each part: part, num_weights, largest, largest_error_bound, smallest, smallest_error_bound,
        trace, trace_error.
    """

    rows: list[dict]

    def __str__(self) -> str:
        """Returns a line for each part."""
        return report.parts_table(self.rows)

    def plot(self) -> Figure:
        """Returns a Matplotlib figure of the extreme eigenvalues and the traces."""
        return report.parts_figure(self.rows)


def per_layer(
    model: keras.Model,
    x: Any,
    y: Any = None,
    loss: Loss = None,
    *,
    groups: Mapping[str, Sequence[keras.Variable]] | str = "layer",
    batch_size: int | None = None,
    order: int = ORDER,
    num_vectors: int = NUM_VECTORS,
    tolerance: float = TOLERANCE,
    seed: int = 0,
    path: str | os.PathLike | None = None,
    progress: bool = True,
    **options: Any,
) -> PartSpectra:
    """Returns the spectrum of the diagonal block of the Hessian of each layer, or of each group of weights.

    Every layer costs as many products as `spectrum` does for the whole model.

    Args:
      groups: "layer"; "block" for residual blocks, of layers named stage1_block1…; or the trained variables of each
        group, by its name.
      model, x, y, loss, batch_size, order, num_vectors, tolerance, seed, path, progress, **options: As for `spectrum`.

    Raises:
      ValueError: as `spectrum`; groups that are neither of these.
    """
    chosen = parts(model, groups)
    with _products(model, x, y, loss, batch_size, path, progress, options) as made:
        for name, entries in chosen.items():
            made.plan(name, min(order, len(entries)))
        return PartSpectra([
            _part_row(name, made.spectrum(name, order, num_vectors, tolerance, seed, entries))
            for name, entries in chosen.items()
        ])  # fmt: skip


def parts(model: keras.Model, groups: Mapping[str, Sequence[keras.Variable]] | str = "layer") -> dict[str, np.ndarray]:
    """Returns where the weights of each layer, block or group stand in the flat weights, by its name.

    By block, the layers of a residual block count as one, which has the block's name. Of layers of one name, as two
    models in a model can have, the second is "name (2)".

    Args:
      groups: As for `per_layer`.
    """
    if isinstance(groups, Mapping):
        return {name: positions(model, variables) for name, variables in groups.items()}
    if groups not in ("layer", "block"):
        raise ValueError(f'groups must be "layer", "block", or variables by name, got {groups!r}')
    # Layers in layers come last.
    owners = {id(weight): layer for layer in model._flatten_layers() for weight in layer.weights}
    by_name: dict[str, list] = {}  # the layers of each name
    found: dict[str, list] = {}
    sizes = [math.prod(variable.shape) for variable in model.trainable_variables]
    ends = zip(model.trainable_variables, sizes, np.cumsum(sizes))
    trained = {id(variable): np.arange(end - size, end) for variable, size, end in ends}
    for weight in model.weights:
        layer = weight.path.rsplit("/", 1)[0].removeprefix(f"{model.name}/")
        residual = RESIDUAL_BLOCK.match(layer) if groups == "block" else None
        name, owner = residual.group() if residual else layer, owners.get(id(weight))
        namesakes = by_name.setdefault(layer, [])
        if owner not in namesakes:
            namesakes.append(owner)
        number = namesakes.index(owner) + 1
        if id(weight) in trained:
            found.setdefault(f"{name} ({number})" if number > 1 else name, []).append(trained[id(weight)])
    return {name: np.concatenate(entries) for name, entries in found.items()}


def _part_row(name: str, found: ModelSpectrum) -> dict:
    columns = "largest", "largest_error_bound", "smallest", "smallest_error_bound", "trace", "trace_error"
    numbers = *found.largest, *found.smallest, *found.trace
    return {"part": name, "num_weights": found.dim} | dict(zip(columns, numbers))


class _Products:
    """The products of one call: counted by a bar, kept in a file."""

    bar: Any

    def __init__(
        self, model: keras.Model, x: Any, y: Any, loss: Loss, batch_size: int | None, path: Any, options: dict
    ) -> None:
        examples, loss = gathered(x, y, batch_size), loss_of(model, loss)
        self._on_batch, self._plans = options.pop("on_batch", None), {}
        self._whole = model_mvp(model, *examples, on_batch=self._count, loss=loss, **options)
        self.loss, self.num_examples = loss_name(loss), len(examples.x)
        self.num_products, self._batches = 0, -(-len(examples.x) // examples.batch_size)
        self.dtype = np.dtype(model.trainable_variables[0].dtype).type
        weights, others = flat_weights(model)
        matrix = [str(options.get(name)) for name in ("training", "gauss_newton")]
        at = [str(positions(model, options["variables"]).tolist())] if options.get("variables") is not None else []
        batch = [str(examples.batch_size)] * bool(options.get("training"))  # which then belongs to the loss
        arrays = [weights.numpy(), *(other.numpy() for other in others), examples.x, examples.y]
        self._kept = KeptProducts(path, [*arrays, _described(loss), *matrix, *at, *batch])

    def matrix(self, name: str = "", entries: np.ndarray | None = None) -> tuple[Callable, int]:
        """Returns mvp_fn, dim of the whole matrix, or of its block at some entries, kept under a name."""
        mvp_fn, dim = self._whole if entries is None else block(*self._whole, entries)
        kept = self._kept.of(mvp_fn, name, lambda: self.bar.update(self._batches))

        def product(vector: np.ndarray) -> np.ndarray:
            self.num_products += 1
            start = time.monotonic()
            found = kept(vector)
            if self.num_products == 2:  # the first one's time is that of optimising the graph too
                self._say_if_long(time.monotonic() - start)
            return found

        return product, dim

    def _say_if_long(self, seconds: float) -> None:
        """Says how long all products take, by the seconds of one, and what takes less, where that is long."""
        total = self.bar.total / self._batches * seconds
        if total > LONG_SECONDS and not self.bar.disable:
            self.bar.write(
                f"note: a product takes {seconds:.2g} s, all of them at most {total / 60:,.0f} minutes; half of the "
                "examples take half of it; num_vectors=8 and order=30, say, take fewer products and give larger errors",
                file=sys.stderr,
            )

    def plan(self, name: str, num_products: int, is_final: bool = False) -> None:
        """Shows how many products a matrix takes; an upper limit unless final."""
        self._plans[name] = num_products, is_final
        totals, are_final = zip(*self._plans.values())
        self.bar.total = sum(totals) * self._batches
        self.bar.set_description("Hessian products, by batch" + ", at most" * (not all(are_final)))

    def spectrum(
        self, name: str, order: int, num_vectors: int, tolerance: float, seed: int, entries: np.ndarray | None = None
    ) -> ModelSpectrum:
        """Returns the spectrum of the whole matrix or of a block."""
        mvp_fn, dim = self.matrix(name, entries)
        plan = functools.partial(self.plan, name)
        options = (order, num_vectors, tolerance, seed, self.dtype, plan)
        quadrature, vectors = deflated_quadrature(mvp_fn, dim, *options)
        return ModelSpectrum(quadrature, dim, vectors)

    def _count(self) -> None:
        self.bar.update()
        if self._on_batch:
            self._on_batch()


@contextlib.contextmanager
def _products(
    model: keras.Model, x: Any, y: Any, loss: Loss, batch_size: int | None, path: Any, progress: bool, options: dict
) -> Iterator[_Products]:
    """Opens a bar and yields the products that it counts."""
    from tqdm import tqdm

    # The total is the most that it can be until the iteration knows better: it shrinks, and the bar ends at 100 %.
    # It shows from the first product on: what is refused before leaves none, and compiling is no product's time.
    made = _Products(model, x, y, loss, batch_size, path, dict(options))
    with tqdm(desc="Hessian products", unit="batch", dynamic_ncols=True, disable=not progress, delay=0.01) as made.bar:
        yield made


def _described(loss: Loss) -> str:
    """Returns a loss's name and configuration."""
    return f"{loss_name(loss)} {loss.get_config() if isinstance(loss, keras.losses.Loss) else ''}"
