"""Run directories and checkpoints: nothing is half-written, mixed up or believed when damaged."""

import contextlib
import errno
import json
import os
import shlex
import stat
import subprocess
import sys
import warnings

import numpy as np
import pytest
from begun import begin, newest_checkpoint, read_config_json
from refusals import refused

from identity_matters.cluster import Cluster
from identity_matters.config import DataConfig, ModelConfig, TrainConfig
from identity_matters.errors import UserError
from identity_matters.experiments.ablations import AblationConfig
from identity_matters.run import Run
from identity_matters.runs import checkpoint, directory, figures, tables
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.files import open_log, replacing
from identity_matters.runs.record import STATUSES, Record, differing, flat, read_record
from identity_matters.runs.tables import write_metrics

ARRAYS = {"a": np.arange(3.0), "b": np.int64(7)}


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError), replacing(str(path)) as temporary:
        open(temporary, "w").write("half of the n")
        raise RuntimeError
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_folder_survives_if_the_disk_fails_its_successor(tmp_path, monkeypatch, call):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").touch()
    calls, real = [], getattr(os, call)

    def full(*arguments):
        calls.append(arguments)
        if len(calls) == 2:  # of the renames the second: the old folder has given its name away
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space left on device"), replacing(f"{tmp_path}/folder") as temporary:
        os.mkdir(temporary)
        open(os.path.join(temporary, "new"), "w").close()
    assert os.listdir(tmp_path) == ["folder"] and os.listdir(tmp_path / "folder") == ["old"]


def test_content_is_on_the_disk_before_its_name_and_the_name_afterwards(tmp_path, monkeypatch):
    """Else config.json could say "done" after a power cut, and model.keras be empty."""
    done, fsync, replace = [], os.fsync, os.replace
    path_of = lambda number: os.readlink(f"/proc/self/fd/{number}")  # noqa: E731
    monkeypatch.setattr(os, "fsync", lambda number: done.append(path_of(number)) or fsync(number))
    monkeypatch.setattr(os, "replace", lambda *paths: done.append("renamed") or replace(*paths))
    with replacing(f"{tmp_path}/folder") as temporary:
        os.makedirs(os.path.join(temporary, "inner"))
        open(os.path.join(temporary, "inner", "file"), "w").write("content")
    assert set(done[:3]) == {temporary, f"{temporary}/inner", f"{temporary}/inner/file"}
    assert done[3:] == ["renamed", str(tmp_path)]
    done.clear()
    with replacing(f"{tmp_path}/file") as temporary:
        open(temporary, "w").write("content")
    assert done == [temporary, "renamed", str(tmp_path)]


def test_half_written_files_of_a_killed_process_are_removed(tmp_path):
    begin(tmp_path, TrainConfig())
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / ".tmp123_step_00000001.npz").write_text("half")
    (tmp_path / ".tmp123_saved_model" / "variables").mkdir(parents=True)
    with RunDirectory(str(tmp_path), TrainConfig()):
        assert not list(tmp_path.rglob(".tmp*"))


def test_a_new_directory_whose_run_is_rejected_is_removed_and_no_other_one(tmp_path):
    for folder, is_there in (("new", False), ("empty", True)):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(UserError), RunDirectory(str(tmp_path / folder), TrainConfig()):
            raise UserError("there is no such network")
        assert (tmp_path / folder).exists() == is_there
    with RunDirectory(str(tmp_path / "new"), TrainConfig()) as run:
        run.set_status("running")
    assert (tmp_path / "new" / "config.json").exists()
    with pytest.raises(UserError), RunDirectory(str(tmp_path / "log"), TrainConfig()):
        (tmp_path / "log" / "workers.log").write_text("refused")
        raise UserError("there is no such network")
    assert (tmp_path / "log" / "workers.log").read_text() == "refused"


def test_files_of_others_are_kept(tmp_path):
    begin(tmp_path, TrainConfig())
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").touch()
    kept = [".tmp", ".tmp_notes", ".tmp12", ".tmpfile", ".tmp12a_x", "notes.tmp1_x", "checkpoints/.tmp-5_x"]
    (tmp_path / "checkpoints").mkdir()
    for name in kept:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".tmp7_link").symlink_to(tmp_path / "outside")
    with RunDirectory(str(tmp_path), TrainConfig()):
        assert all((tmp_path / name).read_text() == "mine" for name in kept)
        assert not (tmp_path / ".tmp7_link").is_symlink() and (tmp_path / "outside" / "file").exists()


