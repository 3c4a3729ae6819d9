"""What each choice of the paper does: the same small network with some of them changed, several seeds each."""

import dataclasses
import os

import numpy as np

from identity_matters.config import ModelConfig, TrainConfig
from identity_matters.data.loading import load
from identity_matters.fields import check_fields
from identity_matters.runs import figures, tables
from identity_matters.runs.directory import RunDirectory, read_record

# Variant: what it changes in the ModelConfig.
VARIANTS = {
    "paper": {},
    "standard_initializer": {"residual_initializer": "standard"},
    "trained_projection": {"train_projection": True},
    "batch_norm": {"use_batch_norm": True},
    "batch_norm_standard_initializer": {"use_batch_norm": True, "residual_initializer": "standard"},
}


@dataclasses.dataclass(frozen=True)
class AblationConfig:
    """Every variant with every seed; the defaults take 2 cores about 45 minutes.

    Attributes:
      train: What all the runs share; its seed is the first.
      num_seeds: Runs of each variant.
    """

    train: TrainConfig = TrainConfig(
        model=ModelConfig(widths=(16, 32, 64), blocks_per_stage=(2, 2, 2)),
        train_examples=20_000,
        train_steps=785,  # five epochs
        eval_every=157,
        eval_examples=2_000,
        checkpoint_every=157,
    )
    num_seeds: int = 3

    def __post_init__(self) -> None:
        check_fields(self, at_least_1=("num_seeds",), at_most={"num_seeds": 10_000})

    def runs(self) -> list[tuple[str, TrainConfig]]:
        """Returns (name, config) of every run: all the variants with the first seed, then with the next."""
        return [
            (
                f"{variant}_seed{seed}",
                dataclasses.replace(self.train, seed=seed, model=dataclasses.replace(self.train.model, **changes)),
            )
            for seed in range(self.train.seed, self.train.seed + self.num_seeds)
            for variant, changes in VARIANTS.items()
        ]


def run_ablations(config: AblationConfig, run_dir: str) -> list[dict]:
    """Trains every run in a directory of its own under run_dir; finished ones are not run again.

    Args:
      config: AblationConfig.
      run_dir: str. The directory of each run lies in it, beside results.csv and ablations.png.

    Returns:
      The rows of results.csv: one per evaluation of each run, with variant, seed and status.

    Raises:
      UserError: the data or the run directory cannot be used.
    """
    import keras

    from identity_matters import training
    from identity_matters.comparators import build_network

    data = load(config.train)  # a mistake in what names the data, or too large a network, must not leave a config.json
    shape = {"image_shape": data.image_shape, "num_classes": data.num_classes}
    build_network(dataclasses.replace(config.train.model, **shape), config.train.seed)
    keras.backend.clear_session()
    run = RunDirectory(run_dir, config, "ablations")
    with run:
        run.set_status("running")
        for name, train_config in config.runs():
            print(f"— {name}", flush=True)
            try:
                training.train(train_config, run.file(name))
            except training.Diverged as error:
                print(error, flush=True)
            keras.backend.clear_session()
        rows = collect(config, run_dir)
        tables.write_metrics(run.file("results.csv"), rows)
        figures.save_figure(figures.ablation_figure(rows), run.file("ablations.png"))
        run.set_status("done")
    return rows


def collect(config: AblationConfig, run_dir: str) -> list[dict]:
    """Returns a row per evaluation of each run, and one more for the step at which a run diverged."""
    rows = []
    for name, _ in config.runs():
        record = read_record(os.path.join(run_dir, name))
        path = os.path.join(run_dir, name, "metrics.csv")
        variant, seed = name.rsplit("_seed", 1)
        identity = {"variant": variant, "seed": int(seed), "status": record["status"]}
        metrics = tables.read_metrics(path) if os.path.exists(path) else []
        rows += [identity | row for row in metrics]
        if record["status"] == "diverged":
            rows.append(identity | {"step": record["diverged_at_step"], "loss": np.nan, "test_top1_error": np.nan})
    return rows


def table(rows: list[dict]) -> str:
    """Returns a Markdown table: per variant the runs that diverged, and mean ± standard deviation over the others."""
    lines = [
        "| variant | runs | diverged (at step) | test error | train error | loss |",
        "|---|---|---|---|---|---|",
    ]
    for variant in dict.fromkeys(row["variant"] for row in rows):
        variant_rows = [row for row in rows if row["variant"] == variant]
        diverged = [row["step"] for row in variant_rows if row["status"] == "diverged" and np.isnan(row["loss"])]
        last_step = max(row["step"] for row in variant_rows)
        final = [row for row in variant_rows if row["status"] == "done" and row["step"] == last_step]
        cells = [
            _mean_and_spread([row[column] * scale for row in final], unit)
            for column, scale, unit in (
                ("test_top1_error", 100, " %"),
                ("train_top1_error", 100, " %"),
                ("loss", 1, ""),
            )
        ]
        divergence = f"{len(diverged)} ({', '.join(map(str, diverged))})" if diverged else "0"
        num_runs = len({row["seed"] for row in variant_rows})
        lines.append(f"| {variant.replace('_', ' ')} | {num_runs} | {divergence} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean_and_spread(values: list[float], unit: str) -> str:
    """Returns mean ± standard deviation as text; a dash where there are no values."""
    if not values:
        return "–"
    spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{spread}{unit}"
