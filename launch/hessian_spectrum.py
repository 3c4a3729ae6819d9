r"""Estimate the spectral density and the extreme eigenvalues of a trained network's Hessian by Lanczos.

    python -m launch.hessian_spectrum --saved_run=runs/first --run_dir=runs/first_spectrum

takes the network that launch.train left in runs/first. The loss is the mean cross-entropy over its first
500 training images, not augmented. Prints

    largest, smallest   the eigenvalues at each end of the spectrum
    error bound         an eigenvalue lies this near to the number on its left
    trace               the sum of all eigenvalues, with its 95 % interval over random vectors
    eigenvalues …       the share of eigenvalues near 0 and, if they are resolved, the condition number
                        and the share of negative ones

Writes results.csv (every known eigenvalue and every Ritz value), density.csv and spectrum.png. A Hessian
product takes about one second of CPU time for this network; the ends take at most order of them, the rest
fewer (75 in all for the digits network). The bar shows the time so far, and the last lines the total. The
same command continues an interrupted run after the last finished product.

--per_layer and --per_block add the spectra of the diagonal blocks of the Hessian that belong to
single layers and to residual blocks, in layers.csv and blocks.csv, with one figure each. Every
layer takes as many Hessian products as the whole network does. --with_start adds the same for the
initial weights, in start_results.csv and so on.

    KERAS_BACKEND=jax python -m launch.hessian_spectrum --preset=gpu --pretrained=cifar10 \
        --npz=cifar10.npz --run_dir=…

is all of this for the paper's network on one GPU, without TensorFlow, from a file of
launch.export_npz.

The loss excludes the weight penalty: (λ/2)‖w‖² would add λ to each eigenvalue. Batch
normalisation is in inference mode. Memory is order × weights × 4 bytes, plus the eigenvectors that
are found and a batch's activations. Until the end the products are on the disk, weights × 4 bytes
each.
"""

import dataclasses
import math
import os
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from identity_matters.errors import UserError, as_user_error, translate_errors
from identity_matters.fields import option
from identity_matters.runs.files import replacing
from identity_matters.runs.job_table import Job, Progress
from identity_matters.runs.tables import read_rows
from launch import launcher, terminal, trained_run
from launch.experiment import Experiment, Figures, Report, run

if TYPE_CHECKING:
    import keras

    from identity_matters.runs.directory import RunDirectory
    from shortcut_study.curvature import Hessian

RESULTS, DENSITY, LAYERS, BLOCKS = "results.csv", "density.csv", "layers.csv", "blocks.csv"
START = "start_"  # begins the names of the tables of the initial weights
PRODUCTS = "products"
CHECKPOINT = "weights.npz"  # a copy of that of --at_step


@dataclasses.dataclass(frozen=True)
class SpectrumConfig(trained_run.SavedRunFlags):
    """Which network, on which examples, and how accurately.

    Attributes:
      examples: Take the loss over the first N training examples (all, if there are fewer).
      order: Largest number of Hessian products in each Lanczos iteration; more resolve more eigenvalues.
      tolerance: Stop the first iteration early, once the largest and the smallest eigenvalue are known to this share of
        the largest |eigenvalue| (0: never).
      gauss_newton: Use the Gauss-Newton matrix in place of the Hessian.
      batch_moments: Normalise each batch by its own moments, as in training; the loss then depends on batch_size.
      with_start: Also compute all that is asked for at the network's initial weights.
      per_layer: Also compute the spectrum of each layer's diagonal block of the matrix.
      per_block: Also compute the spectrum of each residual block's diagonal block of the matrix.
      num_vectors: Number of random vectors for the eigenvalues that are not found individually; more reduce the error
        of the trace.
      num_eigenvalues: Number of eigenvalues to print at each end of the spectrum.
      batch_size: Examples per batch; changes the memory needed, not the result.
      precision: On a GPU, highest multiplies in float32, default rounds factors to TensorFloat-32, which is faster and
        0.2 % off.
      seed: Seed of the random vectors.
    """

    examples: int = option(500, at_least=1)
    order: int = option(60, at_least=1)
    tolerance: float = option(1e-3, at_least=0)
    gauss_newton: bool = False
    batch_moments: bool = False
    with_start: bool = False
    per_layer: bool = False
    per_block: bool = False
    num_vectors: int = option(24, at_least=1)
    num_eigenvalues: int = option(5, at_least=1)
    batch_size: int = option(100, at_least=1)
    precision: Literal["highest", "default"] = "highest"
    seed: int = option(0, at_least=0)


