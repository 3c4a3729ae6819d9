"""Time the memorising network against its matrix products alone, and measure its accuracy by width.

    python -m benchmarks.memorization                                       the embedded MNIST sample, 10 seconds
    python -m benchmarks.memorization --data_dir=DIR                        CIFAR-10's 50,000 training images

Every image gets a random label. "Build" is memorize (peeling), "verify" the scores of all images, compared with
their labels. "Bare products" are the matrix products of both in NumPy and nothing else: A_0 x twice, the
inner products of each block's points with all later ones, U h of each block for every image; in
panels, on the same threads. V a is left out: a block moves as many points as it is wide, so that all
blocks together need it of each image once. Peak memory is a fresh process's (VmHWM), x included.
The table is of float64 networks on the first --table_points images; float32 is the same network in float32.

docs/papers/theorems.md has what was measured. All 50,000 images in float64 at width 2 would take 25,000 blocks.
"""

import dataclasses
import functools
import multiprocessing
import os
import tempfile
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.harness import Benchmark, interleaved, report, seconds, table
from identity_matters.config import DataConfig
from identity_matters.fields import option, require
from launch import launcher
from theory.memorization import memorize
from theory.parallel import in_parallel

if TYPE_CHECKING:
    from theory.memorization.network import MemorizingNetwork

BUILD, VERIFY, BARE, BOTH = "build", "verify", "bare products", "build + verify"
PAIRS = {f"{name} / {BARE}": (name, BARE) for name in (BUILD, VERIFY, BOTH)}
NUM_CLASSES = 10
PANEL = 1024


