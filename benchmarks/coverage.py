"""Measure how often the intervals that the project prints hold the truth, on matrices of known eigenvalues.

    python -m benchmarks.coverage                          half an hour of one core; table in docs/appendix/coverage.md
    python -m benchmarks.coverage --dims=5000 --products=60 --nonetwork      a quarter of an hour of one core
    python -m benchmarks.coverage --preset=quick           10 seconds: 200 dimensions, 20 products, 10 repetitions

A row is a matrix and a number of products; a column is an estimator with that many products, for `spectrum` with as
many steps an iteration at most. A cell has the share of the repetitions, each with its own random vectors, in which the
true number lies within the interval, in percent, and the mean half-width over the size of the true number. For an
estimate of many numbers (the entries of a diagonal, the points of a density) it has the mean share, and the half-width
over the largest of them. The density's is one standard error, not an interval. By chance 200 repetitions of an interval
that holds 95 % have 92 to 98 %. The last two spectra were not looked at when the intervals were chosen.
"""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import scipy.fft
from scipy.stats import binom, binomtest

from benchmarks.harness import Benchmark, table
from identity_matters.fields import option
from launch import launcher
from shortcut_study.conditioning import share_within, summary
from shortcut_study.curvature.estimators import hutchinson, xdiag, xtrace
from shortcut_study.curvature.quadrature import DENSITY_WIDTH, deflated_quadrature, density, mean_eigenvalue

VECTORS = 24  # of a spectrum, as by default: 20 for the trace, 4 for density and shares
ROUNDING = 1e-9  # of the largest number: what is exact counts as held
NETWORK = "trained network"
Measured = dict[str, tuple[float, float]]  # by estimator: the share that is held, and the half-width


@dataclasses.dataclass(frozen=True)
class CoverageBenchmark(Benchmark):
    """The measurements, and their number.

    Attributes:
      repeats: Repetitions of a row.
      dims: Dimensions of the matrices with made-up spectra.
      products: Products of an estimator; of a spectrum, the most steps of an iteration.
      network: Also the Hessian of a trained network of 1,270 weights.
    """

    repeats: int = option(200, at_least=1)
    dims: tuple[int, ...] = (200, 1000)
    products: tuple[int, ...] = (20, 60, 200)
    network: bool = True