def test_the_lock_neither_follows_a_link_nor_empties_a_file(tmp_path):
    target = tmp_path / "precious"
    target.write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(target)
    with pytest.raises(UserError, match="cannot write to run_dir .*symbolic links"):
        begin(tmp_path / "run", TrainConfig())
    (tmp_path / "run" / ".lock").unlink()
    (tmp_path / "run" / ".lock").write_text("mine")
    begin(tmp_path / "run", TrainConfig())
    assert target.read_text() == (tmp_path / "run" / ".lock").read_text() == "mine"


def test_a_lock_that_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / ".lock")
    with contextlib.suppress(UserError):
        begin(tmp_path, TrainConfig())


@pytest.mark.parametrize(
    "name, is_refused", [("notes.txt", True), ("folder", True), (".DS_Store", False), ("workers.log", False)]
)
def test_a_directory_of_files_that_are_no_run_is_rejected(tmp_path, name, is_refused):
    (tmp_path / name).mkdir() if name == "folder" else (tmp_path / name).touch()
    if is_refused:
        with pytest.raises(UserError, match=f"holds '{name}' but no config.json of a run; choose another"):
            RunDirectory(str(tmp_path), TrainConfig())
    else:
        begin(tmp_path, TrainConfig())
    assert (tmp_path / name).exists()


@pytest.mark.parametrize("address", ["s3://bucket/run", "file:///tmp/run", "s3:/run"])
def test_an_address_is_no_run_directory(tmp_path, monkeypatch, address):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="is a URL, not a directory: mount"):
        begin(address, TrainConfig())
    assert os.listdir(tmp_path) == []


def test_without_a_run_there_is_no_config_json(tmp_path):
    """A mistake that is found after the directory was opened does not refuse the corrected command."""
    with pytest.raises(RuntimeError), RunDirectory(str(tmp_path), TrainConfig(seed=1)):
        raise RuntimeError("a mistake found late")
    begin(tmp_path, TrainConfig(seed=2))
    contents = read_config_json(str(tmp_path))
    assert contents["config"]["seed"] == 2
    assert shlex.split(contents["command"]) == [os.path.basename(sys.executable), *sys.orig_argv[1:]]


def test_unfinished_files_are_private_to_this_user_and_a_log_is_not(tmp_path):
    with replacing(f"{tmp_path}/file") as temporary:
        assert stat.S_IMODE(os.stat(os.path.dirname(temporary)).st_mode) == 0o700
        open(temporary, "w").close()
    before = os.umask(0)
    try:
        open_log(f"{tmp_path}/log").close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(tmp_path / "log").st_mode) == 0o666


def test_a_second_process_is_kept_out(tmp_path):
    with RunDirectory(str(tmp_path), TrainConfig()):
        script = (
            "import sys; from identity_matters.config import TrainConfig\n"
            "from identity_matters.runs.directory import RunDirectory\n"
            "RunDirectory(sys.argv[1], TrainConfig()).__enter__()"
        )
        done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True)
    assert done.returncode != 0 and f"another process is writing to run_dir {tmp_path}" in done.stderr
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_workers_wait_for_the_lock_of_the_chief_before_them_and_see_what_it_did(tmp_path, monkeypatch, capsys):
    before = RunDirectory(str(tmp_path), TrainConfig())
    after = RunDirectory(str(tmp_path), TrainConfig(), lock_timeout=180)
    before.__enter__()
    looked = []

    def end(_):
        looked.append(1)
        if len(looked) == 2:  # which is said once
            before.set_status("diverged", diverged_at_step=3)
            before.__exit__()

    monkeypatch.setattr(directory.time, "sleep", end)
    with after:
        assert after.status == "diverged" and after.record.diverged_at_step == 3
    waiting = f"another process is writing to run_dir {tmp_path}; waiting up to 180 seconds for it to end\n"
    assert capsys.readouterr().err == waiting


@pytest.mark.parametrize("tf_config", [None, "{}"])
def test_a_job_of_one_worker_waits_for_the_lock_of_its_last_try_too(tmp_path, monkeypatch, tf_config):
    if tf_config:
        monkeypatch.setenv("TF_CONFIG", tf_config)
    waited = []
    with RunDirectory(str(tmp_path), TrainConfig()) as earlier:

        def end(_):
            waited.append(1)
            earlier.__exit__()

        monkeypatch.setattr(directory.time, "sleep", end)
        with contextlib.nullcontext() if tf_config else pytest.raises(UserError, match="another process is writing"):
            with Run.open(str(tmp_path), TrainConfig(), Cluster(), ""):
                pass
    assert bool(waited) == bool(tf_config)


