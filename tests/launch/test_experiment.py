"""The spine of commands that compute jobs: a command of a page that uses it, then every command of the package.

test_hessian_spectrum.py and test_ablations.py have their own such tests.
"""

import dataclasses
import functools
import json
import multiprocessing
import os
import shutil
import signal
import types

import numpy as np
import pytest
from begun import edit
from launching import launched
from matplotlib.figure import Figure
from tiny_studies import FLAGS, load_three_digits

from identity_matters.errors import UserError
from identity_matters.fields import Checked, option
from identity_matters.runs import record
from identity_matters.runs.job_table import Job
from identity_matters.runs.tables import read_rows, write_metrics
from launch import experiment, launcher, shortcut_study
from launch.experiment import Experiment, Report
from theory import figures
from theory.descent import figures as descent_figures
from theory.descent import target_map
from theory.relu import figures as relu_figures
from theory.relu import search

# A whole command: a module has no more, but for its docstring.


@dataclasses.dataclass(frozen=True)
class SquaresConfig(Checked):
    """Which numbers to square.

    Attributes:
      count: How many.
      fails: Whether the check fails.
    """

    count: int = option(3, at_least=1)
    fails: bool = False


def main(config: SquaresConfig, run_dir: str | None = None, **options) -> int:
    jobs = [Job({"number": k}, functools.partial(square, k), f"the square of {k}", 1) for k in range(config.count)]
    data = {"cubes": lambda: [{"number": k, "cube": k**3} for k in range(config.count)]}
    squares = Experiment("squares", {"results.csv": jobs}, draw, report, line, figure_data=data, **options)
    return experiment.run(squares, config, run_dir)


def square(number, progress):
    progress(0.5)
    return [{"square": number**2}]


def draw(run_dir):
    assert read_rows(f"{run_dir}/results.csv") and read_rows(f"{run_dir}/cubes.csv")
    return {"parabola": Figure()}


def line(job, rows):
    return f"{job.label} is {rows[0]['square']}"


def report(run, rows):
    total = sum(row["square"] for row in rows)
    return Report(f"sum {total}", "verdict", {"sum.md": f"{total}\n"}, {"num_examples": total})


# The tests of it.


@pytest.fixture
def squares(tmp_path, monkeypatch):
    """Registers the command, which takes a single call; returns the directory for its run."""
    monkeypatch.setattr(record, "RUN_TYPES", (*record.RUN_TYPES, "squares"))
    return str(tmp_path / "run")


def contents(run_dir):
    with open(f"{run_dir}/config.json") as file:
        return json.load(file)


def status(run_dir):
    return contents(run_dir)["status"]


def test_it_prints_writes_draws_and_a_second_call_says_that_it_is_finished(squares, capsys):
    assert main(SquaresConfig(), squares) == 0
    first = capsys.readouterr().out
    assert first.splitlines() == [
        "the square of 0 is 0", "the square of 1 is 1", "the square of 2 is 4", "sum 5", f"files: {squares}", "verdict"
    ]  # fmt: skip
    names = {"config.json", "results.csv", "cubes.csv", "parabola.png", "sum.md", ".lock"}
    assert set(os.listdir(squares)) == names and status(squares) == "done"
    assert contents(squares)["num_examples"] == 5
    assert main(SquaresConfig(), squares) == 0
    assert capsys.readouterr().out == f"{squares} is already finished; its results:\n{first}"


def test_the_seconds_are_those_of_the_last_call_that_computed_something(squares, monkeypatch, capsys):
    times = iter([10.0, 13.54, 100.0, 200.0, 201.54])
    monkeypatch.setattr(experiment, "time", types.SimpleNamespace(monotonic=lambda: next(times)))
    main(SquaresConfig(), squares)
    assert contents(squares)["seconds"] == 3.5
    main(SquaresConfig(), squares)
    assert contents(squares)["seconds"] == 3.5
    os.remove(f"{squares}/cubes.csv")
    capsys.readouterr()
    main(SquaresConfig(), squares)
    assert "already finished" not in capsys.readouterr().out
    assert contents(squares)["seconds"] == 1.5


