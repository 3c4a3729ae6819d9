"""Train the all-convolutional residual network (Hardt & Ma §4), or continue an interrupted run.

    python -m launch.train --run_dir=runs/first

trains the mnist preset on 4,000 embedded digits: about 1 minute on 2 cores, 2 % test error.

    python -m launch.train --preset=cifar10_fast --data_dir=DIR --run_dir=runs/fast
    python -m launch.train --preset=cifar10 --data_dir=DIR --run_dir=runs/cifar10

train on a data set that TFDS has prepared under DIR (with --download, TFDS fetches it). cifar10_fast
is a small network built like the paper's: 40 minutes on 2 cores. cifar10_wide is larger, with four
times the operations. cifar10 is the paper's network, 50,000 steps for a GPU: 5.5 minutes on an
NVIDIA H200 under JAX, with --mixed_precision --steps_per_execution=100 (errors:
docs/papers/hardt_ma.md).

    python -m launch.train --images=photos --test_share=0.2 --image_size=32 --run_dir=runs/photos

trains on a folder of your own images, PNG or JPEG, with one folder for each class inside.

The run writes config.json, metrics.csv, TensorBoard events, checkpoints, convergence.png,
model.keras and saved_model to run_dir. The same command resumes an interrupted run. Exit code 0:
done; 1: an error; 3: the loss became NaN or infinite; 75: stopped before the end, by SIGTERM,
because another worker is gone or because a checkpoint cannot be read now; the same command then
continues the run.

With TF_CONFIG in the environment this process is one of several workers; launch.cluster starts them.
"""

import os
import shlex
from collections.abc import Mapping

from identity_matters.config import TrainConfig
from identity_matters.errors import EXIT_DIVERGED, note
from identity_matters.presets import TRAIN_PRESETS
from identity_matters.runs.record import read_record
from identity_matters.runs.tables import percent, read_metrics
from launch import launcher, terminal
from launch.experiment import Figures


def main(config: TrainConfig, run_dir: str) -> int:
    """Trains, or resumes, the run and prints its results; returns the exit code."""
    record = read_record(run_dir)
    was_done = bool(record) and record.status == "done" and record.config.get("train_steps") == config.train_steps
    late = [step for step in config.decay_steps if config.schedule == "piecewise" and step >= config.train_steps]
    if late and not was_done:  # --train_steps can shorten a preset and leave its decay_steps beyond the end
        beyond = ", ".join(map(str, late))
        note(f"the learning rate does not drop at decay_steps {beyond}: train_steps is {config.train_steps}")
    with terminal.silenced_stderr():
        from identity_matters import training

    try:
        row = training.train(config, run_dir)
    except training.Diverged as error:
        print(f"diverged: {error}; {run_dir}/config.json says so, and the run cannot continue")
        return EXIT_DIVERGED
    if row:  # the chief
        _summarize(row, run_dir, was_done)
    return 0


def _summarize(row: dict[str, float], run_dir: str, was_done: bool) -> None:
    """Prints the last lines: the test or held-out error, the files, what to do next."""
    files = sorted(name for name in os.listdir(run_dir) if not name.startswith("."))
    print(f"{'this run was already finished' if was_done else 'done'}: step {row['step']}", end=", ")
    record = read_record(run_dir)
    has_top5 = record.config["model"]["num_classes"] > 5 and "test_top5_error" in row  # a table of others may lack it
    top5 = f", top-5 {percent(row['test_top5_error'])}" if has_top5 else ""
    print(f"{record.split} error {percent(row['test_top1_error'])}{top5}")
    print(f"files in {run_dir}: {', '.join(name for name in files if 'tfevents' not in name)}, TensorBoard events")
    # Of the folder above, so that the run has a name.
    print(f"next:\n  tensorboard --logdir={shlex.quote(os.path.dirname(os.path.normpath(run_dir)) or '.')}")
    print(f"  python -m launch.classify --saved_model={shlex.quote(run_dir)} photo.jpg")
    if "saved_model" in files:
        print(f"  python -m launch.evaluate --saved_model={shlex.quote(os.path.join(run_dir, 'saved_model'))}")
    else:
        print(f"  python -m launch.evaluate --saved_model={shlex.quote(os.path.join(run_dir, 'model.keras'))}")
        print(f"  the same command under KERAS_BACKEND=tensorflow adds {os.path.join(run_dir, 'saved_model')}")


def figures(run_dir: str, title: str = "", levels: Mapping[str, float] = {}) -> Figures:
    """Returns Figure 1 of Hardt & Ma for a run, drawn from its metrics.csv, by name; see `convergence_figure`."""
    from identity_matters.runs.figures import convergence_figure

    rows = read_metrics(os.path.join(run_dir, "metrics.csv"))
    return {"convergence": convergence_figure(rows, title, *what_is_drawn(run_dir, rows), levels)}


def what_is_drawn(run_dir: str, rows: list[dict]) -> tuple[str, str]:
    """Returns the split and the `final_row_label` of a run, which may have lost its config.json."""
    record = read_record(run_dir)
    return (record.split, record.final_row_label(rows)) if record else ("test", "at the end")


cli = launcher.command(main, TRAIN_PRESETS, manual=__doc__, unused_fields=TrainConfig.unused_fields)

if __name__ == "__main__":
    cli()
