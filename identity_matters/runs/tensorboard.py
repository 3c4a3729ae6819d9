"""How TensorBoard shows a run: tags in an order that puts errors and losses first, and a line of the HParams page.

TensorBoard sorts groups of tags by name and unfolds the first two: error, loss, norm, optimizer, pictures, speed,
weights.
"""

import logging
from collections.abc import Iterator
from typing import Any

from tensorboardX.summary import hparams

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
    flat = {name: _plain(value) for name, value in _flatten(values) if value != ""}
    _, start, end = hparams(flat, {})
    return start, end


def _flatten(values: dict) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value)
        else:
            yield name, value


def _plain(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value
