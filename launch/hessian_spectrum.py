"""Spectral density and extreme eigenvalues of the Hessian of a trained network, by Lanczos.

    python -m launch.hessian_spectrum --saved_run=runs/first --run_dir=runs/first_spectrum

takes the network that launch.train left in runs/first and the mean cross-entropy over its first
500 training images, not augmented: 1.5 minutes on 2 cores for the mnist preset. Prints the
extreme eigenvalues with error bounds, and the condition number and the share of negative
eigenvalues with the range that they can lie in: a wide one asks for a larger --order. Leaves
results.csv (every Ritz value of every starting vector), density.csv and spectrum.png. The same
command again continues after the last finished starting vector.

The weight penalty is left out of the loss: (λ/2)‖w‖² adds λ to each eigenvalue. Batch
normalisation is in inference mode. Memory is order × weights × 4 bytes and a batch's
activations: 80 steps on the 13.5 million weights of --preset=cifar10 peaked at 6.2 GB in all.
"""

import dataclasses
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from identity_matters.config import ModelConfig, TrainConfig
from identity_matters.fields import check_fields
from identity_matters.runs.errors import UserError
from launch import launcher

if TYPE_CHECKING:
    import keras
    import numpy as np
    from matplotlib.figure import Figure

    from identity_matters.runs.directory import RunDirectory

NUM_SPARE_VECTORS = 12  # beside the basis: weights, gradients, products


@dataclasses.dataclass(frozen=True)
class SpectrumConfig:
    """Whose Hessian, on which examples, and how closely.

    Attributes:
      saved_run: Directory of a finished run of launch.train. Required.
      examples: The loss is over the first so many training examples (or all, if there are fewer).
      order: Lanczos steps per starting vector, a Hessian product each; more resolve more eigenvalues.
      num_vectors: Random starting vectors; more make density, condition number and index surer.
      num_eigenvalues: How many to print at either end.
      batch_size: Examples at a time; sets the memory, not the result.
      seed: Seed of the starting vectors.
      data_dir: Where TFDS keeps prepared data sets (empty: as in the run).
    """

    saved_run: str = ""
    examples: int = 500
    order: int = 50
    num_vectors: int = 2
    num_eigenvalues: int = 5
    batch_size: int = 100
    seed: int = 0
    data_dir: str = ""

    def __post_init__(self) -> None:
        positive = ("examples", "order", "num_vectors", "num_eigenvalues", "batch_size")
        check_fields(self, at_least_1=positive, at_least_0=("seed",))


def main(config: SpectrumConfig, run_dir: str) -> None:
    """Computes, draws and prints the spectrum of the network in config.saved_run."""
    run_config = _saved_config(config.saved_run)
    with launcher.quiet_import():
        import tensorflow as tf

        from identity_matters.runs.directory import RunDirectory
        from identity_matters.runs.tables import read_rows
        from shortcut_study import model_hessian  # noqa: F401, all that is slow to import

    tf.config.experimental.enable_tensor_float_32_execution(False)  # of GPUs: right to three digits only
    images, labels = _training_examples(config, run_config)
    model = _load_model(config.saved_run)
    _check_order(config.order, model)
    with RunDirectory(run_dir, config, "hessian_spectrum") as run:
        if run.status == "done":
            print(f"{run_dir} finished before; its results:")
        else:
            run.set_status("running")
            _compute(config, run, model, images, labels)
            run.set_status("done", num_weights=_num_weights(model), num_examples=len(images))
    print(f"{config.saved_run}: {_num_weights(model):,} trained weights, {len(images):,} training images")
    print(_report(config, read_rows(os.path.join(run_dir, "results.csv"))))
    print(f"files: {run_dir}")


def _saved_config(saved_run: str) -> TrainConfig:
    """Reads the config of a finished training run."""
    from identity_matters.runs.directory import read_record

    if not saved_run:
        raise UserError("--saved_run is missing: the directory of a finished run of launch.train, e.g. runs/first")
    record = read_record(saved_run)
    if record is None or "model" not in record["config"]:
        raise UserError(f"saved_run {saved_run} is not the directory of a run of launch.train")
    if record["status"] != "done":
        raise UserError(f"saved_run {saved_run} is not finished: its status is {record['status']}")
    if not os.path.exists(os.path.join(saved_run, "model.keras")):
        raise UserError(f"saved_run {saved_run} has no model.keras")
    try:
        fields = _tuples(record["config"])
        return TrainConfig(**fields | {"model": ModelConfig(**_tuples(fields["model"]))})
    except TypeError as error:
        raise UserError(f"saved_run {saved_run} was written by another version: {error}") from error


