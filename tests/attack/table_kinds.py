"""Damaged tables and config.json of runs, then launch.plot, launch.report and launch.train."""

import functools
import json
import pathlib
import shutil

import damage

from attack import command, kind, prepared
from attack.prepared import pick

ROOT = pathlib.Path(__file__).parents[2]


@functools.cache
def runs() -> list[pathlib.Path]:
    """Runs with tables: those of docs/runs, and one that was trained here."""
    return [prepared.run(), *sorted(path.parent for path in (ROOT / "docs" / "runs").glob("*/config.json"))]


def copied(random, folder) -> pathlib.Path:
    """A copy of one of them, without what is large."""
    shutil.copytree(
        pick(random, runs()), folder / "run", ignore=shutil.ignore_patterns("saved_model", "checkpoints", "events*")
    )
    return folder / "run"


def drawn(random, folder, run_dir) -> None:
    """Gives the run to a launcher that draws it."""
    if random.random() < 0.6:
        ended = command.run(folder, "plot", f"--run_dir={run_dir}")
    else:
        ended = command.run(folder, "report", f"--run_dir={folder / 'report'}", f"--runs={run_dir}")
        page = folder / "report" / "report.html"
        assert not page.exists() or "<script>alert" not in page.read_text()
    prepared.must_be_safe(ended, folder)


@kind("table: a cell, row, column or byte of a run's table, then drawn")
def tables(random, folder):
    run_dir = copied(random, folder)
    path = pick(random, sorted(run_dir.glob("*.csv")))
    if random.random() < 0.1:
        prepared.in_its_place(random, path)
    else:
        path.write_text(damage.damaged_table(random, path.read_text()), errors="surrogateescape")
    drawn(random, folder, run_dir)


@kind("config.json: a value of a run's, then drawn")
def records(random, folder):
    run_dir = copied(random, folder)
    path = run_dir / "config.json"
    if random.random() < 0.1:
        path.write_bytes(damage.flipped(random, path.read_bytes()))
    elif random.random() < 0.1:
        prepared.in_its_place(random, path)
    else:
        record = json.loads(path.read_text())
        for _ in range(random.integers(1, 4)):
            if isinstance(record, dict):
                record = prepared.with_hostile_value(random, record)
        path.write_text(json.dumps(record))
    drawn(random, folder, run_dir)


@kind("config.json or metrics.csv: a value of a finished run's, then the same command")
def finished(random, folder):
    shutil.copytree(prepared.run(), folder / "run")
    path = folder / "run" / pick(random, ["config.json", "metrics.csv"])
    if random.random() < 0.2:
        text = pick(random, list((damage.RECORDS if path.suffix == ".json" else damage.TABLES).values()))
        path.write_bytes(text.encode(errors="surrogateescape"))
    elif path.suffix == ".csv":
        path.write_text(damage.damaged_table(random, path.read_text()), errors="surrogateescape")
    else:
        path.write_text(json.dumps(prepared.with_hostile_value(random, json.loads(path.read_text()))))
    ended = command.run(folder, "train", f"--run_dir={folder / 'run'}", *prepared.TINY, memory=prepared.MEMORY)
    prepared.must_be_safe(ended, folder, codes=(0, 1, 3, 75))


@kind("config.json or model.keras: a stranger's run evaluated")
def evaluated(random, folder):
    shutil.copytree(prepared.run(), folder / "run")
    path = folder / "run" / "config.json"
    path.write_text(json.dumps(prepared.with_hostile_value(random, json.loads(path.read_text()))))
    name = pick(random, ["", "model.keras", "saved_model"])
    flags = [f"--saved_model={folder / 'run' / name}", "--max_examples=4"]
    prepared.must_be_safe(command.run(folder, "evaluate", *flags, memory=prepared.MEMORY), folder)