@pytest.mark.parametrize(
    ("backend", "results"), [("tensorflow", ("model.keras", "saved_model")), ("jax", ("model.keras",))]
)
def test_a_done_run_that_has_lost_a_result_has_something_left_to_do(tmp_path, monkeypatch, backend, results):
    monkeypatch.setattr("keras.backend.backend", lambda: backend)
    columns = ("step", "loss", "learning_rate", "train_top1_error", "test_top1_error")

    def final_row():
        with Run.open(str(tmp_path), TrainConfig(), Cluster(), "") as run:
            return run.final_row

    begin(tmp_path, TrainConfig(), status="done")
    write_metrics(str(tmp_path / "metrics.csv"), [dict.fromkeys(columns, 1)])
    checkpoint.save(str(tmp_path / "checkpoints"), {"step": np.int64(1)})
    for name in results:
        (tmp_path / name).touch()
    assert final_row()["step"] == 1
    for name in results:
        (tmp_path / name).unlink()
        assert final_row() is None
        (tmp_path / name).touch()
    (tmp_path / "model.keras").unlink()
    os.remove(tmp_path / "checkpoints" / "step_00000001.npz")
    assert "holds a run of 1 steps without its checkpoints" in refused(final_row)


def test_a_file_system_without_locks_is_a_short_error(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(UserError, match=f"cannot lock run_dir {tmp_path}: No locks available"):
        with RunDirectory(str(tmp_path), TrainConfig()):
            pass


def test_a_run_records_its_paths_as_absolute_ones(tmp_path, monkeypatch):
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "data.npz").touch()
    monkeypatch.chdir(tmp_path / "start")
    begin("run", TrainConfig(data=DataConfig(npz="data.npz"), init_from="digits"))
    config = read_record("run").config_as(TrainConfig())
    assert (config.data.npz, config.init_from) == (str(tmp_path / "start" / "data.npz"), "digits")
    monkeypatch.chdir(tmp_path)
    begin("start/run", TrainConfig(data=DataConfig(npz="start/data.npz"), init_from="digits"))


def test_an_error_names_the_file_that_was_to_be_written(tmp_path):
    with pytest.raises(OSError, match=f"cannot write {tmp_path}/missing/file: No such file"):
        with replacing(f"{tmp_path}/missing/file") as temporary:
            open(temporary, "w")


def test_a_run_resumes_after_its_data_have_moved(tmp_path):
    begin(tmp_path, TrainConfig(data=DataConfig(data_dir="here", download=True)))
    begin(tmp_path, TrainConfig(data=DataConfig(data_dir="there", download=True)))
    assert json.loads((tmp_path / "config.json").read_text())["config"]["data"]["data_dir"] == "there"
    message = refused(RunDirectory, str(tmp_path), TrainConfig(seed=1, model=ModelConfig(weight_decay=0.0)))
    assert "config (old, new): model.weight_decay (0.0001, 0.0); " in message and "seed (0, 1)" in message


def test_the_last_row_of_a_run_is_its_end_unless_its_config_json_says_otherwise():
    rows = [{"step": 1000}, {"step": 2000}]
    labels = [Record("train", {}, status=status).final_row_label(rows) for status in STATUSES]
    assert labels == ["at step 2,000", "at the end", "at step 2,000, before it diverged", "at step 2,000"]
    assert Record("train", {}, status="failed").final_row_label([]) == "at the end"


def test_configs_are_told_apart_by_the_fields_that_differ():
    one, two = flat({"a": 1, "b": {"c": 2, "d": {"e": [3]}}}), flat({"a": 1, "b": {"c": 4, "d": {"e": [3]}}, "f": None})
    assert one == {"a": 1, "c": 2, "e": [3]} and two == {"a": 1, "c": 4, "e": [3], "f": None}
    assert differing([one, two, one]) == ["c"] and differing([one]) == []


HALF = directory.MAX_REPR // 2


