"""Check every numbered claim of both papers numerically; claims that are false, by a counterexample.

    python -m launch.check_theory --run_dir=runs/theory

checks each claim on random instances and prints which printed statements are false, which checks
fail, and how many statements hold: a minute or two. Exit code 1 if a check fails. With a run directory
it writes results.csv, claims.md (for each claim the true form of the statement, the worst instance with
its bound, and the verdicts on the printed statement and proof), and the data (CSV) and the figures (PNG)
of docs/papers/theorems.md. The same command continues an interrupted run. --verbose prints a line for
each claim, --claim=hm.theorem_2.1 everything about one.

    python -m launch.check_theory --draw=identity_ball,memorized_plane,spectra --run_dir=runs/lecture

checks nothing and draws three figures for a lecture in a few seconds: the landscape around the identity
(Hardt & Ma, Theorem 2.2), a network that memorises points of the plane (Theorem 3.2), and the Hessian at
zero with shortcuts over 1, 2 and 3 layers (Li et al., Theorem 1).
"""

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tqdm import tqdm

from identity_matters.data.digits import mnist_sample
from identity_matters.errors import EXIT_ERROR, damaged_table, explaining, refused_value
from identity_matters.fields import check_fields, option, require, split_names
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.files import remove, write_text
from identity_matters.runs.job_table import Job, JobTable
from identity_matters.runs.tables import read_rows, write_metrics
from launch import launcher
from theory import claims

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class CheckConfig:
    """Which claims to check, and on how many instances.

    Attributes:
      claim: Check only the claim with this id, e.g. hm.theorem_2.1 (empty: all claims).
      trials: Random instances for each claim; claims that are slow or fast to check have fewer or more, in proportion.
      seed: Seed of the random instances.
      draw: Draw only these figures, by name with commas between them, and check nothing (empty: check, then draw all).
      figures: Also draw the figures if run_dir is given and all claims are checked.
      verbose: Print a line for each claim: its worst instance against its bound, and the verdict.
    """

    claim: str = ""
    trials: int = option(100, at_least=1)
    seed: int = option(0, at_least=0)
    draw: str = ""
    figures: bool = True
    verbose: bool = option(False, compared=False)

    def __post_init__(self) -> None:
        check_fields(self)
        require(not (self.claim and self.draw), "claim and draw exclude each other: a claim has no figure")


def main(config: CheckConfig, run_dir: str | None) -> int:
    """Checks the claims; returns the exit code, 1 if a check failed."""
    if config.draw:
        require(run_dir, "--draw needs a --run_dir, where the figures go")
        return _draw(config, str(run_dir))
    if config.claim:
        with explaining(refused_value):
            claims.claim_named(config.claim)
    if run_dir is None:
        return _check(config, None)
    with RunDirectory(run_dir, config, "check_theory") as run:
        if run.status != "running":  # a finished run is computed again: its code may have changed
            remove(run.file("results.csv"))
        run.set_status("running")
        start = time.perf_counter()
        code = _check(config, run)
        run.set_status("failed" if code else "done", seconds=time.perf_counter() - start)
    return code


def _draw(config: CheckConfig, run_dir: str) -> int:
    """Computes the data of the requested figures, and draws them."""
    experiments, names = _experiments(config.seed), split_names(config.draw)
    unknown = ", ".join(name for name in names if name not in experiments)
    require(
        names and not unknown, f"draw names no figure {unknown or config.draw!r}; there are {', '.join(experiments)}"
    )
    with RunDirectory(run_dir, config, "check_theory") as run:
        run.set_status("running")
        for name in names:
            write_metrics(run.file(f"{name}.csv"), experiments[name]())
        print("\n".join(_save(run)))
        run.set_status("done")
    return 0


def _save(run: RunDirectory) -> list[str]:
    """Draws the figures whose data a run has; returns their paths."""
    from identity_matters.runs.figures import save_figures

    return save_figures(lambda: figures(run.path), run.path)