@dataclasses.dataclass(frozen=True)
class MemorizationBenchmark(Benchmark):
    """What is memorised, and how often.

    Attributes:
      data_dir: Where TFDS keeps the data set (empty: the embedded MNIST sample instead).
      dataset: The TFDS set whose training images are memorised, with --data_dir.
      width: Width of the timed network.
      repeats: Rounds of (build, verify, bare products); medians and ranges are over the rounds.
      widths: Widths of the table's networks.
      table_points: Images that the table's networks memorise (0: no table).
      seed: Seed of the labels and of the networks.
    """

    data_dir: str = ""
    dataset: str = "cifar10"
    width: int = 64
    repeats: int = option(3, at_least=1)
    widths: tuple[int, ...] = (2, 4, 8, 16, 32, 64, 128)
    table_points: int = option(10_000, at_least=0)
    seed: int = option(0, at_least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        least = min((self.width, *self.widths))
        require(least >= 2, f"width and widths must be at least 2, got {least}")


def main(benchmark: MemorizationBenchmark) -> None:
    """Times the network, measures its memory, and prints a table by width."""
    images = load_images(benchmark)
    labels = np.random.default_rng(benchmark.seed).integers(0, NUM_CLASSES, len(images))
    x = images.astype(np.float32)
    print_times(x, labels, benchmark)
    peak = peak_memory(x, labels, benchmark)
    print(f"peak memory of a fresh process: {peak / x.nbytes:.2f} × the data, {x.nbytes / 1e6:,.0f} MB")
    del x
    if benchmark.table_points:
        count = min(benchmark.table_points, len(images))
        print(f"\nfloat64 networks on the first {count:,} images\n")
        print_table(images[:count].astype(np.float64), labels[:count], benchmark)


def load_images(benchmark: MemorizationBenchmark) -> np.ndarray:
    """Returns the training images as uint8 [n, d]."""
    from identity_matters.data.source import MNIST_SAMPLE, open_source, read_all

    name = benchmark.dataset if benchmark.data_dir else MNIST_SAMPLE
    images, _ = read_all(open_source(DataConfig(name, benchmark.data_dir)), ["train"])
    return images.reshape(len(images), -1)


def print_times(x: np.ndarray, labels: np.ndarray, benchmark: MemorizationBenchmark) -> None:
    """Prints the first table: seconds, and their ratio to the bare products of the same round."""
    made = {}

    def build() -> None:
        made["network"] = memorize(x, labels, NUM_CLASSES, benchmark.width, seed=benchmark.seed)

    def verify() -> None:
        made["scores"] = made["network"](x)
        made["wrong"] = np.count_nonzero(made["scores"].argmax(axis=1) != labels)
        made["scores"][np.arange(len(x)), labels] -= 1
        made["error"] = np.abs(made["scores"]).max()

    steps = {BUILD: build, VERIFY: verify, BARE: lambda: bare_products(x, made["network"])}
    cases = {name: functools.partial(seconds, step) for name, step in steps.items()}
    rounds = interleaved(cases, benchmark.repeats)
    rounds[BOTH] = [a + b for a, b in zip(rounds[BUILD], rounds[VERIFY])]
    title = f"seconds; {len(x):,} images of {x.shape[1]:,} numbers, random labels, width {benchmark.width}"
    report(title, {"measured": rounds}, PAIRS, benchmark.repeats)
    network = made["network"]
    print(f"\nwrong outputs: {made['wrong']} of {len(x):,}; smallest gap {network.smallest_gap:.1e}")
    print(f"largest error of a score: {made['error']:.1e}; float32_error: {network.float32_error:.1e}")


def bare_products(x: np.ndarray, network: "MemorizingNetwork") -> None:
    """Computes the matrix products of building and verifying, on zeros where the numbers do not matter."""
    width, num_points, dtype = network.width, len(x), network.U.dtype
    projection = network.projection
    z = np.ones((num_points, width), dtype)

    def project(start: int) -> None:
        x[start : start + PANEL] @ projection.T

    def gram(j: int) -> None:
        for start in range((j + 1) * width, num_points, 2 * PANEL):
            network.U[j] @ z[start : start + 2 * PANEL].T

    def forward(start: int) -> None:
        h = z[start : start + PANEL]
        products = np.empty((width, len(h)), dtype)
        for U in network.U:
            np.matmul(U, h.T, out=products)
        h @ network.head_U.T @ network.head_V.T

    in_parallel(project, range(0, num_points, PANEL))
    in_parallel(gram, range(network.num_layers))
    in_parallel(project, range(0, num_points, PANEL))
    in_parallel(forward, range(0, num_points, PANEL))


def peak_memory(x: np.ndarray, labels: np.ndarray, benchmark: MemorizationBenchmark) -> int:
    """Returns the most bytes that a process held while it read x, built the network and verified it."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "sample.npy")
        np.save(path, x)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(_memorize_file, (path, labels, benchmark))


def _memorize_file(path: str, labels: np.ndarray, benchmark: MemorizationBenchmark) -> int:
    x = np.load(path)
    memorize(x, labels, NUM_CLASSES, benchmark.width, seed=benchmark.seed)(x)
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM"))


def print_table(x: np.ndarray, labels: np.ndarray, benchmark: MemorizationBenchmark) -> None:
    """Prints the second table: a network per width."""
    header = ("width", "parameters / image", "layers", "smallest gap")
    rows = []
    for width in benchmark.widths:
        network = memorize(x, labels, NUM_CLASSES, width, seed=benchmark.seed)
        per_image = f"{network.num_parameters / len(x):.1f}"
        row = [f"{width}", per_image, f"{network.num_layers:,}", f"{network.smallest_gap:.1e}"]
        for dtype in (np.float64, np.float32):
            scores = network.forward(x, dtype)
            accuracy = np.mean(scores.argmax(axis=1) == labels)
            scores[np.arange(len(x)), labels] -= 1
            row += [f"{np.abs(scores).max():.0e}", f"{accuracy:.4%}"]
        expected = f"{network.float32_error:.0e}" if network.fits_float32 else "½ or more"
        rows.append((*row, expected))
    print(table((*header, "float64 error", "right", "float32 error", "right", "float32_error"), rows))


cli = launcher.command(main, {"": MemorizationBenchmark()}, manual=__doc__)

if __name__ == "__main__":
    cli()