@pytest.mark.parametrize(
    "old, new, found",
    [
        ({"a": 1, "b": 2}, {"b": 3, "c": "x\ny"}, ["a (1, None)", "b (2, 3)", r"c (None, 'x\ny')"]),
        ({"a": 1, "d": {"e": 2, "f": 4}}, {"a": 1, "d": {"e": 3, "f": 5}}, ["d.e (2, 3)"]),
        ({"d": {"e": 2}}, {"d": 2}, ["d ({'e': 2}, 2)"]),
        ({"a": HALF * "p" + "ab"}, {"a": HALF * "p" + "b"}, [f"a ({HALF * 'p'}ab, {HALF * 'p'}b)"]),
        ({"a": (HALF + 1) * "p" + "a"}, {"a": (HALF + 1) * "p" + "b"}, [f"a (…{HALF * 'p'}a, …{HALF * 'p'}b)"]),
        (
            {"a": HALF * "pqp" + "a"},
            {"a": HALF * "pqp"},
            [f"a (…{(HALF * 'pqp')[-HALF:]}a, …{(HALF * 'pqp')[-HALF:]})"],
        ),
        ({"a": "b"}, {"a": 999 * "p"}, [f"a (b, {2 * HALF * 'p'})"]),
    ],
)
def test_differences_are_shown_without_long_common_prefixes(old, new, found):
    assert directory.differences(old, new, same=("f",)) == found


@pytest.mark.parametrize(
    "row, is_good",
    [
        ({"step": 0.0}, True), ({"step": 2.0**53}, True), ({"step": 2.0**53 + 2}, False), ({"step": -1.0}, False),
        ({"step": 0.5}, False), ({"test_top1_error": -0.9e-6}, True), ({"test_top1_error": -1.1e-6}, False),
        ({"test_top1_error": 1 + 0.9e-6}, True), ({"test_top1_error": 1 + 1.1e-6}, False),
        ({"test_top1_error": np.nan}, True), ({"loss": 7.0}, True), ({"loss": -np.inf}, False),
        ({"phase": "test"}, True),
    ],
)  # fmt: skip
def test_a_row_has_a_whole_step_finite_numbers_and_errors_that_are_fractions(row, is_good):
    with contextlib.nullcontext() if is_good else pytest.raises(UserError):
        tables._check_row({"step": 1.0} | row)


def test_the_newest_checkpoints_are_kept(tmp_path):
    for step in range(1, 6):
        checkpoint.save(str(tmp_path), ARRAYS | {"step": np.int64(step)})
    assert sorted(os.listdir(tmp_path)) == [f"step_0000000{step}.npz" for step in (3, 4, 5)]
    arrays = newest_checkpoint(tmp_path)[1]
    assert arrays["step"] == 5
    np.testing.assert_array_equal(arrays["a"], ARRAYS["a"])


def test_no_flipped_bit_goes_unnoticed(tmp_path):
    good = open(checkpoint.save(str(tmp_path), ARRAYS | {"step": np.int64(1)}), "rb").read()
    path = tmp_path / "step_00000002.npz"
    rng = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for position in rng.choice(len(good), 150, replace=False):
            damaged = bytearray(good)
            damaged[position] ^= 1 << int(rng.integers(8))
            path.write_bytes(damaged)
            arrays = newest_checkpoint(tmp_path)[1]
            # Either the damaged file is skipped, or the bit did not matter (a time stamp, say).
            for name, array in ARRAYS.items():
                np.testing.assert_array_equal(arrays[name], array)


def test_the_drops_of_the_learning_rate_are_marked():
    rows = [
        {"step": step, "learning_rate": rate, "train_top1_error": 0.5, "test_top1_error": 0.5}
        for step, rate in ((100, 0.1), (200, 0.1), (300, 0.01), (400, 0.001))
    ]
    assert figures.learning_rate_drops(rows) == [200, 300]
    lines = figures.convergence_figure(rows).axes[0].lines
    assert sorted(line.get_xdata()[0] for line in lines if line.get_linestyle() == ":") == [200, 300]


@pytest.mark.parametrize("kind", ["train", "ablations"])
def test_a_file_of_data_may_be_moved_but_not_be_changed(tmp_path, kind):
    def opened(path, digest):
        train = TrainConfig(data=DataConfig(npz=path, validation_examples=1))
        config = train if kind == "train" else AblationConfig(train=train)
        return RunDirectory(str(tmp_path / "run"), config, kind, digest)

    for path, digest in (("data.npz", ""), ("data.npz", "1a2b"), ("moved.npz", "1a2b")):  # "": who does not know them
        with opened(path, digest) as run:
            run.set_status("running")
    assert opened("moved.npz", "").record.data_digest == "1a2b"
    message = refused(opened, "moved.npz", "3c4d")
    assert "holds a run on other data: '1a2b', now '3c4d'; give the data as they were" in message
    assert "npz (moved.npz, third.npz)" in refused(opened, "third.npz", "3c4d")
