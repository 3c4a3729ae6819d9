"""Estimate the spectral density and the extreme eigenvalues of a trained network's Hessian by Lanczos.

    python -m launch.hessian_spectrum --saved_run=runs/first --run_dir=runs/first_spectrum

takes the network that launch.train left in runs/first. The loss is the mean cross-entropy over its first
500 training images, not augmented. Prints the extreme eigenvalues with error bounds (an eigenvalue lies
within each), the trace with its 95 % range, the share of eigenvalues near 0 and, where they are
resolved, the condition number and the share of negative eigenvalues. Writes results.csv (every known
eigenvalue and every Ritz value), density.csv and spectrum.png. A Hessian product
takes about one second of CPU time for this network. The same command continues an interrupted run after
the last finished product.

--per_layer and --per_block add the spectra of the diagonal blocks of the Hessian that belong to
single layers and to residual blocks, in layers.csv and blocks.csv, with one figure each. Every
layer takes as many Hessian products as the whole network does.

The loss excludes the weight penalty: (λ/2)‖w‖² would add λ to each eigenvalue. Batch
normalisation is in inference mode. Memory is order × weights × 4 bytes, plus the eigenvectors that
are found and a batch's activations. Until the end the products are on the disk, weights × 4 bytes
each.
"""

import dataclasses
import math
import os
import shutil
import time
from typing import TYPE_CHECKING

import numpy as np

from identity_matters.errors import UserError, damaged_table, explaining, refused_value
from identity_matters.fields import check_fields, option, require
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.files import replacing
from identity_matters.runs.tables import read_rows, write_metrics
from launch import launcher, terminal, trained_run

if TYPE_CHECKING:
    import keras
    from matplotlib.figure import Figure

LAYERS, BLOCKS = "layers.csv", "blocks.csv"
PRODUCTS = "products", "products_of_layers", "products_of_blocks"
CHECKPOINT = "weights.npz"  # a copy of that of --at_step


@dataclasses.dataclass(frozen=True)
class SpectrumConfig:
    """Which network, on which examples, and how accurately.

    Attributes:
      saved_run: Directory of a finished run of launch.train. Required, unless pretrained is given.
      pretrained: Name of a network that comes with the package, e.g. digits.
      at_step: Take the run's weights after N updates: 0, the initial ones, or the step of a checkpoint that still
        exists; the run need not be finished (-1: the weights of the finished run).
      examples: Take the loss over the first N training examples (all, if there are fewer).
      order: Largest number of Hessian products in each Lanczos iteration; more resolve more eigenvalues.
      tolerance: Stop the first iteration early, once the largest and the smallest eigenvalue are known to this share of
        the largest |eigenvalue| (0: never).
      gauss_newton: Use the Gauss-Newton matrix in place of the Hessian.
      batch_moments: Normalise each batch by its own moments, as in training; the loss then depends on batch_size.
      per_layer: Also compute the spectrum of each layer's diagonal block of the matrix.
      per_block: Also compute the spectrum of each residual block's diagonal block of the matrix.
      num_vectors: Number of random vectors for the eigenvalues that are not found one by one; more reduce the error of
        the trace.
      num_eigenvalues: Number of eigenvalues to print at each end of the spectrum.
      batch_size: Examples per batch; changes the memory needed, not the result.
      seed: Seed of the random vectors.
      data_dir: Where TFDS keeps prepared data sets (empty: as in the run).
    """

    saved_run: str = option("", path=True)
    pretrained: str = ""
    at_step: int = -1
    examples: int = option(500, at_least=1)
    order: int = option(60, at_least=1)
    tolerance: float = option(1e-3, at_least=0)
    gauss_newton: bool = False
    batch_moments: bool = False
    per_layer: bool = False
    per_block: bool = False
    num_vectors: int = option(24, at_least=1)
    num_eigenvalues: int = option(5, at_least=1)
    batch_size: int = option(100, at_least=1)
    seed: int = option(0, at_least=0)
    data_dir: str = option("", path=True)

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.at_step >= -1, f"at_step must be at least -1, got {self.at_step}")


