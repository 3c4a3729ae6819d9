"""Redraw the figures of Li et al., *Demystifying ResNet*: Hessians and learning of n-shortcut networks.

    python -m launch.shortcut_study --figure=5 --preset=smoke --run_dir=runs/fig5

computes the data of Figure 5 (3, 6, 7, 8, 9 and 10 likewise, `convolutional` is not in the paper,
`all` is all of them), draws it with the theory's predictions, and checks what the paper says of
it: results.csv (a row a point), results.md (each claim: holds or not, with the numbers), PNGs, and
the figures in TensorBoard. --hparams adds the learning rates to its HParams page, also of a study
that is done. The smoke preset takes a minute, the paper's size an hour; the bar counts jobs, of which
deep networks' take longest. Interrupted, the same command goes on: what was computed is kept.

The data are MNIST digits, whitened: by default the 4,000 of the embedded sample. With
--dataset=mnist --data_dir=DIR all 60,000, and any TFDS set of small images by name.
"""

import dataclasses
import glob
import os
import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from identity_matters.config import ModelConfig, TrainConfig
from identity_matters.errors import UserError, VaryingSizes
from identity_matters.fields import from_json
from launch import launcher, terminal
from shortcut_study.config import PRESETS, READ_BY, StudyConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from identity_matters.data.arrays import ArrayData
    from identity_matters.runs.directory import RunDirectory
    from identity_matters.runs.job_table import Job
    from shortcut_study.dataset import StudyData

NUM_IMAGES = 50  # of the convolutional figure
PIXELS, WIDTH = 4, 2  # a side, that the stem of a convolutional network leaves, and channels


def main(config: StudyConfig, run_dir: str) -> None:
    """Computes, draws and judges the figures that the config asks for, in run_dir."""
    with terminal.silenced_stderr():
        import tensorflow  # noqa: F401, all that is slow to import

        from identity_matters.data.arrays import examples_summary
        from identity_matters.runs.directory import RunDirectory
        from shortcut_study.report import seconds_by_experiment, study_jobs

    with launcher.user_errors():
        arrays = _arrays(config)
        data = _data(config, arrays)
        jobs = study_jobs(config, data)
    summary = examples_summary(arrays.train_images, arrays.train_labels)
    with RunDirectory(run_dir, config, "shortcut_study", summary) as run:
        run.set_status("running", num_examples=len(data.x))
        rows, report = _compute(config, run, jobs)
        run.set_status("done", num_examples=len(data.x), seconds=sum(seconds_by_experiment(rows).values()))
    print(report)
    print(f"files: {run_dir}")


def _arrays(config: StudyConfig) -> "ArrayData":
    from identity_matters.data.arrays import ArrayData
    from identity_matters.data.loading import load

    named = {name: getattr(config, name) for name in ("dataset", "data_dir", "download")}
    try:
        arrays = load(TrainConfig(**named, train_examples=config.examples))
    except VaryingSizes as error:  # its advice is for launch.train
        raise UserError(
            f"the images of {config.dataset} vary in size; choose a set of small images of one size"
        ) from error
    if not isinstance(arrays, ArrayData):
        raise UserError(f"dataset {config.dataset} is not held in memory; choose one of small images")
    return arrays


def _data(config: StudyConfig, arrays: "ArrayData") -> "StudyData":
    from shortcut_study.dataset import StudyData, whitened_components

    images, labels, num_classes = arrays.train_images, arrays.train_labels, arrays.num_classes
    x, y = whitened_components(
        images, labels, num_classes, config.input_scale, config.centred, config.mean_over_outputs
    )
    if config.figure not in ("all", "convolutional"):
        return StudyData(x, y)
    import numpy as np

    from identity_matters.model import standardize

    chosen = np.random.default_rng(0).permutation(len(images))[:NUM_IMAGES]
    build_network = _network_builder(images.shape[1:], num_classes)
    return StudyData(x, y, np.asarray(standardize(images[chosen])), labels[chosen], build_network)