def test_without_a_run_directory_it_writes_nothing_and_draws_nothing(squares, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(f"{__name__}.draw", lambda run_dir: pytest.fail("drawn"))
    assert main(SquaresConfig()) == 0
    assert capsys.readouterr().out.splitlines()[3:] == ["sum 5", "verdict"] and not os.listdir(tmp_path)


def run_until_killed(run_dir, last):
    """Runs the experiment in a separate process, which SIGKILL ends during a job."""
    whole = square
    globals()["square"] = lambda *job: os.kill(os.getpid(), signal.SIGKILL) if job[0] == last else whole(*job)
    main(SquaresConfig(), run_dir)


@pytest.mark.parametrize("last", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_run_continues_behind_its_last_whole_job(squares, monkeypatch, capsys, last):
    computed, whole = [], square
    monkeypatch.setattr(f"{__name__}.square", lambda *job: computed.append(job[0]) or whole(*job))
    process = multiprocessing.get_context("spawn").Process(target=run_until_killed, args=(squares, last))
    process.start()  # not a fork, which macOS and threads of TensorFlow can end
    process.join()
    assert process.exitcode == -signal.SIGKILL
    if last:
        assert status(squares) == "running" and len(read_rows(f"{squares}/results.csv")) == last
    else:
        assert not os.path.exists(f"{squares}/config.json")  # it has not begun before its first job ends
    main(SquaresConfig(), squares)
    assert computed == [*range(last, 3)]
    assert "already finished" not in capsys.readouterr().out and status(squares) == "done"


def test_what_a_job_refuses_at_once_leaves_no_run(squares, monkeypatch):
    def refuse(number, progress):
        raise UserError("no squares")

    monkeypatch.setattr(f"{__name__}.square", refuse)
    with pytest.raises(UserError, match="no squares"):
        main(SquaresConfig(), squares)
    assert not os.path.exists(squares)


def test_a_check_that_fails_is_exit_code_1_and_status_failed(squares, monkeypatch):
    monkeypatch.setattr(f"{__name__}.report", lambda *_: Report("wrong", failed=True))
    assert main(SquaresConfig(), squares) == 1 and status(squares) == "failed"


def test_a_check_of_code_is_computed_again_once_it_has_ended(squares, monkeypatch, capsys):
    main(SquaresConfig(), squares, rerun_when_done=True)
    monkeypatch.setattr(f"{__name__}.square", lambda number, progress: [{"square": -1}])
    main(SquaresConfig(), squares, rerun_when_done=True)
    assert "sum -3" in capsys.readouterr().out


def test_a_table_of_an_earlier_call_that_cannot_be_used_is_named_and_left(squares, monkeypatch):
    main(SquaresConfig(), squares)
    write_metrics(f"{squares}/results.csv", [{"number": k} for k in range(3)])
    with pytest.raises(RuntimeError, match="cannot use the rows of .*/run/results.csv"):
        main(SquaresConfig(), squares)
    assert status(squares) == "done" and read_rows(f"{squares}/results.csv") == [{"number": k} for k in range(3)]
    monkeypatch.setattr(f"{__name__}.square", lambda *_: [{}])
    for run_dir in (None, f"{squares}_again"):
        with pytest.raises(KeyError):
            main(SquaresConfig(), run_dir)


def test_it_is_a_command(squares, monkeypatch, capsys):
    monkeypatch.setattr(launcher.signals, "leave", lambda code: (_ for _ in ()).throw(SystemExit(code)))
    for flags, code, words in (
        (["--help"], 0, "without it nothing is written"),
        ([f"--run_dir={squares}", "--count=2"], 0, "sum 1"),
        ([f"--run_dir={squares}"], 1, "count (2, 3)"),
    ):
        monkeypatch.setattr("sys.argv", ["squares", *flags])
        with pytest.raises(SystemExit) as ended:
            launcher.command(main, {"": SquaresConfig()}, manual="Square numbers.", run_dir="optional")()
        assert ended.value.code == code and words in " ".join("".join(capsys.readouterr()).split())


# Every command: its flags, its tables of jobs, and whether a finished run is computed again.
COMMANDS = {
    "check_theory": (["--claim=review.eq_6", "--trials=2"], ["results.csv"], True),
    "relu_search": (["--trials=1"], ["results.csv", "points.csv"], False),
    "descent_map": ([], ["results.csv", "excess_by_radius.csv"], False),
    "shortcut_study": (["--figure=5", *FLAGS], ["results.csv"], False),
    "near_identity": ([], ["results.csv", "removed.csv"], False),
}
TABLES = [(name, table) for name, (_, tables, _) in COMMANDS.items() for table in tables]


@pytest.fixture(scope="module")
def small():
    """Fewer jobs and figures of the long commands."""
    cells = [target_map.Job(target, "zero", "descent", depth, 6) for target, depth in (("rotated", 1), ("singular", 2))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "SETTINGS", search.SETTINGS[:1])
        patch.setattr(target_map, "jobs", lambda: cells)
        patch.setattr(target_map, "run_job", functools.partial(target_map.run_job, max_steps=20))
        one = {"excess_by_radius": figures.DESCENT_EXPERIMENTS["excess_by_radius"]}
        patch.setattr(figures, "DESCENT_EXPERIMENTS", one)
        # These take seconds, and tests/theory draws them.
        patch.setattr(descent_figures, "map_figures", lambda rows: {"map": Figure()})
        patch.setattr(relu_figures, "relu_search_figure", lambda rows, points: Figure())
        patch.setattr(shortcut_study, "load_images", load_three_digits)
        yield


@pytest.fixture(scope="module")
def finished(small, tiny_blocks, tiny_study, tmp_path_factory):
    """finished(name): the directory of a finished run of a command, its flags, and its output. Read only."""

    @functools.cache
    def run(name):
        flags = COMMANDS[name][0]
        if name == "near_identity":
            return tiny_blocks
        if name == "shortcut_study":
            return tiny_study, flags, tiny_study.with_suffix(".out").read_text()
        run_dir = tmp_path_factory.mktemp(name) / "run"
        code, out, err = launched(name, f"--run_dir={run_dir}", *flags)
        assert code == 0, err
        return run_dir, flags, out

    return run


@pytest.fixture
def again(finished, launch, tmp_path):
    """again(name, change): a command's output on a changed copy of its finished run, and the copy."""

    def run(name, change=lambda run_dir: None, *more):
        run_dir, flags, _ = finished(name)
        copy = shutil.copytree(run_dir, tmp_path / "copy")
        change(copy)
        code, out, err = launch(name, f"--run_dir={copy}", *flags, *more)
        return types.SimpleNamespace(code=code, out=out, err=err, run_dir=copy)

    return run


@pytest.mark.parametrize("name", [name for name, (*_, rerun_when_done) in COMMANDS.items() if not rerun_when_done])
def test_a_finished_run_prints_its_results_and_computes_nothing(again, finished, name):
    run_dir, _, out = finished(name)
    before = {table: (run_dir / table).read_bytes() for table in COMMANDS[name][1]}
    ended = again(name)
    expected = f"{run_dir} is already finished; its results:\n{out}".replace(str(run_dir), str(ended.run_dir))
    assert (ended.code, ended.out) == (0, expected), ended.err
    assert {table: (ended.run_dir / table).read_bytes() for table in before} == before  # seconds and all
    drawn, redrawn = ({path.name for path in folder.glob("*.png")} for folder in (run_dir, ended.run_dir))
    assert drawn == redrawn and drawn


@pytest.mark.parametrize("name, table", [(name, table) for name, table in TABLES if name != "check_theory"])
def test_a_run_without_its_last_job_continues_to_the_same_rows(again, finished, name, table):
    """check_theory, of one job here, has it in test_check_theory.py."""
    rows = read_rows(str(finished(name)[0] / table))
    key = {"descent_map": "target", "shortcut_study": "job", "near_identity": "block", "relu_search": "method"}[name]
    kept = [row for row in rows if key in row and row[key] != rows[-1][key]]

    def lose(run_dir):
        edit(run_dir, status="running")
        if table == "points.csv":  # which is saved before the row that counts its points
            write_metrics(str(run_dir / "results.csv"), read_rows(str(run_dir / "results.csv"))[:-1])
        (run_dir / table).unlink()
        if kept:
            write_metrics(str(run_dir / table), kept)

    ended = again(name, lose)
    assert ended.code == 0 and "already finished" not in ended.out, ended.err
    continued = read_rows(str(ended.run_dir / table))
    np.testing.assert_equal(continued[: len(kept)], kept)  # with their seconds: no finished job is computed again
    assert len(continued) == len(rows)
    for row, expected in zip(continued, rows):
        for column, value in expected.items():
            is_time = "seconds" in column
            value = pytest.approx(value, rel=1e-5, nan_ok=True) if isinstance(value, float) else value
            assert is_time or row[column] == value, column


@pytest.mark.parametrize("name", COMMANDS)
def test_another_config_raises_a_short_error_and_changes_nothing(again, finished, name):
    flags = {"near_identity": ["--examples=41"], "shortcut_study": ["--num_runs=4"]}
    ended = again(name, lambda run_dir: None, *flags.get(name, ["--seed=7"]))
    *_, error = ended.err.splitlines()
    assert ended.code == 1 and not ended.out and "another config" in error
    for path in finished(name)[0].iterdir():
        assert (ended.run_dir / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name, table", TABLES)
def test_a_damaged_table_is_named(again, name, table):
    def damage(run_dir):
        edit(run_dir, status="running")
        (run_dir / "results.csv").unlink()  # points.csv is read only if a row is missing there
        (run_dir / table).write_text("step,loss\n1\n")

    ended = again(name, damage)
    *_, error = ended.err.splitlines()
    assert ended.code == 1 and error.startswith("error: ") and table in error
