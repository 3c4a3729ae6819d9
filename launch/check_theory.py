"""Check every numbered claim of both papers on random instances, the false ones by their counterexamples.

    python -m launch.check_theory --run_dir=runs/theory

prints, claim by claim, the statement as it is true, the worst instance against its bound, how
much room it leaves, and three judgements: whether the printed statement holds, whether its printed
proof does, and what our copy of the text has lost: a minute or two. Exit code 1 if any check
fails. With a run directory it leaves results.csv, claims.md, and the data (CSV) and the figures (PNG)
of docs/theory.md. --claim=hm.theorem_2.1 checks one claim.

    python -m launch.check_theory --search=relu --run_dir=runs/relu

looks for bad critical points of ReLU residual networks near zero, the open problem of Hardt &
Ma §5, in about 1 minute: it prints the counts with their confidence bounds as they come, and
leaves them in results.csv, every point in points.csv, and a figure. --trials=1000 as in the
docs takes 4 minutes. Interrupted, the same command goes on.

    python -m launch.check_theory --experiment=descent --run_dir=runs/descent

trains linear residual networks of up to 64 layers by descent, momentum and orthogonalised updates from
several starts on four kinds of targets, in about 3 minutes on 2 cores, and leaves results.csv, and the
data (CSV) and the figures (PNG) of docs/descent.md. Interrupted, the same command goes on.
"""

import dataclasses
import functools
import os
import time
from typing import TYPE_CHECKING, Literal

from identity_matters.errors import UserError
from identity_matters.fields import check_fields
from launch import launcher

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from identity_matters.runs.directory import RunDirectory
    from theory.claims import Check


@dataclasses.dataclass(frozen=True)
class CheckConfig:
    """What is checked, and on how much.

    Attributes:
      claim: Check this claim alone, by its id, e.g. hm.theorem_2.1 (empty: all of them).
      search: relu: search for bad critical points of ReLU networks in place of the checks (empty: no search).
      experiment: descent: map what descent reaches in place of the checks (empty: no experiment).
      trials: Random instances a claim, to within a factor that depends on what one costs; of a search, random starts
        per setting.
      seed: Seed of the instances.
      figures: Draw the figures too, where there is a run directory and all claims are checked.
    """

    claim: str = ""
    search: Literal["", "relu"] = ""
    experiment: Literal["", "descent"] = ""
    trials: int = 100
    seed: int = 0
    figures: bool = True

    def __post_init__(self) -> None:
        check_fields(self, at_least_1=("trials",), at_least_0=("seed",))
        given = {name: value for name in ("claim", "search", "experiment") if (value := getattr(self, name))}
        if len(given) > 1:
            jobs = " and ".join(f"{name} {value!r}" for name, value in given.items())
            raise UserError(f"{jobs} are {len(given)} jobs: give one of them")


def main(config: CheckConfig, run_dir: str | None) -> int:
    """Checks or searches as the config says; returns the exit code, 1 if a check failed."""
    from identity_matters.runs.directory import RunDirectory
    from theory import claims

    if config.claim:
        with launcher.user_errors():
            claims.claim_named(config.claim)
    job = _experiment if config.experiment else _search if config.search else _check
    if run_dir is None:
        return job(config, None)
    with RunDirectory(run_dir, config, "check_theory") as run:
        run.set_status("running")
        start = time.perf_counter()
        code = job(config, run)
        seconds = {} if config.search or config.experiment else {"seconds": time.perf_counter() - start}
        run.set_status("failed" if code else "done", **seconds)  # of a job that can have begun earlier: nobody knows
    return code


def _check(config: CheckConfig, run: "RunDirectory | None") -> int:
    """Checks, prints and writes; 1 if a check fails."""
    from tqdm import tqdm

    from theory import claims

    checks = []
    for claim_id in tqdm([config.claim] if config.claim else list(claims.CLAIMS), desc="claims", disable=None):
        checks.append(claims.check(claim_id, config.seed, config.trials))
        tqdm.write(_lines(checks[-1]))
    failed = [check.claim for check in checks if not check.holds]
    if not config.claim:
        print(f"\n{claims.summary()}")
    if run is not None:
        _write(run, checks)
        if config.figures and not config.claim:
            _draw(run, config.seed)
        print(f"files: {run.path}")
    print(f"checks failed: {', '.join(failed)}" if failed else "every check of ours holds")
    return launcher.EXIT_ERROR if failed else 0


def _lines(check: "Check") -> str:
    from theory import claims

    measured = (
        f"{check.measured:.4g} {check.relation} {check.bound:.4g}, slack {check.slack:.2g}, n = {check.instances}"
    )
    claim = claims.CLAIMS[check.claim]
    lines = [f"{check.claim:<27} {measured if check.instances else ''}", f"    {check.statement}"]
    lines.append(f"    printed statement: {check.verdict}")
    lines.append(f"    printed proof:     {claim.proof}")
    if claim.our_text:
        lines.append(f"    our text lost:     {claim.our_text}")
    if check.counterexample:
        lines.append(f"    {'shown' if check.holds else 'reason'}: {check.counterexample}")
    return "\n".join(lines)


