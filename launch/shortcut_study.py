"""Reproduce the figures of Li et al., *Demystifying ResNet*: Hessians and training of n-shortcut networks.

    python -m launch.shortcut_study --preset=smoke --run_dir=runs/fig5

computes the data of Figure 5 (--figure=3, 4, 6, 7, 8, 9, 10 or 11 for another, `convolutional` for one
that is not in the paper, `all` for all of them), draws it with the theory's predictions, and checks the
paper's statements about it. Writes results.csv (a row for each point), results.md (each statement: holds or
does not hold, with the numbers), PNGs and, for TensorBoard, the figures, the curves of the networks that it
trains and, for Figure 5, histograms of eigenvalues (from eigenvalues.csv). --hparams adds the learning rates
to TensorBoard's HParams page, also for a finished study. The smoke preset takes a minute, the paper's size
an hour. The progress bar counts jobs; those of deep networks take longest. The same command
continues an interrupted study and keeps what was computed.

The data are MNIST digits, whitened: by default the 4,000 of the embedded sample, all 60,000 with
--dataset=mnist --data_dir=DIR, or any TFDS data set of small images, by name.
"""

import glob
import math
import os

import numpy as np

from identity_matters.data.arrays import examples_summary
from identity_matters.errors import as_user_error, translate_errors
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.files import temporary_folder
from identity_matters.runs.record import read_record
from identity_matters.runs.tables import read_rows
from launch import launcher, terminal
from launch.experiment import Experiment, Figures, Report, run
from shortcut_study.config import PRESETS, StudyConfig
from shortcut_study.dataset import load_images, study_data

EIGENVALUES = "eigenvalues"  # the table of Figure 5's networks, which only TensorBoard's histograms read
_CURVES = ("loss", "excess_loss", "norm", "gradient_norm", "condition_number", "index")


def main(config: StudyConfig, run_dir: str) -> int:
    """Computes and draws the figures that the config asks for, and checks the paper's statements, in run_dir."""
    with terminal.silenced_stderr():
        import keras  # noqa: F401, all that is slow to import, or that KERAS_BACKEND lets fail
        import tensorflow  # noqa: F401

        from shortcut_study import report
        from shortcut_study.figures.figure_5 import eigenvalue_rows
        from shortcut_study.tape import check_backend

    with translate_errors(as_user_error):
        report.chosen_figures(config)  # a mistake in the depths is reported before a data set is downloaded
        if config.hessian == "tape":
            check_backend()
        arrays = load_images(config)
        data = study_data(config, arrays)
        jobs = report.study_jobs(config, data)

    def report_of(run: RunDirectory, rows: list[dict]) -> Report:
        _write_events(run, rows, config.hparams)
        text = report.report(rows, smoke_size(run.path))
        seconds = sum(report.seconds_by_experiment(rows).values())
        return Report(text, files={"results.md": text}, details={"seconds": seconds})

    experiment = Experiment(
        "shortcut_study",
        {"results.csv": jobs},
        figures,
        report_of,
        data_digest=examples_summary(arrays.images, arrays.labels),
        details={"num_examples": len(data.x)},
        always_show_progress=True,
        figure_data={EIGENVALUES: lambda: eigenvalue_rows(config, data)} if config.figure in ("5", "all") else {},
    )
    return run(experiment, config, run_dir)


def figures(run_dir: str) -> Figures:
    """Returns figure_N, by name, of every figure whose data results.csv holds; at smoke size their titles say so."""
    from shortcut_study.report import draw_figure, figures_with_data

    rows = read_rows(os.path.join(run_dir, "results.csv"))
    names = figures_with_data(rows)
    small = smoke_size(run_dir) if names else []
    return {f"figure_{name}": draw_figure(name, rows, name in small) for name in names}


def smoke_size(run_dir: str) -> list[str]:
    """Returns the names of the figures that, at the size in a study's config.json, are too small for conclusions."""
    from shortcut_study.report import FIGURES, is_smoke_size

    config = config_of(run_dir)
    record = read_record(run_dir)
    num_examples = record.num_examples if record else None
    if not isinstance(num_examples, int):  # a study that has not begun, or results.csv without its config.json
        num_examples = config.examples or math.inf
    return [name for name in FIGURES if is_smoke_size(config, name, num_examples)]


def config_of(run_dir: str) -> StudyConfig:
    """Returns the config of a study; the default without a config.json."""
    record = read_record(run_dir)
    return record.config_as(StudyConfig()) if record else StudyConfig()


def _write_events(run: RunDirectory, rows: list[dict], has_hparams: bool) -> None:
    """Writes the figures, the eigenvalues as histograms and a run for each network with its curves.

    On request there is a run of the HParams page for every network and learning rate.
    """
    from identity_matters.runs.figure_style import styled
    from identity_matters.runs.figures import figure_to_array
    from identity_matters.runs.metrics_log import HISTOGRAM_BINS, open_events, session
    from shortcut_study.report import curves, sessions

    with temporary_folder(run.path) as folder:
        with open_events(folder) as writer, styled():
            for name, figure in figures(run.path).items():
                writer.add_image(f"pictures/{name}", figure_to_array(figure), dataformats="HWC")
            for name, values in _eigenvalues(run.file(f"{EIGENVALUES}.csv")).items():
                writer.add_histogram(f"eigenvalues/{name}", values, bins=HISTOGRAM_BINS)
        for name, trained_rows in curves(rows):
            with open_events(os.path.join(folder, "networks", name)) as writer:
                for row in trained_rows:
                    for column in _CURVES:
                        if row[column] != "":
                            writer.add_scalar(f"network/{column}", row[column], int(row["epoch"]))
        for trained in sessions(rows) if has_hparams else ():
            with open_events(os.path.join(folder, "learning_rates", trained.name)) as writer:
                for summary in session(trained.hparams):
                    writer.file_writer.add_summary(summary)
                for name, value in trained.metrics.items():
                    writer.add_scalar(name, value, trained.epoch)
        listed = run.record.event_files
        names = _event_files(folder)
        for name in _event_files(run.path):
            if name in listed:  # of an earlier end of this run: TensorBoard would show both
                os.remove(run.file(name))
        run.set_status("running", event_files=names)
        for name in names:
            os.makedirs(os.path.dirname(run.file(name)), exist_ok=True)
            os.replace(os.path.join(folder, name), run.file(name))


def _eigenvalues(path: str) -> dict[str, np.ndarray]:
    """Returns the eigenvalues in a table, by the name of the network and its depth; {} without a table."""
    groups: dict[str, list[float]] = {}
    for row in read_rows(path) if os.path.exists(path) else ():
        shortcuts = f"{row['shortcut_depth']}-shortcut" if row["shortcut_depth"] else "no-shortcuts"
        name = f"{shortcuts}_{row['initialisation']}_depth_{row['depth']}"
        groups.setdefault(name, []).append(row["eigenvalue"])
    return {name: np.array(values) for name, values in groups.items()}


def _event_files(folder: str) -> list[str]:
    """The TensorBoard files of a study, relative to its directory; subfolders may belong to another run."""
    subfolders = ("", "networks/*/", "learning_rates/*/")
    patterns = [f"{subfolder}events.out.tfevents*" for subfolder in subfolders]
    return [name for pattern in patterns for name in glob.glob(pattern, root_dir=folder)]


def _unused_fields(config: StudyConfig) -> dict[str, str]:
    from shortcut_study.report import unused_fields

    return unused_fields(config)


cli = launcher.command(main, PRESETS, manual=__doc__, unused_fields=_unused_fields)

if __name__ == "__main__":
    cli()