def spectra(dim: int) -> dict[str, np.ndarray]:
    """Returns eigenvalues [dim] by the name of their kind."""
    random, place = np.random.default_rng(0), np.arange(1, dim + 1)
    return {
        "flat, 1 to 3": 1 + 2 * random.random(dim),
        "ten outliers, bulk": np.append(np.linspace(20, 200, 10), random.random(dim - 10)),
        "exponential, 0.9^i": 0.9**place,
        "power law, 1/i": 1 / place,
        "both signs, ten outliers": random.standard_normal(dim) * np.where(place <= 10, 20, 1),
        "power law, 1/i²": 1 / place**2,
        "one outlier, bulk": np.append(random.random(dim - 1), dim / 2),
        "exponential, both signs": (-0.8) ** place,
        "two values, 1 and 100": np.where(place <= dim // 20, 100.0, 1.0),
    }


def matrices(benchmark: CoverageBenchmark) -> Iterator[tuple[str, np.ndarray, np.ndarray, Callable]]:
    """Yields the name, the eigenvalues, the diagonal and the product of each matrix."""
    for dim in benchmark.dims:
        for name, values in spectra(dim).items():
            product = turned(values)
            yield name, values, np.array([product(unit)[i] for i, unit in enumerate(np.eye(dim))]), product
    if benchmark.network:
        matrix = network_hessian()
        yield NETWORK, np.linalg.eigvalsh(matrix), np.diag(matrix), matrix.__matmul__


def turned(values: np.ndarray) -> Callable:
    """Returns the product of a dense matrix with these eigenvalues."""
    first, second = (np.where(np.random.default_rng(seed).random(len(values)) < 0.5, -1, 1) for seed in (1, 2))

    def product(v: np.ndarray) -> np.ndarray:
        inner = scipy.fft.dct(second * scipy.fft.dct(first * v, norm="ortho"), norm="ortho")
        return first * scipy.fft.idct(second * scipy.fft.idct(values * inner, norm="ortho"), norm="ortho")

    return product


def network_hessian() -> np.ndarray:
    """Returns the Hessian of a network with one hidden layer after 20 epochs on 1,000 digits of 7 × 7 pixels."""
    import keras

    from identity_matters.data.digits import mnist_sample
    from shortcut_study.curvature import Hessian

    digits = mnist_sample()
    x = digits.train_images[:1000].reshape(-1, 7, 4, 7, 4).mean((2, 4)).reshape(-1, 49).astype(np.float64)
    x, y = (x - x.mean()) / x.std(), digits.train_labels[:1000]
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((49,)), keras.layers.Dense(21, "tanh"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
    model.fit(x, y, epochs=20, batch_size=50, verbose=0)
    matrix = Hessian(model, x, y, dtype="float64") @ np.eye(model.count_params())
    return (matrix + matrix.T) / 2


def held(values: np.ndarray | float, errors: np.ndarray | float, exact: np.ndarray | float) -> tuple[float, float]:
    """Returns the share of numbers within their errors of the exact ones, and the half-width."""
    largest = np.abs(exact).max()
    return float(np.mean(np.abs(values - exact) <= errors + ROUNDING * largest)), float(np.mean(errors) / largest)


def of_products(product: Callable, values: np.ndarray, diagonal: np.ndarray, count: int, seed: int) -> Measured:
    """Returns the coverage of the estimators of trace and diagonal, by products of one seed."""
    trace, dim = values.sum(), len(values)
    found = xtrace(product, dim, count, seed)
    rows = {"trace": held(found.value, found.error, trace)}
    for name, estimator in (("xdiag", xdiag), ("hutchinson", hutchinson)):
        found = estimator(product, dim, count, seed)
        rows[f"{name}, trace"] = held(found.trace, found.trace_error, trace)
        rows[f"{name}, entries"] = held(found.diagonal, found.diagonal_error, diagonal)
    return rows


def of_spectrum(product: Callable, values: np.ndarray, order: int, seed: int) -> Measured:
    """Returns the coverage of a spectrum's numbers, with at most `order` steps an iteration."""
    dim, largest = len(values), np.abs(values).max()
    quadrature, _ = deflated_quadrature(product, dim, order, VECTORS, seed=seed)
    mean, error = mean_eigenvalue(quadrature, dim)
    rows = {"spectrum, trace": held(mean * dim, error * dim, values.sum())}
    width = DENSITY_WIDTH * np.ptp(quadrature.whole().nodes)
    of_grid = density(quadrature, width)
    gaussians = np.exp(-0.5 * ((of_grid.grid[:, None] - values) / width) ** 2) / (width * np.sqrt(2 * np.pi))
    seen = gaussians.mean(1) > 0.1 / (dim * width)  # where eigenvalues are
    errors = np.nan_to_num(of_grid.standard_errors[seen])  # NaN where all eigenvalues are known
    rows["density"] = held(of_grid.values[seen], errors, gaussians.mean(1)[seen])
    ranges = {
        "share near 0": (share_within(quadrature, 0.05 * largest, dim), np.mean(np.abs(values) <= 0.05 * largest))
    }
    ranges["index"] = summary(quadrature, dim).index_range, np.mean(values < 0)
    for name, ((low, high), exact) in ranges.items():
        share = float(low - ROUNDING <= exact <= high + ROUNDING)
        rows[name] = share, (high - low) / 2
    return rows


def proportions() -> list[tuple[str, ...]]:
    """Returns the rows of the interval of a share that launch.relu_search prints, by exact binomial sums."""
    rows = []
    for trials in (100, 1000):
        for share in (0.01, 0.1, 0.5):
            counts = np.arange(trials + 1)
            low, high = np.transpose([binomtest(int(count), trials).proportion_ci() for count in counts])
            chance = binom.pmf(counts, trials, share)
            coverage, width = chance @ ((low <= share) & (share <= high)), chance @ (high - low) / 2 / share
            rows.append((f"{share:g}", f"{trials:,}", f"{100 * coverage:.1f}", f"{width:.2g}"))
    return rows


def main(benchmark: CoverageBenchmark) -> None:
    """Prints the tables, each row as soon as it is measured."""
    print(table(("share of bad minima", "descents", "held, %", "half-width"), proportions()) + "\n", flush=True)
    is_first = True
    for name, values, diagonal, product in matrices(benchmark):
        for count in benchmark.products:
            if count >= len(values):
                continue
            measured = []
            for seed in range(benchmark.repeats):
                rows = of_products(product, values, diagonal, count, seed) | of_spectrum(product, values, count, seed)
                measured.append([*rows.values()])
            if is_first:
                print(f"{benchmark.repeats} repetitions each\n")
                print("|".join(["", "spectrum", "dimension", "products", *rows, ""]))
                print("|---" * (3 + len(rows)) + "|")
            cells = (f"{100 * share:.1f} ({width:.2g})" for share, width in np.mean(measured, axis=0))
            print("|".join(["", name, f"{len(values):,}", str(count), *cells, ""]), flush=True)
            is_first = False


QUICK = CoverageBenchmark(repeats=10, dims=(200,), products=(20,), network=False)
cli = launcher.command(main, {"": CoverageBenchmark(), "quick": QUICK}, manual=__doc__)

if __name__ == "__main__":
    cli()
