"""Experiments on the network and others: equal operations, each at its best learning rate, several seeds."""

import dataclasses
import itertools
import math
import os
from typing import Any, NamedTuple

import keras
import numpy as np
from matplotlib.figure import Figure

from identity_matters import networks, training
from identity_matters.config import TrainConfig
from identity_matters.convolutions import training_flops
from identity_matters.data.folder import check_run_dir_outside_images
from identity_matters.data.source import open_source
from identity_matters.errors import UserError, table_error, translate_errors
from identity_matters.experiments import figures as experiment_figures
from identity_matters.experiments.config import AblationConfig
from identity_matters.experiments.variants import EXPERIMENTS, Variant, depths
from identity_matters.model import check_image_shape
from identity_matters.runs import figures, tables
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.job_table import Job, JobTable
from identity_matters.runs.record import read_record

# Share of the operations in which a learning rate is tried unless search_operations says otherwise. In a quarter of
# them the highest rates win that lose later, as networks with the small initialiser take long to leave the saddle at
# zero.
SEARCH = 0.5

# How often the best rate, being the lowest or the highest of those tried, is halved or doubled for another trial.
EXTENSIONS = 2
_RANKED_BY = ("test_top1_error", "test_cross_entropy")


class _Plan(NamedTuple):
    """The runs of a variant: those that search its learning rate, none if it has only one, and those of its seeds.

    The seeds' learning rate is the variant's first until the best one is known.
    """

    variant: Variant
    searches: list[TrainConfig]
    tests: list[TrainConfig]


def run_ablations(config: AblationConfig, run_dir: str) -> list[dict]:
    """Trains every run in a directory of its own under run_dir; finished ones are not run again.

    All learning rates come first, then all variants of the first seed, then of the next one: the figures of an
    interrupted experiment compare the runs that it has. A run with rows in results.csv is finished, whether its
    directory is still there or not: config.json and results.csv are enough to continue elsewhere. The config in
    its directory, if there is one, must be the planned one; rows without a directory are used as they are, even if the
    code of the variant has changed since.

    Returns:
      The rows of results.csv: one per evaluation of each finished run in the directory, earlier calls' of other
      variants too, with variant, learning rate, seed, status, and whether it is of the search for the learning rate, on
      held-out images, or of the test.

    Raises:
      UserError: the data or the run directory cannot be used or are of other data, or a finished run in it is of
        another config than its variant now has.
    """
    # A mistake in what names the data must not leave a config.json.
    check_run_dir_outside_images(config.train.data, run_dir)
    source = open_source(config.train.data)
    shape = {"image_shape": source.image_shape, "num_classes": source.num_classes}
    base = dataclasses.replace(config.train, model=dataclasses.replace(config.train.model, **shape))
    plans = [_plan(variant, base, config) for variant in config.variants]
    with RunDirectory(run_dir, config, "ablations", source.digest) as run:
        _run_all(plans, run, _open_table(run.file("results.csv"), config))
        rows = _draw(run)
        run.set_status("done")
    return rows


def _plan(variant: Variant, base: TrainConfig, config: AblationConfig) -> _Plan:
    unit = base.steps_per_execution  # the variant's own train_steps need not be its multiples
    varied = variant.config(TrainConfig(**vars(base) | {"steps_per_execution": 1}), variant.rates[0])
    check_image_shape(varied.model)
    flops_per_step = None if "train_steps" in variant.train else _flops(varied)

    def sized(operations: float, evaluations: int, **changes: Any) -> TrainConfig:
        steps = unit * max(1, round((operations / flops_per_step if flops_per_step else varied.train_steps) / unit))
        every = unit * math.ceil(steps / unit / evaluations)
        changes |= {"train_steps": steps, "eval_every": every, "checkpoint_every": every, "steps_per_execution": unit}
        return dataclasses.replace(varied, **changes)

    rates = variant.rates if len(variant.rates) > 1 else ()
    tested = dataclasses.replace(base.data, validation_examples=0)
    seeds = range(base.seed, base.seed + config.num_seeds)
    search_operations = config.search_operations or SEARCH * config.operations
    searches = [sized(search_operations, 1, learning_rate=rate) for rate in rates]
    tests = [sized(config.operations, variant.evaluations, seed=seed, data=tested) for seed in seeds]
    return _Plan(variant, searches, tests)


def _flops(config: TrainConfig) -> int:
    """Operations of the convolutions in a step."""
    flops = training_flops(networks.build(config.model)) * config.batch_size
    keras.backend.clear_session()
    return flops


