"""How TensorBoard shows a run: tags in an order that puts errors and losses first, and a line of the HParams page.

TensorBoard sorts groups of tags by name and unfolds the first two: error, loss, norm, optimizer, pictures, speed,
weights.
"""

import logging
import os
import time
from typing import Any

import tensorboardX
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import hparams

from identity_matters.errors import naming_file
from identity_matters.runs.config_json import flat

logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)  # it warns of NaN, which is what divergence gives
_GROUPS = {
    "loss": "loss/train",
    "train_flops": "speed/train_flops",
    "images_per_second": "speed/images_per_second",
    "kernel_norm": "norm/kernels",
}


def tag(column: str) -> str:
    """Returns the tag, GROUP/NAME, of a column of metrics.csv."""
    if column in _GROUPS:
        return _GROUPS[column]
    if column.endswith("_error"):
        return f"error/{column.removesuffix('_error')}"
    if column.endswith("_cross_entropy"):
        return f"loss/{column}"
    if column.startswith("kernel_norm_"):
        return f"norm/kernels_{column.removeprefix('kernel_norm_')}"
    return f"optimizer/{column}"


def session(values: dict) -> tuple[Any, Any]:
    """Returns the summaries that open and that close a line of the HParams page.

    There is none that lists metrics: TensorBoard takes the first list that it finds for all runs, and without any
    every scalar of every line is a metric.

    Args:
      values: A config as JSON gives it back; fields of a config in it are taken for its own, lists become text, and
        what is empty is left out.
    """
    _, start, end = hparams({name: _plain(value) for name, value in flat(values).items() if value != ""}, {})
    return start, end


def _plain(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def open_events(folder: str, purge_step: int = 0) -> tensorboardX.SummaryWriter:
    """Returns a writer of TensorBoard events that raises the OSError of a full disk.

    tensorboardX's own thread would end with it, and the queue before that thread would then fill, and wait for ever.

    Args:
      folder: Where the event file goes.
      purge_step: TensorBoard drops what earlier files of the folder say of this step and later ones.
    """
    # The rest of the name is the second and the machine: a writer of the same second would replace the file.
    writer = tensorboardX.SummaryWriter(folder, filename_suffix=f".{os.getpid()}.{time.monotonic_ns()}")
    events = writer.file_writer.event_writer
    events.add_event = naming_file(folder)(events._ev_writer.write_event)
    events.flush = naming_file(folder)(events._ev_writer.flush)
    events.add_event(Event(step=purge_step, session_log=SessionLog(status=SessionLog.START)))
    return writer