def _write(run: "RunDirectory", checks: "list[Check]") -> None:
    """Writes results.csv and claims.md."""
    from identity_matters.runs.files import write_text
    from identity_matters.runs.tables import write_metrics
    from theory import claims

    rows = []
    for check in checks:
        claim = claims.CLAIMS[check.claim]
        judged = {"verdict": check.verdict, "proof": claim.proof, "our_text": claim.our_text, "source": claim.source}
        rows.append(check._asdict() | judged)
    write_metrics(run.file("results.csv"), rows)
    write_text(run.file("claims.md"), claims.markdown(checks))


def _draw(run: "RunDirectory", seed: int) -> None:
    """Writes NAME.csv and NAME.png for every figure of docs/theory.md."""
    from tqdm import tqdm

    from identity_matters.data.arrays import mnist_sample
    from identity_matters.runs.figures import save_figures
    from identity_matters.runs.tables import write_metrics
    from theory.figures import EXPERIMENTS

    digits = mnist_sample()
    images = digits.train_images[:500].reshape(500, -1) / 255
    experiments = {name: functools.partial(experiment, seed=seed) for name, experiment in EXPERIMENTS.items()}
    experiments["memorization"] = functools.partial(
        EXPERIMENTS["memorization"], images, digits.train_labels[:500], 10, seed=seed
    )
    for name in tqdm(experiments, desc="figures", disable=None):
        write_metrics(run.file(f"{name}.csv"), experiments[name]())
    save_figures(figures(run.path), run.path)


def figures(run_dir: str) -> "dict[str, Figure]":
    """Returns the figures whose data a run directory holds, by name."""
    from identity_matters.runs.tables import read_rows
    from launch import theory_descent
    from theory.figures import FIGURES
    from theory.relu.figures import relu_search_figure

    drawn = {}
    for name, figure in FIGURES.items():
        if rows := read_rows(os.path.join(run_dir, f"{name}.csv")):
            drawn[name] = figure(rows)
    if points := read_rows(os.path.join(run_dir, "points.csv")):
        rows = read_rows(os.path.join(run_dir, "results.csv"))
        drawn["relu_search"] = relu_search_figure(rows, points)
    return drawn | theory_descent.descent_figures(run_dir)


def _search(config: CheckConfig, run: "RunDirectory | None") -> int:
    """Searches, prints a row as it is done, and goes on where an interrupted search of this directory stopped."""
    from identity_matters.runs.figures import save_figures
    from identity_matters.runs.files import write_text
    from identity_matters.runs.tables import read_rows, reporting_damaged_table, write_metrics
    from theory.relu import figures as relu_figures
    from theory.relu import search as relu_search

    rows = read_rows(run.file("results.csv")) if run else []
    points = read_rows(run.file("points.csv"))[: len(rows) * config.trials] if rows else []
    with reporting_damaged_table(run.file("results.csv") if run else ""):
        for row in rows:
            print(_search_line(row))
    for row, found in relu_search.search(
        config.seed, config.trials, checks=max(5, config.trials // 40), skip=len(rows)
    ):
        rows, points = rows + [row], points + found
        print(_search_line(row), flush=True)
        if run:  # results.csv last: what it holds is what is done
            write_metrics(run.file("points.csv"), points)
            write_metrics(run.file("results.csv"), rows)
    if run:
        with reporting_damaged_table(run.file("results.csv")):
            write_text(run.file("search.md"), relu_figures.table(rows) + "\n")
            save_figures(figures(run.path), run.path)
        print(f"files: {run.path}")
    return 0


def _experiment(config: CheckConfig, run: "RunDirectory | None") -> int:
    from launch import theory_descent

    theory_descent.run_descent(config.seed, run)
    return 0


def _search_line(row: dict) -> str:
    from theory.relu.search import CATEGORIES

    count, low, high = (row[f"bad_local_minimum{end}"] for end in ("", "_low", "_high"))
    found = [f"{row[name]} {name.replace('_', ' ')}" for name in CATEGORIES if row[name]]
    setting = f"d {row['d']}, blocks {row['num_layers']}, width {row['width']}, m {row['samples']}, τ {row['radius']:g}"
    lines = f"{setting}, minimising {'f' if row['method'] == 'risk' else '‖∇f‖'}: {row['trials']} starts led to"
    bad = f"bad local minima {count / row['trials']:.1%} (95 %: {low:.1%} – {high:.1%})"
    return f"{lines}\n    {', '.join(found)}\n    {bad}"


def cli() -> None:
    """Runs the launcher on the command line's flags."""
    text = "Where the run's files go; without it nothing is written."
    launcher.run(main, {"": CheckConfig()}, manual=__doc__, needs_run_dir=False, run_dir_text=text)


if __name__ == "__main__":
    cli()
