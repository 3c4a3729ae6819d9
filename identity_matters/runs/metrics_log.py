"""What a run reports: metrics.csv, a row per evaluation, and the same to TensorBoard."""

import os

import keras
import numpy as np

from identity_matters.config import TrainConfig
from identity_matters.runs.config_json import evaluated_split
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.figures import convergence_figure, figure_to_array
from identity_matters.runs.tables import as_written, read_metrics, write_metrics
from identity_matters.runs.tensorboard import open_events, session, tag

HISTOGRAM_BINS = 64


def kernel_norms(network: keras.Model) -> dict[str, float]:
    """Returns the average Frobenius norm of all convolution kernels, of the stem's and of each stage's."""
    norms = {}
    for layer in network.layers:
        if isinstance(layer, keras.layers.Conv2D):
            norm = float(np.linalg.norm(keras.ops.convert_to_numpy(layer.kernel)))
            norms.setdefault(f"kernel_norm_{layer.name.split('_')[0]}", []).append(norm)
    everything = [norm for stage in norms.values() for norm in stage]
    return {"kernel_norm": float(np.mean(everything))} | {name: float(np.mean(n)) for name, n in norms.items()}


def describe(row: dict[str, float], config: TrainConfig) -> str:
    """Returns a row of metrics.csv of a run of this config as one line for the terminal."""
    rate = row["images_per_second"]  # NaN where nothing was timed: a run that goes on with an evaluation
    return (
        f"step {row['step']:>6}  loss {row['loss']:.4f}  train error {row['train_top1_error']:.2%}  "
        f"{evaluated_split(vars(config))} error {row['test_top1_error']:.2%}"
    ) + (f"  {rate:.0f} images/s" if np.isfinite(rate) else "")


class Recorder:
    """Appends rows to metrics.csv and writes them to TensorBoard.

    Args:
      run: RunDirectory. None: nothing is written.
      first_step: int. Rows of later steps, which an interrupted run has left, are dropped.

    Attributes:
      rows: list of dict. One per evaluation of the run so far.
    """

    def __init__(self, run: RunDirectory | None, first_step: int) -> None:
        self.rows, self._writer = [], None
        if run is None:
            return
        self._path, self._split = run.file("metrics.csv"), evaluated_split(run.record["config"])
        rows = read_metrics(self._path) if os.path.exists(self._path) else []
        self.rows = [row for row in rows if row["step"] <= first_step]
        # What a killed process has written after its last row is written again.
        self._writer = open_events(run.path, self.rows[-1]["step"] + 1 if self.rows else 0)
        start, self._end = session(run.record["config"])
        self._writer.file_writer.add_summary(start)

    def add(self, row: dict[str, float], network: keras.Model) -> None:
        """Adds the row of one evaluation. Every row of a run has the same keys; `step` is one of them.

        TensorBoard also gets histograms of the network's kernels, and the convergence figure so far.
        """
        # As a reader of the table has it, so that a resumed run goes on with the same figures.
        self.rows.append(as_written(row))
        if self._writer is None:
            return
        for name, value in row.items():
            if name != "step":
                self._writer.add_scalar(tag(name), value, row["step"])
        for layer in network.layers:
            if isinstance(layer, keras.layers.Conv2D):
                kernel = keras.ops.convert_to_numpy(layer.kernel)
                self._writer.add_histogram(f"weights/{layer.name}", kernel, row["step"], bins=HISTOGRAM_BINS)
        figure = figure_to_array(convergence_figure(self.rows, split=self._split, place=f"at step {row['step']:,}"))
        self._writer.add_image("pictures/convergence", figure, row["step"], dataformats="HWC")
        self._writer.flush()
        write_metrics(self._path, self.rows)  # last: where the row is, the evaluation is not made again

    def close(self) -> None:
        """Closes the event file of a run that is done."""
        if self._writer:
            self._writer.file_writer.add_summary(self._end)
            self._writer.close()


def was_done(directory: RunDirectory, step: int) -> bool:
    """Returns whether the run ended at this step, by a callback perhaps: its results alone are to be written again."""
    metrics = directory.file("metrics.csv")
    return directory.status == "done" and os.path.exists(metrics) and read_metrics(metrics)[-1]["step"] == step
