"""Spectral density and extreme eigenvalues of the Hessian of a trained network, by Lanczos.

    python -m launch.hessian_spectrum --saved_run=runs/first --run_dir=runs/first_spectrum

takes the network that launch.train left in runs/first and the mean cross-entropy over its first
500 training images, not augmented: 2 minutes on 2 cores for the mnist preset. Prints the extreme
eigenvalues with error bounds (some eigenvalue lies within), and the condition number and the share
of negative eigenvalues with the range that they can lie in, two standard errors of sampling included;
the range alone where it is wide, because a larger --order or more --num_vectors are needed. With as
many steps as weights all eigenvalues are known, but for rounding. Leaves results.csv (every Ritz
value of every starting vector), density.csv and spectrum.png. The same command again continues after
the last finished starting vector.

--per_layer and --per_block add the spectra of the diagonal blocks of the Hessian that belong to
single layers and to residual blocks, in layers.csv and blocks.csv with a picture each. Every
layer takes as many Hessian products as the whole network does.

The weight penalty is left out of the loss: (λ/2)‖w‖² adds λ to each eigenvalue. Batch
normalisation is in inference mode. Memory is order × weights × 4 bytes and a batch's
activations: 80 steps on the 13.5 million weights of --preset=cifar10 peaked at 6.2 GB in all.
"""

import dataclasses
import functools
import math
import os
import shutil
import time
from typing import TYPE_CHECKING

import numpy as np

from identity_matters.errors import UserError
from identity_matters.fields import check_fields, require
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.files import replacing
from identity_matters.runs.job_table import Job, JobTable, Progress
from identity_matters.runs.tables import read_rows, reporting_damaged_table, write_metrics
from launch import launcher, terminal, trained_run

if TYPE_CHECKING:
    import keras
    from matplotlib.figure import Figure
    from tqdm import tqdm

LAYERS, BLOCKS = "layers.csv", "blocks.csv"
NUM_SPARE_VECTORS = 12  # beside the basis: weights, gradients, products
CHECKPOINT = "weights.npz"  # a copy of that of --at_step


@dataclasses.dataclass(frozen=True)
class SpectrumConfig:
    """Whose Hessian, on which examples, and how closely.

    Attributes:
      saved_run: Directory of a finished run of launch.train. Required, or pretrained.
      pretrained: Name of a network that comes with the package, e.g. digits.
      at_step: Of the run's weights after N updates: 0, the initial ones, or a checkpoint that is still there; the
        run need not be finished (-1: of the finished run).
      examples: The loss is over the first N training examples (or all, if there are fewer).
      order: Lanczos steps per starting vector, a Hessian product each; more resolve more eigenvalues.
      tolerance: End with fewer steps than order once the error bounds of the num_eigenvalues at either end are at most
        this share of the largest |eigenvalue| (0: never).
      gauss_newton: The Gauss-Newton matrix in place of the Hessian.
      batch_moments: Normalise each batch by its own moments, as in training; batch_size then belongs to the loss.
      per_layer: Also the spectrum of each layer's block of the matrix.
      per_block: Also that of each residual block's.
      num_vectors: Random starting vectors; more make density, condition number and index surer.
      num_eigenvalues: How many to print at either end.
      batch_size: Examples at a time; sets the memory, not the result.
      seed: Seed of the starting vectors.
      data_dir: Where TFDS keeps prepared data sets (empty: as in the run).
    """

    saved_run: str = ""
    pretrained: str = ""
    at_step: int = -1
    examples: int = 500
    order: int = 50
    tolerance: float = 0.0
    gauss_newton: bool = False
    batch_moments: bool = False
    per_layer: bool = False
    per_block: bool = False
    num_vectors: int = 2
    num_eigenvalues: int = 5
    batch_size: int = 100
    seed: int = 0
    data_dir: str = ""

    def __post_init__(self) -> None:
        positive = ("examples", "order", "num_vectors", "num_eigenvalues", "batch_size")
        check_fields(self, at_least_1=positive, at_least_0=("seed", "tolerance"))
        require(self.at_step >= -1, f"at_step must be at least -1, got {self.at_step}")


