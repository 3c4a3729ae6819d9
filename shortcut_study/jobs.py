"""The jobs of a study and the columns of its results.csv; identity_matters.runs.job_table computes and keeps them."""

import time
from collections.abc import Callable

from identity_matters.runs.job_table import Job, Progress
from shortcut_study.architectures import Architecture

COLUMNS = (
    "experiment", "shortcut_depth", "initialisation", "activations", "batch_norm", "depth", "seed", "learning_rate",
    "epoch", "loss", "excess_loss", "condition_number", "max_abs", "p10_abs", "index",
    "gradient_norm", "norm", "row_layer", "column_layer", "block", "perturbed_loss", "status", "job", "seconds",
)  # fmt: skip


def study_job(key: dict, compute: Callable[[Progress], list[dict]]) -> Job:
    """Returns a job whose rows have all COLUMNS: those that `compute` returns, its name in words and its seconds."""
    label = job_label(key)

    def compute_rows(progress: Progress) -> list[dict]:
        start = time.perf_counter()
        rows = compute(progress)
        shared = key | {"job": label, "seconds": time.perf_counter() - start}
        return [dict.fromkeys(COLUMNS, "") | row | shared for row in rows]

    return Job(key, compute_rows, label)


def job_label(key: dict) -> str:
    """Returns a description of a key's job: the column `job` of its rows.

    >>> job_label({"experiment": "norms", "shortcut_depth": 2, "initialisation": "zero", "depth": 8, "seed": 3})
    'norms: 2-shortcut, zero, depth 8, seed 3'
    """
    n = key.get("shortcut_depth", 0)
    words = [f"{n}-shortcut" if n else "no shortcuts", key.get("initialisation"), key.get("activations")]
    if "batch_norm" in key:
        words.append("batch normalisation" if key["batch_norm"] else "no batch normalisation")
    words += [f"{name} {key[name]}" for name in ("depth", "seed") if name in key]
    text = ", ".join(str(word) for word in words if word is not None)
    return f"{key['experiment']}: {text}".replace("_", " ")


def job_key(experiment: str, arch: Architecture, activations: str, depth: int, seed: int | None = None) -> dict:
    """Returns the key of a job; without a seed for a job that has rows of several seeds."""
    key = {"experiment": experiment, **arch._asdict(), "activations": activations, "depth": depth}
    return key if seed is None else key | {"seed": seed}