class Spectra:
    """The Hessians of a run, each made when its first table asks for it, and the jobs that multiply by them.

    Args:
      config: SpectrumConfig.
      run_dir: str. Has the finished products, in a folder, until all tables are there.
    """

    def __init__(self, config: SpectrumConfig, run_dir: str) -> None:
        self._config = config
        self._run_dir = run_dir
        self.weights = {"": config.at_step} | ({START: 0} if config.with_start else {})  # steps, by the tables' prefix
        self._run_config = trained_run.read_config(config, run_dir)
        self._images, self._labels, self.data = trained_run.first_examples(self._run_config, config.examples)
        # By the tables' prefix: the network, and its checkpoint if this run is to keep a copy of it.
        self._networks: dict[str, tuple[keras.Model, str]] = {}
        self._hessian: Hessian | None = None
        self.details: dict[str, str] = {}

    def load(self, run: "RunDirectory") -> None:
        """Loads the networks, once the run is known to be of this config: a checkpoint may be kept there."""
        from shortcut_study.curvature.checks import without_averages

        config = self._config
        for prefix, step in self.weights.items():
            chosen = dataclasses.replace(config, at_step=step)
            kept = run.file(prefix + CHECKPOINT)
            self._networks[prefix] = trained_run.load_model(self._run_config, chosen, kept)
            names = [] if config.batch_moments else without_averages(self._networks[prefix][0])
            if names:
                raise UserError(f"{names[0]} has averaged no batches yet; add --batch_moments")
        digest = trained_run.weights_digest(self._networks[""][0])
        trained_run.require_same_weights(run, digest, config.saved_run)
        self.details["weights_digest"] = digest

    def jobs(self, prefix: str) -> dict[str, list[Job]]:
        """Returns the jobs of each table of some weights, by its name."""
        config = self._config
        suffix = " at the start" if prefix else ""
        results = os.path.join(self._run_dir, prefix + RESULTS)
        accuracy = {name: getattr(config, name) for name in ("order", "num_vectors", "tolerance", "seed")}
        accuracy["path"] = os.path.join(self._run_dir, prefix + PRODUCTS)

        def spectrum(h: "Hessian") -> list[dict]:
            from shortcut_study.figures.spectrum import quadrature_rows

            return quadrature_rows(h.spectrum(**accuracy).quadrature)

        def density(_: Progress) -> list[dict]:
            from shortcut_study.curvature import quadrature
            from shortcut_study.figures import spectrum

            return spectrum.density_rows(quadrature.density(spectrum.quadrature_from_rows(read_rows(results))))

        def of_parts(groups: str) -> Callable[["Hessian"], list[dict]]:
            return lambda h: h.per_layer(groups, **accuracy).rows

        jobs = {
            RESULTS: self._job(prefix, f"spectrum{suffix}", spectrum),
            DENSITY: Job({}, density, f"density{suffix}"),
        }
        if config.per_layer:
            jobs[LAYERS] = self._job(prefix, f"layers{suffix}", of_parts("layer"))
        if config.per_block:
            jobs[BLOCKS] = self._job(prefix, f"blocks{suffix}", of_parts("block"))
        return {prefix + name: [job] for name, job in jobs.items()}

    def _job(self, prefix: str, label: str, measure: Callable[["Hessian"], list[dict]]) -> Job:
        """Returns the job that measures the one Hessian, compiled once, at some of the weights."""

        def compute(progress: Progress) -> list[dict]:
            import keras

            from shortcut_study.curvature import Hessian

            config = self._config
            (model, checkpoint) = self._networks[prefix]

            def on_batch() -> None:
                progress(0)  # the run begins after the first batch, not before: a failed check leaves no directory
                kept = os.path.join(self._run_dir, prefix + CHECKPOINT)
                if checkpoint and not os.path.exists(kept):  # a run that continues removes it at some time
                    with replacing(kept) as temporary:
                        shutil.copyfile(checkpoint, temporary)

            with translate_errors(as_user_error):
                if self._hessian is None:
                    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
                    options = {"gauss_newton": config.gauss_newton, "training": config.batch_moments}
                    options |= {"batch_size": config.batch_size, "precision": config.precision}
                    self._hessian = Hessian(model, self._images, self._labels, loss, **options)
                self._hessian.move_to(model)
                self._hessian.on_batch = on_batch
                return measure(self._hessian)

        return Job({}, compute, label)

    def report(self, run: "RunDirectory", *tables: list[dict]) -> Report:
        """Describes the spectra, from the rows of all tables in their order; removes what an interruption needs."""
        config = self._config
        dim = num_weights(self._networks[""][0])
        rows = list(tables)
        size = len(tables) // len(self.weights)  # the same tables for each of the weights
        seconds = run.record.seconds
        time = "" if seconds is None else f", {seconds / 60:.1f} minutes"  # None: a call computed all and was killed
        name = f"{config.saved_run} after {config.at_step} steps" if config.at_step >= 0 else config.saved_run
        lines = [f"{name or config.pretrained}: {dim:,} trained weights, {len(self._images):,} training images"]
        matrix = "Gauss-Newton matrix" if config.gauss_newton else "Hessian"
        for prefix in self.weights:
            suffix = " at the initial weights" if prefix else time
            lines.append(f"spectrum of the {matrix}{suffix}")
            lines += _texts(rows[:size], config.num_eigenvalues, dim)
            del rows[:size]
            shutil.rmtree(run.file(prefix + PRODUCTS), ignore_errors=True)
        details = {"num_weights": dim, "num_examples": len(self._images)}
        return Report("\n".join(lines), details=details)


