"""Experiments on the network and its rivals: equal operations, each at its own best learning rate, several seeds."""

import dataclasses
import math
import os
from typing import Any, Literal

import numpy as np

from identity_matters.config import TrainConfig
from identity_matters.data.loading import load
from identity_matters.fields import check_fields, require
from identity_matters.presets import TRAIN_PRESETS
from identity_matters.runs import figures, tables
from identity_matters.runs.directory import RunDirectory, read_record
from identity_matters.variants import EXPERIMENTS, Variant

EVALUATIONS = 4  # of each run


@dataclasses.dataclass(frozen=True)
class AblationConfig:
    """Which experiment, and of what size.

    Attributes:
      train: What all the runs share; its seed is the first, its validation_examples choose the learning rates.
      experiment: statements: each choice of Hardt & Ma, changed; rivals: the networks they compare theirs with, on the
        same images; norms: Li et al., Figure 2.
      operations: Floating-point operations of each run on the test images, backward passes included; they make the
        number of steps.
      search_operations: The same for each run that tries a learning rate, on the held-out images.
      num_seeds: Runs of each variant on the test images, at its best learning rate.
    """

    train: TrainConfig = dataclasses.replace(TRAIN_PRESETS["cifar10_fast"], validation_examples=5_000)
    experiment: Literal["statements", "rivals", "norms"] = "statements"
    operations: float = 4e13
    search_operations: float = 1e13
    num_seeds: int = 3

    def __post_init__(self) -> None:
        check_fields(self, at_least_1=("num_seeds", "operations", "search_operations"), at_most={"num_seeds": 10_000})
        require(
            self.train.validation_examples, "validation_examples must be at least 1: they choose the learning rates"
        )

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Returns what the experiment compares."""
        return EXPERIMENTS[self.experiment]


def run_ablations(config: AblationConfig, run_dir: str) -> list[dict]:
    """Trains every run in a directory of its own under run_dir; finished ones are not run again.

    Args:
      config: AblationConfig.
      run_dir: str. The directory of each run lies in it, beside results.csv and the figure.

    Returns:
      The rows of results.csv: one per evaluation of each run, with variant, learning rate, seed, status, and whether it
      is of the search for the learning rate, on held-out images, or of the test.

    Raises:
      UserError: the data or the run directory cannot be used.
    """
    data = load(config.train)  # a mistake in what names the data must not leave a config.json
    shape = {"image_shape": data.image_shape, "num_classes": data.num_classes}
    base = dataclasses.replace(config.train, model=dataclasses.replace(config.train.model, **shape))
    del data
    plans = [_plan(variant, base, config) for variant in config.variants]
    with RunDirectory(run_dir, config, "ablations") as run:
        run.set_status("running")
        rows = []
        for variant, (searches, tests) in zip(config.variants, plans):
            rows += _run_variant(variant, searches, tests, run)
            tables.write_metrics(run.file("results.csv"), rows)
        figures.save_figure(figures.ablation_figure(rows), run.file("ablations.png"))
        run.set_status("done")
    return rows


def _plan(variant: Variant, base: TrainConfig, config: AblationConfig) -> tuple[list[TrainConfig], list[TrainConfig]]:
    """Returns the runs that search a variant's learning rate, none where it has one alone, and those of its seeds.

    The seeds' learning rate is the variant's first, in place of the one that will be found.
    """
    import keras

    from identity_matters.comparators import build_network
    from identity_matters.model import training_flops

    varied = variant.config(base, variant.rates[0])
    of_step = training_flops(build_network(varied.model)) * varied.batch_size
    keras.backend.clear_session()

    def sized(operations: float, **changes: Any) -> TrainConfig:
        steps = max(1, round(operations / of_step))
        every = math.ceil(steps / EVALUATIONS)
        return dataclasses.replace(varied, train_steps=steps, eval_every=every, checkpoint_every=every, **changes)

    rates = variant.rates if len(variant.rates) > 1 else ()
    seeds = range(base.seed, base.seed + config.num_seeds)
    searches = [sized(config.search_operations, learning_rate=rate) for rate in rates]
    return searches, [sized(config.operations, seed=seed, validation_examples=0) for seed in seeds]


def _run_variant(
    variant: Variant, searches: list[TrainConfig], tests: list[TrainConfig], run: RunDirectory
) -> list[dict]:
    """Chooses the learning rate on held-out images, then trains all seeds; returns the rows of both."""
    rows, errors = [], {}
    for searched in searches:
        rate = searched.learning_rate
        found = _train(run, f"{variant.directory}_rate{rate:g}", searched)
        rows += [_identity(variant, searched, "search") | row for row in found]
        errors[rate] = np.nan_to_num(found[-1]["test_top1_error"], nan=np.inf)
    best = min(errors, key=errors.__getitem__, default=variant.rates[0])
    for tested in tests:
        tested = dataclasses.replace(tested, learning_rate=best)
        found = _train(run, f"{variant.directory}_seed{tested.seed}", tested)
        rows += [_identity(variant, tested, "test") | row for row in found]
    return rows


def _identity(variant: Variant, config: TrainConfig, phase: str) -> dict:
    return {"variant": variant.name, "phase": phase, "chosen_rate": config.learning_rate, "seed": config.seed}


def _train(run: RunDirectory, name: str, config: TrainConfig) -> list[dict]:
    """Trains one run to its end and returns its rows: one per evaluation and, where it diverged, one of that step."""
    import keras

    from identity_matters import training

    print(f"— {name}", flush=True)
    try:
        training.train(config, run.file(name))
    except training.Diverged as error:
        print(error, flush=True)
    keras.backend.clear_session()
    record, path = read_record(run.file(name)), run.file(name, "metrics.csv")
    rows = [{"status": record["status"]} | row for row in (tables.read_metrics(path) if os.path.exists(path) else [])]
    if record["status"] == "diverged":
        step = record["diverged_at_step"]
        rows.append({"status": "diverged", "step": step, "loss": np.nan, "test_top1_error": np.nan})
    return rows


def table(rows: list[dict]) -> str:
    """Returns a Markdown table: for each variant its rate, steps, the runs that diverged, mean ± sd over the others."""
    lines = [
        "| variant | learning rate (of those tried) | steps | diverged | test error | train error | loss |",
        "|---|---|---|---|---|---|---|",
    ]
    for variant in dict.fromkeys(row["variant"] for row in rows):
        found = [row for row in rows if row["variant"] == variant]
        searched = dict.fromkeys(row["chosen_rate"] for row in found if row["phase"] == "search")
        final = tables.final_rows(found)
        diverged = [row for row in final if row["status"] == "diverged"]
        ended = [row for row in final if row["status"] != "diverged"]
        rates = f"{final[0]['chosen_rate']:g}" + (
            f" ({', '.join(f'{rate:g}' for rate in searched)})" if searched else ""
        )
        steps = f"{max(row['step'] for row in final):,}"
        columns = (("test_top1_error", 100, " %"), ("train_top1_error", 100, " %"), ("loss", 1, ""))
        cells = [_mean_and_spread([row[name] * scale for row in ended], unit) for name, scale, unit in columns]
        count = f"{len(diverged)} of {len(final)}"
        lines.append(f"| {variant} | {rates} | {steps} | {count} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean_and_spread(values: list[float], unit: str) -> str:
    """Returns mean ± standard deviation as text; a dash where there are no values."""
    if not values:
        return "–"
    spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{spread}{unit}"
