"""Check every numbered claim of both papers numerically; claims that are false, by a counterexample.

    python -m launch.check_theory --run_dir=runs/theory

checks each claim on random instances and prints which printed statements are false, which checks
fail, and how many statements hold: a minute or two. Exit code 1 if a check fails. With a run
directory it writes results.csv, claims.md (for each claim the true form of the statement, the worst
instance with its bound, and the verdicts on the printed statement and proof), and the data (CSV)
and the figures (PNG) of docs/papers/theorems.md. The same command continues an interrupted run.
--verbose prints each claim's worst case, --claim=hm.theorem_2.1 everything about one.

    python -m launch.check_theory --draw=identity_ball,memorized_plane,spectra --run_dir=runs/lecture

checks nothing and draws three figures for a lecture in a few seconds: the landscape around the
identity (Hardt & Ma, Theorem 2.2), a network that memorises points of the plane (Theorem 3.2), and
the Hessian at zero with shortcuts over 1, 2 and 3 layers (Li et al., Theorem 1).
"""

import dataclasses
import functools
import os
from collections.abc import Callable

from identity_matters.data.digits import mnist_sample
from identity_matters.errors import UserError, as_user_error, translate_errors
from identity_matters.fields import check_fields, option, split_names
from identity_matters.runs.job_table import Job
from identity_matters.runs.tables import read_rows
from launch import launcher
from launch.experiment import Experiment, Figures, Report, run
from theory import claims


@dataclasses.dataclass(frozen=True)
class CheckConfig:
    """Which claims to check, and on how many instances.

    Attributes:
      claim: Check only the claim with this id, e.g. hm.theorem_2.1 (empty: all claims).
      trials: Random instances for each claim; claims that are slow or fast to check have fewer or more, in proportion.
      seed: Seed of the random instances.
      draw: Draw only these figures, by name with commas between them, and check nothing (empty: check, then draw all).
      figures: Also draw the figures if run_dir is given and all claims are checked.
      verbose: Print each claim's worst instance against its bound, and the verdict.
    """

    claim: str = ""
    trials: int = option(100, at_least=1)
    seed: int = option(0, at_least=0)
    draw: str = ""
    figures: bool = True
    verbose: bool = option(False, compared=False)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.claim and self.draw:
            raise UserError("claim and draw exclude each other: a claim has no figure")


def main(config: CheckConfig, run_dir: str | None = None) -> int:
    """Checks the claims, or only draws figures; returns the exit code, 1 if a check failed."""
    names = split_names(config.draw)
    if config.draw and not run_dir:
        raise UserError("--draw needs a --run_dir for the figures")
    if config.claim:
        ids = [config.claim]
        with translate_errors(as_user_error):
            claims.claim_named(config.claim)
    else:
        ids = [] if config.draw else list(claims.CLAIMS)
    has_figures = run_dir and (config.draw or config.figures and not config.claim)
    data = _experiments(config.seed) if has_figures else {}
    if config.draw:
        unknown = [name for name in names if name not in data]
        if unknown or not names:
            raise UserError(f"draw names no figure {', '.join(unknown) or config.draw!r}; there are {', '.join(data)}")
        data = {name: experiment for name, experiment in data.items() if name in names}

    def line(_: Job, rows: list[dict]) -> str:
        (check,) = _checks(rows)  # even if nothing is printed: a row of an earlier call may lack columns
        worst = f"{check.measured:.4g} {check.relation} {check.bound:.4g}, slack {check.slack:.2g}"
        numbers = f"{worst}, n = {check.instances}" if check.instances else ""
        return f"{check.claim:<32} {numbers}  {check.verdict}" if config.verbose else ""

    def report(_: object, rows: list[dict]) -> Report:
        if config.draw:
            return Report("\n".join(os.path.join(str(run_dir), f"{name}.png") for name in data), print_run_dir=False)
        checks = [check for check in _checks(rows) if check.claim in ids]
        failed = [check.claim for check in checks if not check.holds]
        return Report(
            _lines(checks[0]) if config.claim else _summary(checks),
            f"checks failed: {', '.join(failed)}" if failed else "all checks pass",
            files={"claims.md": claims.markdown(checks)},
            failed=bool(failed),
        )

    jobs = [Job({"claim": claim_id}, functools.partial(_row, claim_id, config), claim_id, 1) for claim_id in ids]
    experiment = Experiment(
        "check_theory", {"results.csv": jobs}, figures, report, line, figure_data=data, rerun_when_done=True
    )
    return run(experiment, config, run_dir)


def _row(claim_id: str, config: CheckConfig, progress: object = None) -> list[dict]:
    """Returns the row of a claim: the result of its check, and the verdicts on the printed text."""
    check = claims.check(claim_id, config.seed, config.trials)
    claim = claims.CLAIMS[claim_id]
    return [check._asdict() | {"verdict": check.verdict, "proof": claim.proof, "source": claim.source}]


def _checks(rows: list[dict]) -> list[claims.Check]:
    """Returns the checks in rows from memory, or from a file, in which True is a text."""
    fields = ({name: row[name] for name in claims.Check._fields} for row in rows)
    return [claims.Check(**values | {"holds": str(values["holds"]) == "True"}) for values in fields]


def _lines(check: claims.Check) -> str:
    """Returns everything about one claim."""
    claim = claims.CLAIMS[check.claim]
    lines = [f"{check.claim}: {check.statement}", f"    compared:          {claim.compared}"]
    if check.instances:
        worst = f"{check.measured:.4g}, which must be {check.relation} {check.bound:.4g}"
        lines.append(f"    nearest to fail:   {worst}; of {check.instances} pairs of numbers")
        lines.append(f"    slack:             {check.slack:.2g}, their distance over the larger; below 0 it fails")
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


def figures(run_dir: str) -> Figures:
    """Returns the figures whose data a run directory holds, by name."""
    from theory.figures import FIGURES

    tables = {name: read_rows(os.path.join(run_dir, f"{name}.csv")) for name in FIGURES}
    return {name: FIGURES[name](rows) for name, rows in tables.items() if rows}


cli = launcher.command(main, {"": CheckConfig()}, manual=__doc__, run_dir="optional")

if __name__ == "__main__":
    cli()