def main(config: SpectrumConfig, run_dir: str) -> None:
    """Computes, draws and prints the spectrum of a trained network."""
    run_config = trained_run.read_config(config.saved_run, config.pretrained, config.at_step, config.data_dir)
    with terminal.silenced_stderr():
        import tensorflow as tf

        from shortcut_study.curvature import model_spectrum  # noqa: F401, all that is slow to import
        from shortcut_study.curvature.checks import without_averages

    # GPUs would compute products in TensorFloat-32 by default, which is right to three digits only.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    images, labels, data = trained_run.first_examples(run_config, config.examples)
    run = RunDirectory(run_dir, config, "hessian_spectrum", data)  # before a checkpoint of another config is read there
    kept = run.file(CHECKPOINT)
    model, checkpoint = trained_run.load_model(run_config, config.saved_run, config.pretrained, config.at_step, kept)
    if not config.batch_moments and (names := without_averages(model)):
        raise UserError(f"{names[0]} has averaged no batches yet; add --batch_moments")
    check_order(config.order, model)
    digest = trained_run.weights_digest(model)
    with run:
        trained_run.require_same_weights(run, digest, config.saved_run)
        if run.status == "done":
            print(f"{run_dir} finished before; its results:")
        else:
            start = time.monotonic()
            _compute(config, run, model, images, labels, digest, checkpoint)
            minutes = round((time.monotonic() - start) / 60, 1)
            run.set_status("done", num_weights=num_weights(model), num_examples=len(images), minutes=minutes)
        name = f"{config.saved_run} after {config.at_step} steps" if config.at_step >= 0 else config.saved_run
        print(f"{name or config.pretrained}: {num_weights(model):,} trained weights, {len(images):,} training images")
        print(_results(config, run, num_weights(model)))
    print(f"files: {run_dir}")


