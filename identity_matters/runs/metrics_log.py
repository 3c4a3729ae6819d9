"""The log of a run: metrics.csv, with a row per evaluation, and the same in TensorBoard.

TensorBoard sorts groups of tags by name and unfolds the first two: batches, which has points between evaluations, and
error; then loss, norm, optimizer, pictures, speed, weights.
"""

import logging
import os
import re
import secrets
import time
from typing import Any

import keras
import numpy as np
import tensorboardX
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import hparams

from identity_matters.config import TrainConfig
from identity_matters.errors import add_filename, translate_errors
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.figure_style import styled
from identity_matters.runs.figures import convergence_figure, figure_to_array
from identity_matters.runs.record import evaluated_split, flat
from identity_matters.runs.tables import as_written, percent, read_metrics, write_metrics

logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)  # it warns of NaN, which is what divergence gives
# The tag, GROUP/NAME, of each column of metrics.csv: that of the first pattern that it matches.
_TAGS = {
    "loss": "loss/train",
    "train_flops|images_per_second": r"speed/\g<0>",
    "kernel_norm(.*)": r"norm/kernels\1",
    "(.*)_error": r"error/\1",
    ".*_cross_entropy": r"loss/\g<0>",
    ".*": r"optimizer/\g<0>",
}
HISTOGRAM_BINS = 64
# Below the first line of a run: at first the training error is above the test error.
MEANS = " " * 13 + "(loss and train error: means over the steps since the line before; the other error: after them)"


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
    """Returns a row of metrics.csv of a run of this config as text for the terminal."""
    rate = row["images_per_second"]  # NaN if nothing was timed: a run that resumes with an evaluation
    return (
        f"step {row['step']:>6}  loss {row['loss']:.4f}  train error {percent(row['train_top1_error'])}  "
        f"{evaluated_split(vars(config.data))} error {percent(row['test_top1_error'])}"
    ) + (f"  {rate:.0f} images/s" if np.isfinite(rate) else "")


class MetricsLog:
    """Appends rows, one per evaluation, to metrics.csv and writes them to TensorBoard; without a run, nowhere.

    Rows of steps after the first, which an interrupted run has left, are dropped.
    """

    def __init__(self, run: RunDirectory | None, first_step: int) -> None:
        self.rows = []
        self._writer = None
        if run is None:
            return
        self._path = run.file("metrics.csv")
        self._split = run.record.split
        rows = read_metrics(self._path) if os.path.exists(self._path) else []
        self.rows = [row for row in rows if row["step"] <= first_step]
        # What a killed process has written after this step is written again, and the row of this step if it is missing.
        self._writer = open_events(run.path, first_step + self.has_row(first_step))
        start, self._end = session(run.record.config)
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
        with styled():
            place = f"at step {row['step']:,}"
            figure = figure_to_array(convergence_figure(self.rows, split=self._split, place=place))
        # Not "figures": TensorBoard unfolds the first two groups of the alphabet, which are to be batches and error.
        self._writer.add_image("pictures/convergence", figure, row["step"], dataformats="HWC")
        self._writer.flush()
        write_metrics(self._path, self.rows)  # last: once the row is there, the evaluation is not repeated

    def add_batches(self, step: int, values: dict[str, float]) -> None:
        """Writes numbers of the batches up to a step to TensorBoard, group batches."""
        if self._writer is None:
            return
        for name, value in values.items():
            self._writer.add_scalar(f"batches/{name}", value, step)
        self._writer.flush()

    def add_input_images(self, images: np.ndarray) -> None:
        """Writes images, uint8 [n, h, w, c], as one picture to TensorBoard."""
        if self._writer is not None:
            self._writer.add_images("pictures/input_images", images, 0, dataformats="NHWC")

    def has_row(self, step: int) -> bool:
        """Returns whether the last row is that of a step."""
        return bool(self.rows) and self.rows[-1]["step"] == step

    def replace_last(self, row: dict[str, float]) -> bool:
        """Puts a row in place of the last one; returns whether it is another one."""
        written = as_written(row)
        if np.array_equal(list(written.values()), list(self.rows[-1].values()), equal_nan=True):
            return False
        self.rows[-1] = written
        if self._writer:
            write_metrics(self._path, self.rows)
        return True

    def close(self) -> None:
        """Closes the event file of a run that is done."""
        if self._writer:
            self._writer.file_writer.add_summary(self._end)
            self._writer.close()


def tag(column: str) -> str:
    """Returns the tag of a column of metrics.csv."""
    matches = ((re.fullmatch(pattern, column), tag) for pattern, tag in _TAGS.items())
    return next(match.expand(tag) for match, tag in matches if match)


def session(values: dict) -> tuple[Any, Any]:
    """Returns the summaries that open and that close a line of the HParams page.

    There is none that lists metrics: TensorBoard takes the first list that it finds for all runs, and without any
    every scalar of every line is a metric. Lists in a config become text, and empty values are left out.
    """
    plain = {
        name: ",".join(map(str, value)) if isinstance(value, list | tuple) else value
        for name, value in flat(values).items()
        if value != ""
    }
    _, start, end = hparams(plain, {})
    return start, end


def open_events(folder: str, purge_step: int = 0) -> tensorboardX.SummaryWriter:
    """Returns a writer of TensorBoard events that raises the OSError of a full disk.

    tensorboardX's own thread would end with it, and the queue before that thread would then fill, and wait for ever.
    TensorBoard drops what earlier files of the folder say of purge_step and later ones.
    """
    # The rest of the name is the second and the machine. TensorBoard reads files in the order of their names, and
    # nobody must guess them.
    writer = tensorboardX.SummaryWriter(folder, filename_suffix=f".{time.time_ns()}.{secrets.token_hex(8)}")
    events = writer.file_writer.event_writer
    events.add_event = translate_errors(add_filename(folder))(events._ev_writer.write_event)
    events.flush = translate_errors(add_filename(folder))(events._ev_writer.flush)
    events.add_event(Event(step=purge_step, session_log=SessionLog(status=SessionLog.START)))
    return writer
