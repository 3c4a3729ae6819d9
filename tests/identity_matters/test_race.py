"""Several commands started at once in one new directory: config.json says the config of the one that ran."""

import faulthandler
import multiprocessing
import os
import pathlib
import random
import time

import pytest
from begun import read_config_json

from identity_matters.config import TrainConfig
from identity_matters.errors import UserError
from identity_matters.runs import directory
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.record import read_record

TRIALS = 100
PATIENCE = 120  # seconds


def run_once(path, seed, chance):
    """A command in small: it looks at the directory, takes its time, and writes its seed once it has begun."""
    try:
        run = RunDirectory(path, TrainConfig(seed=seed))
        time.sleep(chance.uniform(0, 0.002))
        with run:
            time.sleep(chance.uniform(0, 0.002))
            run.set_status("running")
            with open(run.file("results.csv"), "a") as file:
                file.write(f"{seed}\n")
    except UserError as error:
        assert "another process" in str(error) or "another config" in str(error), error


def run_all(paths, seed, gate):
    """Starts in one directory after the other, at the same moment as the other processes; a traceback shows a hang."""
    chance = random.Random(seed)
    for path in paths:
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        gate.wait(PATIENCE)
        run_once(path, seed, chance)
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [(1, 2), (1, 2, 3, 4)])
def test_of_commands_of_different_configs_one_runs_and_config_json_is_its(tmp_path, seeds):
    paths = [str(tmp_path / str(number)) for number in range(TRIALS)]
    # Not "fork": a copy of this process, which has TensorFlow's threads, may wait for a lock that nobody will release.
    context = multiprocessing.get_context("spawn")
    gate = context.Barrier(len(seeds))
    processes = [context.Process(target=run_all, args=(paths, seed, gate)) for seed in seeds]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    won = []
    for path in paths:
        won.append(read_config_json(path)["config"]["seed"])
        assert pathlib.Path(path, "results.csv").read_text() == f"{won[-1]}\n"
    assert set(won) == set(seeds)


def test_run_that_begins_between_two_directory_checks_is_a_run_not_a_foreign_file(tmp_path, monkeypatch):
    """Whatever is looked at first, names or config.json, the run of another command begins right after that look."""
    path, looks = tmp_path / "run", []

    def looking(look):
        def seen(where):
            found = look(where)
            if str(where) == str(path) and not looks:
                looks.append(look)
                with RunDirectory(str(path), TrainConfig(seed=1)) as run:
                    run.set_status("running")
            return found

        return seen

    monkeypatch.setattr(directory, "read_record", looking(read_record))
    monkeypatch.setattr(directory.os, "listdir", looking(os.listdir))
    path.mkdir()
    with pytest.raises(UserError, match=r"another config .*seed \(1, 2\)"):
        RunDirectory(str(path), TrainConfig(seed=2))
    assert len(looks) == 1 and RunDirectory(str(path), TrainConfig(seed=1)).is_begun