def _tuples(fields: dict) -> dict:
    """Turns lists, all that JSON knows, into tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def _training_examples(config: SpectrumConfig, run_config: TrainConfig) -> "tuple[np.ndarray, np.ndarray]":
    """Standardised images float32 [m, h, w, c] and labels [m] of the first examples that the run was trained on."""
    import numpy as np

    from identity_matters.model import standardize

    count = min(config.examples, run_config.train_examples or config.examples)
    batches = _raw_batches(dataclasses.replace(run_config, data_dir=config.data_dir or run_config.data_dir), count)
    images, labels = zip(*((np.asarray(standardize(images)), labels) for images, labels in batches))
    return np.concatenate(images), np.concatenate(labels).astype(np.int32)


def _raw_batches(run_config: TrainConfig, count: int, size: int = 500) -> Iterator:
    """Yields uint8 images and labels, without augmentation: of streamed sets the central crop."""
    from identity_matters.data import loading
    from identity_matters.data.arrays import MNIST_SAMPLE

    if run_config.npz or run_config.dataset == MNIST_SAMPLE:
        arrays = loading.load(run_config)
        for start in range(0, min(count, arrays.num_train), size):
            batch = slice(start, min(start + size, count))
            yield arrays.train_images[batch], arrays.train_labels[batch]
        return
    from identity_matters.data.preparation import prepared_builder
    from identity_matters.data.tfds import TfdsSource

    builder = prepared_builder(run_config.dataset, run_config.data_dir)
    source = TfdsSource(builder, "train", image_size=run_config.image_size, eval_examples=count)
    yield from source.raw_test_batches(size)


def _load_model(saved_run: str) -> "keras.Model":
    """The trained network, computing in float32."""
    import keras
    import numpy as np

    from shortcut_study.differentiable import with_dtype

    path = os.path.join(saved_run, "model.keras")
    try:
        model = keras.models.load_model(path, compile=False)
    except Exception as error:  # Keras raises anything at all on a damaged file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"cannot load {path}: {reason}") from error
    if not all(np.isfinite(weights).all() for weights in model.get_weights()):
        raise UserError(f"{path} holds an infinite or NaN weight")
    return with_dtype(model, "float32")


def _num_weights(model: "keras.Model") -> int:
    return sum(int(variable.value.shape.num_elements()) for variable in model.trainable_variables)


def _check_order(order: int, model: "keras.Model") -> None:
    """Whether there are so many steps to take, and memory for their vectors."""
    dim, memory = _num_weights(model), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if order > dim:
        raise UserError(f"order must be at most the number of trained weights, {dim}, got {order}")
    possible = memory // (4 * dim) - NUM_SPARE_VECTORS
    if order > possible:
        raise UserError(
            f"order {order} needs {4 * dim * order / 1e9:.1f} GB for vectors of {dim:,} weights and this "
            f"machine has {memory / 1e9:.1f} GB in all; choose at most {max(possible, 1)}"
        )


def _compute(
    config: SpectrumConfig, run: "RunDirectory", model: "keras.Model", images: "np.ndarray", labels: "np.ndarray"
) -> None:
    """results.csv, a starting vector at a time, then the density and the figure."""
    import numpy as np
    from tqdm import tqdm

    from identity_matters.runs.figures import save_figures
    from identity_matters.runs.tables import read_rows, write_metrics
    from shortcut_study import model_hessian, quadrature, spectrum_figures

    path = run.file("results.csv")
    rows = read_rows(path)
    done, batches = len(rows) // config.order, -(-len(images) // config.batch_size)
    total = config.num_vectors * config.order * batches
    with tqdm(total=total, initial=done * config.order * batches, unit="batch", dynamic_ncols=True) as bar:
        with launcher.user_errors():
            mvp_fn, dim = model_hessian.model_mvp(model, images, labels, config.batch_size, on_batch=bar.update)
        vectors = range(done, config.num_vectors)
        for vector, ritz in quadrature.ritz_by_vector(mvp_fn, dim, config.order, vectors, config.seed, np.float32):
            rows += spectrum_figures.ritz_rows(vector, ritz)
            write_metrics(path, rows)
    # From the file's digits, so that an interrupted run and one without a break draw the same.
    density = quadrature.density(spectrum_figures.quadrature_from_rows(read_rows(path)))
    write_metrics(run.file("density.csv"), spectrum_figures.density_rows(density))
    save_figures(figures(run.path), run.path)


def figures(run_dir: str) -> "dict[str, Figure]":
    """Returns the spectrum, drawn from results.csv and density.csv, by name; nothing where there is no density.csv."""
    from identity_matters.runs.tables import read_rows
    from shortcut_study.spectrum_figures import spectrum_figure

    rows, density = (read_rows(os.path.join(run_dir, f"{name}.csv")) for name in ("results", "density"))
    return {"spectrum": spectrum_figure(rows, density)} if density else {}


def _report(config: SpectrumConfig, rows: list[dict]) -> str:
    """Describes the spectrum in words and numbers."""
    from shortcut_study import quadrature as lanczos_quadrature
    from shortcut_study.spectrum_figures import quadrature_from_rows

    quadrature, count = quadrature_from_rows(rows), config.num_eigenvalues
    ends = [zip(*lanczos_quadrature.extreme_eigenvalues(quadrature, count, largest)) for largest in (True, False)]
    lines = ["", f"{'largest':>12}  error bound  {'smallest':>12}  error bound"]
    lines += [f"{a:12.5g}  {b:11.2g}  {c:12.5g}  {d:11.2g}" for (a, b), (c, d) in zip(*ends)]
    summary = lanczos_quadrature.summary(quadrature)
    mean, error = lanczos_quadrature.trace_mean(quadrature, lambda values: values)
    p10, share = "{:.2g} – {:.2g}".format(*summary.p10_range), "{:.2%} – {:.2%}".format(*summary.index_range)
    lines += [
        "",
        f"condition number: {summary.condition_number:.4g}, "
        f"largest |eigenvalue| {summary.max_abs:.4g} over 10th percentile {summary.p10_abs:.2g} (in {p10})",
        f"index: {summary.index:.2%} of the eigenvalues are negative (in {share})",
        f"mean eigenvalue: {mean:.4g}" + (f" ± {error:.1g}" if config.num_vectors > 1 else ""),
    ]
    return "\n".join(lines)


def cli() -> None:
    """Runs the launcher on the command line's flags."""
    launcher.run(main, {"": SpectrumConfig()}, manual=__doc__)


if __name__ == "__main__":
    cli()