def _compute(
    config: SpectrumConfig, run: RunDirectory, model: "keras.Model", images: np.ndarray, labels: np.ndarray,
    digest: str, checkpoint: str,
) -> None:  # fmt: skip
    """Writes all tables, a starting vector or a part at a time, then the figures."""
    from tqdm import tqdm

    from identity_matters.runs.figures import save_figures
    from shortcut_study import curvature

    matrix = {"gauss_newton": config.gauss_newton, "training": config.batch_moments}
    with launcher.user_errors():
        product = curvature.model_mvp(model, images, labels, config.batch_size, on_batch=lambda: bar.update(), **matrix)
    run.set_status("running", **{trained_run.DIGEST: digest})  # not before: what model_mvp refuses leaves no run
    if checkpoint:  # which a run that goes on removes sooner or later
        with replacing(run.file(CHECKPOINT)) as temporary:
            shutil.copyfile(checkpoint, temporary)
    with tqdm(desc="Hessian products, by batch", unit="batch", dynamic_ncols=True) as bar:
        batches = -(-len(images) // config.batch_size)
        _whole(config, run, product, bar, batches)
        _parts(config, run, model, product, bar, batches)
    save_figures(figures(run.path), run.path)


def _whole(config: SpectrumConfig, run: RunDirectory, product: tuple, bar: "tqdm", batches: int) -> None:
    """Writes results.csv and density.csv, of the whole network's Hessian."""
    from shortcut_study.curvature import lanczos, quadrature, report

    path, order = run.file("results.csv"), config.order
    table, memory = JobTable(path), np.empty((order, product[1]), np.float32)  # one basis serves all vectors
    stop = lanczos.converged(config.num_eigenvalues, config.tolerance) if config.tolerance else None

    def job(vector: int) -> Job:
        def compute(_: Progress) -> list[dict]:
            start = [config.seed, vector]
            found = lanczos.lanczos(*product, order, start, np.float32, out=memory, stop=stop)
            return report.ritz_rows(vector, lanczos.ritz(found))

        return Job({"vector": vector}, compute, f"vector {vector}", num_rows=0 if stop else order)

    for vector in range(config.num_vectors):
        bar.total = config.num_vectors * order * batches
        # The first vector takes as many steps as the tolerance asks for, and all others as many as the first.
        order, stop = len(table.run(job(vector))), None
        bar.total = config.num_vectors * order * batches
        bar.update((vector + 1) * order * batches - bar.n)  # by more than 0 for a vector that was done before
    # From the file's digits, so that an interrupted run and one without a break draw the same.
    with reporting_damaged_table(path):
        density = quadrature.density(report.quadrature_from_rows(read_rows(path)))
        write_metrics(run.file("density.csv"), report.density_rows(density))


def _parts(
    config: SpectrumConfig, run: RunDirectory, model: "keras.Model", product: tuple, bar: "tqdm", batches: int
) -> None:
    """Writes layers.csv and blocks.csv, if asked for: the Hessian of each part, the others' weights fixed."""
    from shortcut_study.curvature.model_spectrum import part_row, parts

    for name, is_asked in ((LAYERS, config.per_layer), (BLOCKS, config.per_block)):
        if not is_asked:
            continue
        table, chosen = JobTable(run.file(name)), parts(model, by_block=name == BLOCKS)
        num_batches = {part: min(config.order, len(chosen[part])) * config.num_vectors * batches for part in chosen}
        bar.total += sum(num_batches.values())

        def compute(part: str, entries: np.ndarray, _: Progress) -> list[dict]:
            return [part_row(product, entries, part, config.order, config.num_vectors, config.seed)]

        for part, entries in chosen.items():
            end = bar.n + num_batches[part]
            table.run(Job({"part": part}, functools.partial(compute, part, entries), part, num_rows=1))
            bar.update(end - bar.n)


def figures(run_dir: str, title: str = "") -> "dict[str, Figure]":
    """Returns the spectrum, with a title, and the pictures of layers and blocks, by name, of the tables there are."""
    from shortcut_study.curvature.report import parts_figure, spectrum_figure

    tables = ("results", "density", "layers", "blocks")
    results, density, *parts = (read_rows(os.path.join(run_dir, f"{name}.csv")) for name in tables)
    drawn = {"spectrum": spectrum_figure(results, density, title)} if density else {}
    return drawn | {name: parts_figure(rows) for name, rows in zip(tables[2:], parts) if rows}


def _results(config: SpectrumConfig, run: RunDirectory, dim: int) -> str:
    """Describes what the tables hold of the spectrum of `dim` weights."""
    from shortcut_study.curvature.report import parts_table, quadrature_from_rows, report

    with reporting_damaged_table(results := run.file("results.csv")):
        quadrature = quadrature_from_rows(read_rows(results))
        text = report(quadrature, config.num_eigenvalues, dim)
    vectors, order = quadrature.nodes.shape
    minutes = run.contents.get("minutes")
    lines = [f"{vectors} x {order} products with the {'Gauss-Newton matrix' if config.gauss_newton else 'Hessian'}"]
    lines[0] += f", {minutes} minutes" if minutes is not None else ""
    lines.append(text)
    for path in (run.file(LAYERS), run.file(BLOCKS)):
        with reporting_damaged_table(path):
            lines += ["\n" + parts_table(rows)] if (rows := read_rows(path)) else []
    return "\n".join(lines)


def num_weights(model: "keras.Model") -> int:
    """Returns the number of trained weights."""
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def check_order(order: int, model: "keras.Model") -> None:
    """Raises UserError where there are fewer steps to take, or no memory for their vectors."""
    dim, memory = num_weights(model), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if order > dim:
        raise UserError(f"order must be at most the number of trained weights, {dim}, got {order}")
    possible = memory // (4 * dim) - NUM_SPARE_VECTORS
    if order > possible:
        raise UserError(
            f"order {order} needs {4 * dim * order / 1e9:.1f} GB for vectors of {dim:,} weights and this "
            f"machine has {memory / 1e9:.1f} GB in all; choose at most {max(possible, 1)}"
        )


cli = launcher.command(main, {"": SpectrumConfig()}, manual=__doc__)

if __name__ == "__main__":
    cli()