def _network_builder(image_shape: tuple[int, ...], num_classes: int) -> Callable:
    """`StudyData.build_network`: a stem that leaves PIXELS × PIXELS pixels of WIDTH channels, then one stage."""
    height, width = image_shape[:2]
    if height != width or height % PIXELS:
        raise UserError(
            f"the convolutional networks take square images of a multiple of {PIXELS} pixels, got {height}x{width}"
        )

    def build_network(depth: int, shortcut_depth: int, batch_norm: int, initialisation: str, seed: int) -> Any:
        from identity_matters.model import all_conv_resnet

        config = ModelConfig(
            image_shape=image_shape,
            num_classes=num_classes,
            stem_width=WIDTH,
            stem_kernel_size=height // PIXELS,
            stem_stride=height // PIXELS,
            widths=(WIDTH,),
            blocks_per_stage=(depth // shortcut_depth,),
            convs_per_block=shortcut_depth,
            use_batch_norm=bool(batch_norm),
            residual_initializer=initialisation,
        )
        return all_conv_resnet(config, seed)

    return build_network


def _compute(config: StudyConfig, run: "RunDirectory", jobs: list["Job"]) -> tuple[list[dict], str]:
    """Writes results.csv, a job at a time, and what is made of it; returns its rows and the text of results.md."""
    from tqdm import tqdm

    from identity_matters.runs.figures import save_figures
    from identity_matters.runs.files import write_text
    from identity_matters.runs.job_table import JobTable
    from identity_matters.runs.tables import read_rows, reporting_damaged_table
    from shortcut_study import report

    path = run.file("results.csv")
    bar_format = "{desc} {percentage:3.0f}% |{bar}| {n:.0f} of {total} jobs, {elapsed}"
    with tqdm(total=len(jobs) + 1, bar_format=bar_format, dynamic_ncols=True) as bar:
        JobTable(path).run_all(jobs, bar)
        bar.set_description("figures, findings, TensorBoard")
        rows = read_rows(path)
        with reporting_damaged_table(path):
            save_figures(figures(run.path), run.path)
            _write_events(run, rows, config.hparams)
            text = report.report(rows, toys(run.path))
        write_text(run.file("results.md"), text)
        bar.update(1)
    return rows, text


def figures(run_dir: str) -> "dict[str, Figure]":
    """Returns figure_N, by name, of every figure whose data results.csv holds; at toy size they say so."""
    from identity_matters.runs.tables import read_rows
    from shortcut_study.report import draw_figure, figures_with_data

    rows, small = read_rows(os.path.join(run_dir, "results.csv")), toys(run_dir)
    return {f"figure_{name}": draw_figure(name, rows, name in small) for name in figures_with_data(rows)}


def toys(run_dir: str) -> list[str]:
    """Returns the names of the figures that at the size in a study's config.json only show that they run."""
    from identity_matters.runs.config_json import read_config_json

    config, record = config_of(run_dir), read_config_json(run_dir) or {}
    known = record.get("num_examples")  # none in a run of an earlier version that is not done
    num_examples = known if isinstance(known, int) else config.examples or sys.maxsize
    return [figure for figure in READ_BY if config.is_toy_size(figure, num_examples)]


def config_of(run_dir: str) -> StudyConfig:
    """Returns the config of a study; the default where there is no config.json."""
    from identity_matters.runs.config_json import read_config_json

    record = read_config_json(run_dir)
    names = {field.name for field in dataclasses.fields(StudyConfig)}
    fields = {name: value for name, value in record["config"].items() if name in names} if record else {}
    with launcher.user_errors():
        return from_json(StudyConfig(), fields)


def _write_events(run: "RunDirectory", rows: list[dict], has_hparams: bool) -> None:
    """Writes the figures as images and, on request, a run of the HParams page for every network and learning rate."""
    from identity_matters.runs.figures import figure_to_array
    from identity_matters.runs.metrics_log import open_events, session
    from shortcut_study.report import sessions

    folder = run.file(f".tmp{os.getpid()}_events")
    with open_events(folder) as writer:
        for name, figure in figures(run.path).items():
            writer.add_image(f"pictures/{name}", figure_to_array(figure), dataformats="HWC")
    for found in sessions(rows) if has_hparams else ():
        with open_events(os.path.join(folder, "learning_rates", found.name)) as writer:
            for summary in session(found.hparams):
                writer.file_writer.add_summary(summary)
            for name, value in found.metrics.items():
                writer.add_scalar(name, value, found.epoch)
    listed, names = run.contents.get("event_files", []), _event_files(folder)
    for name in _event_files(run.path):
        if name in listed:  # of an earlier end of this run: TensorBoard would show both
            os.remove(run.file(name))
    kept = {name: value for name, value in run.contents.items() if name == "num_examples"}
    run.set_status("running", event_files=names, **kept)
    for name in names:
        os.makedirs(os.path.dirname(run.file(name)), exist_ok=True)
        os.replace(os.path.join(folder, name), run.file(name))
    shutil.rmtree(folder)


def _event_files(folder: str) -> list[str]:
    """The TensorBoard files of a study, relative to its directory, and nothing deeper: that may be of another run."""
    patterns = ("events.out.tfevents*", "learning_rates/*/events.out.tfevents*")
    return [name for pattern in patterns for name in glob.glob(pattern, root_dir=folder)]


def cli() -> None:
    """Runs the launcher on the command line's flags."""
    launcher.run(main, PRESETS, manual=__doc__, without_effect=StudyConfig.ignored_fields)


if __name__ == "__main__":
    cli()