def _check(config: CheckConfig, run: RunDirectory | None) -> int:
    """Checks the claims, prints and writes the results; returns 1 if a check fails."""
    ids = [config.claim] if config.claim else list(claims.CLAIMS)
    drawn = _experiments(config.seed) if run and config.figures and not config.claim else {}
    with tqdm(total=len(ids) + len(drawn), desc="claims", disable=None) as bar:
        checks = []
        for check in _checks(config, ids, run):
            checks.append(check)
            if config.verbose:
                tqdm.write(f"{_measured(check)}  {check.verdict}")
            bar.update()
        if run is not None:
            write_text(run.file("claims.md"), claims.markdown(checks))
        bar.set_description("figures")
        for name, experiment in drawn.items():
            write_metrics(run.file(f"{name}.csv"), experiment())
            bar.update()
    if drawn:
        _save(run)
    print(_lines(checks[0]) if config.claim else _summary(checks))
    if run is not None:
        print(f"files: {run.path}")
    failed = [check.claim for check in checks if not check.holds]
    print(f"checks failed: {', '.join(failed)}" if failed else "all checks pass")
    return EXIT_ERROR if failed else 0


def _checks(config: CheckConfig, ids: list[str], run: RunDirectory | None) -> Iterator[claims.Check]:
    """Yields the checks of the claims of these ids, from the run's table where it has them."""
    path = run.file("results.csv") if run else None
    table = JobTable(path)
    for claim_id in ids:
        (row,) = table.run(Job({"claim": claim_id}, functools.partial(_row, claim_id, config), num_rows=1))
        with explaining(damaged_table(path or "")):  # a row of an earlier call may lack columns
            fields = {name: row[name] for name in claims.Check._fields}
            yield claims.Check(**fields | {"holds": str(row["holds"]) == "True"})  # text in the file


def _row(claim_id: str, config: CheckConfig, progress: object = None) -> list[dict]:
    """Returns the row of a claim: the result of its check, and the verdicts on the printed text."""
    check, claim = claims.check(claim_id, config.seed, config.trials), claims.CLAIMS[claim_id]
    return [check._asdict() | {"verdict": check.verdict, "proof": claim.proof, "source": claim.source}]


def _measured(check: claims.Check) -> str:
    """Returns the id of a check's claim and its worst instance."""
    numbers = f"{check.measured:.4g} {check.relation} {check.bound:.4g}, slack {check.slack:.2g}, n = {check.instances}"
    return f"{check.claim:<32} {numbers if check.instances else ''}"


def _lines(check: claims.Check) -> str:
    """Returns everything about one claim."""
    claim = claims.CLAIMS[check.claim]
    lines = [_measured(check), f"    {check.statement}"]
    lines.append(f"    printed statement: {check.verdict}")
    lines.append(f"    printed proof:     {claim.proof}")
    if check.counterexample:
        lines.append(f"    {'evidence' if check.holds else 'reason'}: {check.counterexample}")
    return "\n".join(lines)


def _summary(checks: list[claims.Check]) -> str:
    """Returns which printed statements are false, which checks failed and why, and how many statements hold."""
    lines = [f"{check.claim:<32} {check.verdict}" for check in checks if check.holds and claims.is_false(check.claim)]
    lines += [f"{check.claim:<32} {check.verdict}: {check.counterexample}" for check in checks if not check.holds]
    return "\n".join([*lines, "", claims.summary()])


def _experiments(seed: int) -> dict[str, Callable[[], list[dict]]]:
    """Returns the functions that compute the data of each figure of docs/papers/theorems.md, by name."""
    from theory.figures import EXPERIMENTS

    digits = mnist_sample()
    images = digits.train_images[:500].reshape(500, -1) / 255
    experiments = {name: functools.partial(experiment, seed=seed) for name, experiment in EXPERIMENTS.items()}
    experiments["memorization"] = functools.partial(
        EXPERIMENTS["memorization"], images, digits.train_labels[:500], 10, seed=seed
    )
    return experiments


def figures(run_dir: str) -> "dict[str, Figure]":
    """Returns the figures whose data a run directory holds, by name."""
    from theory.figures import FIGURES

    tables = {name: read_rows(os.path.join(run_dir, f"{name}.csv")) for name in FIGURES}
    return {name: FIGURES[name](rows) for name, rows in tables.items() if rows}


cli = launcher.command(main, {"": CheckConfig()}, manual=__doc__, needs_run_dir=False)

if __name__ == "__main__":
    cli()