def main(config: SpectrumConfig, run_dir: str) -> None:
    """Computes, draws and prints the spectrum of a trained network."""
    run_config = trained_run.read_config(config.saved_run, config.pretrained, config.at_step, config.data_dir)
    with terminal.silenced_stderr():
        from shortcut_study.curvature import operator  # noqa: F401, all that is slow to import
        from shortcut_study.curvature.checks import without_averages

    images, labels, data = trained_run.first_examples(run_config, config.examples)
    run = RunDirectory(run_dir, config, "hessian_spectrum", data)  # before a checkpoint of another config is read there
    kept = run.file(CHECKPOINT)
    model, checkpoint = trained_run.load_model(run_config, config.saved_run, config.pretrained, config.at_step, kept)
    if not config.batch_moments and (names := without_averages(model)):
        raise UserError(f"{names[0]} has averaged no batches yet; add --batch_moments")
    digest = trained_run.weights_digest(model)
    with run:
        trained_run.require_same_weights(run, digest, config.saved_run)
        if run.status == "done":
            print(f"{run_dir} is already finished; its results:")
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
    """Writes all tables, then the figures. Products are kept one by one until these are there."""
    import keras

    from identity_matters.runs.figures import save_figures
    from shortcut_study import curvature
    from shortcut_study.curvature import quadrature, report

    def begin() -> None:
        """After the first batch, not before: what is refused leaves no run."""
        if not run.contents.get(trained_run.DIGEST):
            run.set_status("running", **{trained_run.DIGEST: digest})
        kept = run.file(CHECKPOINT)
        if checkpoint and not os.path.exists(kept):  # which a run that goes on removes sooner or later
            with replacing(kept) as temporary:
                shutil.copyfile(checkpoint, temporary)

    options = {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "on_batch": begin}
    options |= {"batch_size": config.batch_size, "gauss_newton": config.gauss_newton, "training": config.batch_moments}
    kept = [run.file(name) for name in PRODUCTS]
    accuracy = {name: getattr(config, name) for name in ("order", "num_vectors", "tolerance", "seed")}
    with explaining(refused_value):
        h = curvature.Hessian(model, images, labels, **options)
        found = h.spectrum(path=kept[0], **accuracy)
        write_metrics(run.file("results.csv"), report.quadrature_rows(found.quadrature))
        write_metrics(run.file("density.csv"), report.density_rows(quadrature.density(found.quadrature)))
        asked = (LAYERS, "layer", config.per_layer), (BLOCKS, "block", config.per_block)
        for path, (name, groups, is_asked) in zip(kept[1:], asked):
            if is_asked:
                write_metrics(run.file(name), h.per_layer(groups, path=path, **accuracy).rows)
    save_figures(lambda: figures(run.path), run.path)
    for path in kept:
        shutil.rmtree(path, ignore_errors=True)


def figures(run_dir: str, title: str = "") -> "dict[str, Figure]":
    """Returns the spectrum, with a title, and the figures of layers and blocks, by name, for the tables that exist."""
    from shortcut_study.curvature.report import parts_figure, spectrum_figure

    tables = ("results", "density", "layers", "blocks")
    results, density, *parts = (read_rows(os.path.join(run_dir, f"{name}.csv")) for name in tables)
    drawn = {"spectrum": spectrum_figure(results, density, title)} if density else {}
    return drawn | {name: parts_figure(rows) for name, rows in zip(tables[2:], parts) if rows}


def _results(config: SpectrumConfig, run: RunDirectory, dim: int) -> str:
    """Describes the spectrum of `dim` weights from the tables."""
    from shortcut_study.curvature.report import parts_table, quadrature_from_rows, report

    with explaining(damaged_table(results := run.file("results.csv"))):
        quadrature = quadrature_from_rows(read_rows(results))
        text = report(quadrature, config.num_eigenvalues, dim)
    minutes, matrix = run.contents.get("minutes"), "Gauss-Newton matrix" if config.gauss_newton else "Hessian"
    lines = [f"spectrum of the {matrix}" + (f", {minutes} minutes" if minutes is not None else "")]
    lines.append(text)
    for path in (run.file(LAYERS), run.file(BLOCKS)):
        with explaining(damaged_table(path)):
            lines += ["\n" + parts_table(rows)] if (rows := read_rows(path)) else []
    return "\n".join(lines)


def num_weights(model: "keras.Model") -> int:
    """Returns the number of trained weights."""
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


cli = launcher.command(main, {"": SpectrumConfig()}, manual=__doc__)

if __name__ == "__main__":
    cli()