def _run_all(plans: list[_Plan], run: RunDirectory, table: JobTable) -> None:
    """Chooses every learning rate on held-out images, then trains seed after seed; finished runs are not run again."""
    count = itertools.count(1)
    total = sum(len(plan.searches) + len(plan.tests) for plan in plans)

    def error_of(variant: Variant, config: TrainConfig) -> tuple[float, float]:
        """Trains a run, unless it is finished, and returns its last error and cross-entropy, infinite if it diverged.

        The cross-entropy decides between rates of the same error.
        """
        number = next(count)
        last = f"seed{config.seed}"
        key = {"variant": variant.name, "phase": "test", "seed": config.seed}
        if config.data.validation_examples:
            last = f"rate{config.learning_rate:g}"
            key = {"variant": variant.name, "phase": "search", "chosen_rate": config.learning_rate}
        path = run.file(f"{variant.directory}_{last}")

        def compute(_: object) -> list[dict]:
            run.set_status("running")  # not before: a rejected call leaves a finished experiment finished
            print(f"[{number}/{total}] {variant.name}, {last}: {config.train_steps:,} steps", flush=True)
            _train(config, path)
            return _rows(path)

        if rows := table.find(Job(key, compute)):
            _require_planned(variant, config, path)
        else:
            rows = table.run(Job(key, compute))
            _draw(run)
        values = [rows[-1].get(name, "") for name in _RANKED_BY]
        return tuple(np.nan_to_num([np.inf if value == "" else value for value in values], nan=np.inf))

    rates = {}
    for variant, searches, _ in plans:
        errors = {config.learning_rate: error_of(variant, config) for config in searches}
        while searches and len(errors) < len(searches) + EXTENSIONS:
            rate = _rate_beyond(errors)
            if not rate:
                break
            total += 1
            errors[rate] = error_of(variant, dataclasses.replace(searches[0], learning_rate=rate))
        rates[variant.name] = min(sorted(errors), key=errors.__getitem__, default=variant.rates[0])
    for tests_of_seed in zip(*(plan.tests for plan in plans)):
        for plan, config in zip(plans, tests_of_seed):
            error_of(plan.variant, dataclasses.replace(config, learning_rate=rates[plan.variant.name]))


def _require_planned(variant: Variant, config: TrainConfig, run_dir: str) -> None:
    """Raises UserError if the directory of a finished run exists with another config than the planned one."""
    if read_record(run_dir):
        try:
            RunDirectory(run_dir, config)
        except UserError as error:
            raise UserError(
                f"the variant {variant.name!r} has changed since it was run, choose another run_dir: {error}"
            ) from error


def _rate_beyond(errors: dict[float, tuple[float, float]]) -> float | None:
    """Returns the next learning rate to try if the best so far is the lowest or the highest, else None."""
    best = min(sorted(errors), key=errors.__getitem__)
    if best == min(errors):
        return best / 2
    return 2 * best if best == max(errors) else None


def _train(config: TrainConfig, run_dir: str) -> None:
    try:
        training.train(config, run_dir)
    except training.Diverged as error:
        print(error, flush=True)
    keras.backend.clear_session()


def _open_table(path: str, config: AblationConfig) -> JobTable:
    """Returns the table of results; raises UserError if it has rows of variants that the config does not."""
    table = JobTable(path)
    names = [variant.name for variant in EXPERIMENTS[config.experiment]]
    with translate_errors(table_error(path)):
        keys = [(row["variant"], row["phase"], row["chosen_rate"], row["seed"]) for row in table.rows]
    unknown = {variant for variant, *_ in keys} - set(names)
    if unknown:
        raise UserError(f"{path} has rows of {', '.join(sorted(unknown))}: no variant of {config.experiment}")
    return table


def _draw(run: RunDirectory) -> list[dict]:
    """Draws the figures of all finished runs; returns the rows of results.csv."""
    rows = tables.read_rows(run.file("results.csv"))
    rows = [{name: value for name, value in row.items() if value != ""} for row in rows]
    figures.save_figures(lambda: draw(rows), run.path)
    return rows


def _rows(run_dir: str) -> list[dict]:
    """Returns the rows of a run that is finished: one per evaluation and, if it diverged, one of that step."""
    record = read_record(run_dir)
    path = os.path.join(run_dir, "metrics.csv")
    config = record.settings
    status = record.status
    rows = tables.read_metrics(path) if os.path.exists(path) else []
    if status == "diverged":
        rows = [*rows, {"step": record.diverged_at_step, "loss": np.nan, "test_top1_error": np.nan}]
    phase = "search" if config["validation_examples"] else "test"
    identity = {"phase": phase, "chosen_rate": config["learning_rate"], "seed": config["seed"], "status": status}
    return [identity | row for row in rows]


def draw(rows: list[dict], title: str = "") -> dict[str, Figure]:
    """Returns the figures of the rows of results.csv by name.

    ablations; depths if networks of several depths are compared, as in the statements; kernel_norms of
    --experiment=norms.
    """
    drawn = {"ablations": experiment_figures.ablation_figure(rows, title)}
    present = {row["variant"] for row in tables.final_rows(rows)}
    compared = depths()
    if any(len(present & variants.keys()) > 1 for variants in compared.values()):
        drawn["depths"] = experiment_figures.depth_figure(rows, compared, title)
    if {row["variant"] for row in rows} <= {variant.name for variant in EXPERIMENTS["norms"]}:
        drawn["kernel_norms"] = experiment_figures.norms_figure(rows, title)
    return drawn