def main(config: SpectrumConfig, run_dir: str) -> int:
    """Computes, draws and prints the spectrum of a trained network."""
    with terminal.silenced_stderr():
        from shortcut_study import curvature  # noqa: F401, all that is slow to import
    spectra = Spectra(config, run_dir)
    tables = {name: jobs for prefix in spectra.weights for name, jobs in spectra.jobs(prefix).items()}
    experiment = Experiment(
        "hessian_spectrum",
        tables,
        figures,
        spectra.report,
        data_digest=spectra.data,
        details=spectra.details,
        check=spectra.load,
    )
    return run(experiment, config, run_dir)


def _texts(tables: list[list[dict]], count: int, dim: int) -> list[str]:
    """Returns the spectrum of `dim` weights and the tables of layers and blocks, in words."""
    from shortcut_study.curvature.report import parts_table, report
    from shortcut_study.figures.spectrum import quadrature_from_rows

    results, _, *parts = tables
    return [report(quadrature_from_rows(results), count, dim), *("\n" + parts_table(rows) for rows in parts)]


def figures(run_dir: str, title: str = "") -> Figures:
    """Returns the spectrum, with a title, and the figures of layers and blocks, by name, for the tables that exist."""
    from shortcut_study.figures.spectrum import parts_figure, spectrum_figure

    drawn = {}
    for prefix in ("", START):
        tables = (RESULTS, DENSITY, LAYERS, BLOCKS)
        results, density, *parts = (read_rows(os.path.join(run_dir, prefix + name)) for name in tables)
        if density:
            drawn[f"{prefix}spectrum"] = spectrum_figure(results, density, title)
        drawn |= {f"{prefix}{name}": parts_figure(rows) for name, rows in zip(("layers", "blocks"), parts) if rows}
    return drawn


def num_weights(model: "keras.Model") -> int:
    """Returns the number of trained weights."""
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


GPU = SpectrumConfig(
    examples=500, order=30, num_vectors=4, batch_size=500, with_start=True, per_block=True, precision="default"
)
cli = launcher.command(main, {"": SpectrumConfig(), "gpu": GPU}, manual=__doc__)

if __name__ == "__main__":
    cli()
