"""launch.hessian_spectrum: its output, files and errors, and its eigenvalues against ARPACK's."""

import functools
import json
import os
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from begun import begin, edit
from launching import launched, presets_of
from loaded import npz_digest

from identity_matters.config import DataConfig, TrainConfig
from identity_matters.runs.tables import read_rows
from launch import hessian_spectrum, launcher, trained_run
from launch.hessian_spectrum import SpectrumConfig


@pytest.fixture
def launch():
    """launch("--flag=value", …) -> (exit code, stdout, stderr), in this process."""
    return functools.partial(launched, "hessian_spectrum")


def flags(tiny_run, run_dir):
    words = "--examples=60 --batch_size=30 --order=20 --num_vectors=2".split()
    return [f"--saved_run={tiny_run}", f"--run_dir={run_dir}", *words]


def few(saved, run_dir, *more):
    """Flags of a spectrum that takes a second."""
    return [*flags(saved, run_dir), "--examples=10", "--batch_size=5", "--order=2", "--num_eigenvalues=1", *more]


def read(run_dir):
    return read_rows(run_dir / "results.csv"), read_rows(run_dir / "density.csv")


def test_a_run_prints_the_eigenvalues_and_leaves_its_files(tiny_spectrum, tiny_run):
    lines = tiny_spectrum.with_suffix(".out").read_text().splitlines()
    assert lines[0] == f"{tiny_run}: 1,188 trained weights, 60 training images"
    assert lines[2].split() == ["largest", "error", "bound", "smallest", "error", "bound"]
    assert [line.split(":")[0] for line in lines[8:10]] == [
        "trace",
        "eigenvalues smaller in size than 5 % of the largest",
    ]
    last = tiny_spectrum.with_suffix(".err").read_text().split("\r")[-1]
    rows, density = read(tiny_spectrum)
    taken = sum(row["vector"] == 0 for row in rows)  # of each of the two vectors for the rest
    assert f"{2 * (20 + 2 * taken)}/{2 * (20 + 2 * taken)}" in last  # batches: two a product
    record = json.loads((tiny_spectrum / "config.json").read_text())
    assert (record["status"], record["num_weights"], record["num_examples"]) == ("done", 1188, 60)
    assert (tiny_spectrum / "spectrum.png").read_bytes().startswith(b"\x89PNG")
    assert list(rows[0]) == ["vector", "eigenvalue", "weight", "error_bound", "rounding"]
    known = sum(row["vector"] == -1 for row in rows)
    assert 0 < known < 20 and len(rows) == known + 2 * taken and not list(tiny_spectrum.glob("products*"))
    grid, heights = ([row[name] for row in density] for name in ("eigenvalue", "density"))
    assert np.trapezoid(heights, grid) == pytest.approx(1, abs=1e-4)


def test_repeated_command_prints_the_same_without_computing_and_another_is_an_error(tiny_spectrum, tiny_run, launch):
    before = {path: path.stat().st_mtime_ns for path in tiny_spectrum.glob("*.csv")}
    code, out, _ = launch(*flags(tiny_run, tiny_spectrum))
    printed = tiny_spectrum.with_suffix(".out").read_text()
    assert code == 0 and out == f"{tiny_spectrum} is already finished; its results:\n" + printed
    code, _, err = launch(*flags(tiny_run, tiny_spectrum), "--seed=1")
    assert code == launcher.EXIT_ERROR and "seed (0, 1)" in err
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_run_killed_after_its_last_table_says_no_time_that_nobody_measured(tiny_spectrum, tiny_run, launch, tmp_path):
    run_dir = tmp_path / "run"
    shutil.copytree(tiny_spectrum, run_dir)
    edit(run_dir, seconds=None, status="running")
    code, out, _ = launch(*flags(tiny_run, run_dir))
    assert code == 0 and out.splitlines()[1] == "spectrum of the Hessian"
    assert "seconds" not in json.loads((run_dir / "config.json").read_text())


@pytest.mark.slow
def test_interrupted_run_resumes_after_the_last_finished_product_with_equal_results(
    tiny_spectrum, tiny_run, launch, tmp_path, monkeypatch
):
    from shortcut_study.curvature.operator import Hessian

    made, whole = [], Hessian.__matmul__

    def interrupted(h, vectors):
        made.append(1)
        if len(made) == 20:
            raise KeyboardInterrupt
        return whole(h, vectors)

    monkeypatch.setattr(Hessian, "__matmul__", interrupted)
    code, _, err = launch(*flags(tiny_run, tmp_path / "run"))
    assert code == 130 and "the same command continues" in err
    assert not read(tmp_path / "run")[0] and (tmp_path / "run" / "products").is_dir()
    code, _, err = launch(*flags(tiny_run, tmp_path / "run"))
    assert code == 0
    total = int(err.split("\r")[-1].split("/")[1].split()[0])
    assert len(made) == 20 + total // 2 - 18  # two batches each; the first of the 19 products there is compared
    for found, expected in zip(*(read(folder)[0] for folder in (tmp_path / "run", tiny_spectrum))):
        assert found["vector"] == expected["vector"]
        # Convolutions on several threads do not round alike twice.
        assert found["eigenvalue"] == pytest.approx(expected["eigenvalue"], abs=1e-3)


def test_the_figure_is_drawn_only_from_csv_files(tiny_spectrum, tmp_path):
    assert not hessian_spectrum.figures(str(tmp_path))
    for name in ("results.csv", "density.csv"):
        shutil.copy(tiny_spectrum / name, tmp_path)
    assert list(hessian_spectrum.figures(str(tmp_path))) == ["spectrum"]
    axes = hessian_spectrum.figures(str(tmp_path), "as titled")["spectrum"].axes[0]
    assert axes.get_yscale() == "log" and axes.get_title() == "as titled"
    assert len(axes.get_legend().get_texts()) == 3


@pytest.mark.slow
def test_a_network_that_ships_is_taken_by_name_with_its_training_digits(launch, tmp_path):
    size = "--examples=50 --batch_size=50 --order=6 --num_vectors=1".split()
    code, out, err = launch("--pretrained=digits", f"--run_dir={tmp_path}/run", *size)
    assert code == 0, err
    assert out.startswith("digits: 170,640 trained weights, 50 training images\n")
    rows = read_rows(tmp_path / "run" / "results.csv")
    assert 1 <= sum(row["vector"] == 0 for row in rows) <= 6 and "trace: " in out


# What to change in a copy of the trained run, flags, and a word of the line.
DAMAGES = {
    "no model": (lambda run: (run / "model.keras").unlink(), [], "model.keras"),
    "a damaged model": (lambda run: (run / "model.keras").write_bytes(b"junk"), [], "model.keras"),
    "not finished": (lambda run: edit(run, status="running"), [], "running"),
    "another launcher's run": (lambda run: edit(run, config={"claim": ""}), [], "saved_run"),
    "another version's run": (lambda run: edit(run, config={"model": {"x": 1}}), [], "'x'"),
    "no data": (lambda run: edit(run, {"dataset": "cifar100"}), ["--data_dir={tmp}"], "cifar100"),
    "no checkpoint": (lambda run: None, ["--at_step=1"], "4"),  # the step that has one
    "a damaged checkpoint": (lambda run: shorten(run / "checkpoints"), ["--at_step=4"], "checkpoint"),
}


def shorten(folder):
    for path in folder.glob("*.npz"):
        path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize("name", DAMAGES)
def test_a_run_that_cannot_be_used_gets_a_short_error_and_nothing_is_written(tiny_run, launch, tmp_path, name):
    change, arguments, word = DAMAGES[name]
    saved = shutil.copytree(tiny_run, tmp_path / "saved")
    change(saved)
    arguments = [argument.format(tmp=tmp_path) for argument in arguments]
    code, out, err = launch(f"--saved_run={saved}", f"--run_dir={tmp_path}/run", *arguments)
    assert (code, out) == (launcher.EXIT_ERROR, "") and err.startswith("error: ") and err.count("\n") == 1, err
    assert word in err and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_jax_finds_the_eigenvalue_that_tensorflow_finds(launch, tiny_run, tmp_path):
    command = [sys.executable, "-m", "launch.hessian_spectrum", *few(tiny_run, tmp_path / "jax", "--order=5")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"KERAS_BACKEND": "jax"})
    assert done.returncode == 0, done.stderr
    assert launch(*few(tiny_run, tmp_path / "tensorflow", "--order=5"))[0] == 0
    found, expected = (max(row["eigenvalue"] for row in read(tmp_path / b)[0]) for b in ("jax", "tensorflow"))
    assert found == pytest.approx(expected, rel=2e-3)  # each to a thousandth, --tolerance


@pytest.mark.slow
def test_the_spectrum_after_some_steps_is_of_the_weights_that_the_run_had_then(
    launch, tiny_run, tiny_spectrum, tmp_path
):
    from identity_matters import networks

    run_dir = tmp_path / "run"
    shutil.copytree(tiny_run, run_dir)
    (run_dir / "model.keras").unlink()
    record = json.loads((run_dir / "config.json").read_text())
    edit(run_dir, status="running")
    last = record["config"]["train_steps"]
    code, out, _ = launch(*flags(run_dir, tmp_path / "last"), f"--at_step={last}")
    assert code == 0 and f"{run_dir} after {last} steps: 1,188 trained weights" in out
    np.testing.assert_equal(read(tmp_path / "last"), read(tiny_spectrum))
    shutil.rmtree(run_dir / "checkpoints")  # as a run that goes on removes old ones
    (tmp_path / "last" / "density.csv").unlink()
    again, out, _ = launch(*flags(run_dir, tmp_path / "last"), f"--at_step={last}")
    assert again == 0
    np.testing.assert_equal(read(tmp_path / "last"), read(tiny_spectrum))  # the density is found again

    code, _, err = launch(*flags(run_dir, tmp_path / "last"), "--at_step=2")
    assert code == 1 and f"at_step ({last}, 2)" in err

    code, _, _ = launch(*few(run_dir, tmp_path / "first", "--at_step=0"))
    shutil.copytree(tiny_run, tmp_path / "untrained")
    config = trained_run.read_config(trained_run.SavedRunFlags(str(tiny_run)))
    networks.build(config.model, config.seed).save(tmp_path / "untrained" / "model.keras")
    launch(*few(tmp_path / "untrained", tmp_path / "expected"))
    launch(*few(tiny_run, tmp_path / "trained"))
    assert code == 0 and read(tmp_path / "first") != read(tmp_path / "trained")
    np.testing.assert_equal(read(tmp_path / "first"), read(tmp_path / "expected"))


def test_data_are_read_from_the_run_s_place_or_the_flags_place(tmp_path):
    for step in (-1, 0):
        chosen = trained_run.SavedRunFlags(pretrained="digits", at_step=step, data_dir="/d", npz="/n.npz")
        data = trained_run.read_config(chosen).data
        assert (data.dataset, data.data_dir, data.npz) == ("mnist_sample", "/d", "/n.npz")
    begin(tmp_path / "of_npz", TrainConfig(data=DataConfig(npz="/own.npz", data_dir="/own")), status="done")
    for given, expected in (({}, ("/own", "/own.npz")), ({"data_dir": "/d", "npz": "/n.npz"}, ("/d", "/n.npz"))):
        data = trained_run.read_config(trained_run.SavedRunFlags(str(tmp_path / "of_npz"), at_step=0, **given)).data
        assert (data.data_dir, data.npz) == expected


def test_a_run_whose_npz_file_has_changed_is_rejected(launch, tiny_run, digits_npz, tmp_path):
    run_dir, own = tmp_path / "run", tmp_path / "own.npz"
    shutil.copytree(tiny_run, run_dir)
    shutil.copy(digits_npz, own)
    edit(run_dir, {"npz": str(own)}, data_digest=npz_digest(str(own)))
    assert trained_run.read_config(trained_run.SavedRunFlags(str(run_dir))).data.npz == str(own)
    with np.load(digits_npz) as arrays:
        np.savez(own, **dict(arrays) | {"train_labels": 9 - arrays["train_labels"]})
    code, _, err = launch(*flags(run_dir, tmp_path / "spectrum"))
    assert code == 1 and str(own) in err.splitlines()[-1] and "changed" in err
    assert not (tmp_path / "spectrum").exists()


@pytest.mark.slow
def test_spectrum_does_not_resume_with_the_weights_of_another_run_in_the_same_place(launch, tiny_run, tmp_path):
    run_dir, spectrum = tmp_path / "run", tmp_path / "spectrum"
    shutil.copytree(tiny_run, run_dir)
    command = few(run_dir, spectrum)
    assert launch(*command)[0] == 0
    network = keras.models.load_model(run_dir / "model.keras", compile=False)
    network.set_weights([1.5 * array for array in network.get_weights()])
    network.save(run_dir / "model.keras")
    code, out, err = launch(*command)
    assert code == 1 and f"{spectrum} was computed for other weights" in err.splitlines()[-1] and not out
    shutil.copy(tiny_run / "model.keras", run_dir)
    assert launch(*command)[0] == 0


def test_full_order_prints_all_eigenvalues_once_and_advises_no_larger_order(launch, tiny_run, tmp_path, monkeypatch):
    blind = [keras.layers.Rescaling(0.0), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((28, 28, 1)), *blind])
    monkeypatch.setattr(trained_run, "load_model", lambda *_: (model, ""))
    # Of 20 weights the kernel's 10 and a bias that all logits share do not count: 11 eigenvalues are 0.
    asked = [*flags(tiny_run, tmp_path / "spectrum"), "--num_vectors=1", "--num_eigenvalues=15"]
    code, out, err = launch(*asked)
    assert code == 0, err
    lines = out.splitlines()
    printed = [float(cell) for line in lines[3:13] for cell in line.split()[::2]]
    assert sorted(printed) == pytest.approx(
        sorted(row["eigenvalue"] for row in read(tmp_path / "spectrum")[0]), rel=1e-4
    )
    assert lines[14].startswith("condition number: infinite within rounding, largest |eigenvalue| 0.1")
    assert lines[15] == "index: 0.00 % of the eigenvalues are negative, 55.00 % are 0 within rounding"
    assert "inf " not in out


@pytest.mark.slow
def test_batches_are_normalised_by_their_own_moments_on_request(launch, tiny_run, tmp_path):
    from identity_matters import networks

    run_dir = tmp_path / "run"
    shutil.copytree(tiny_run, run_dir)
    record = json.loads((run_dir / "config.json").read_text())
    record["config"]["model"] |= {"use_batch_norm": True, "residual_initializer": "standard"}
    (run_dir / "config.json").write_text(json.dumps(record))
    code, _, err = launch(*few(run_dir, tmp_path / "refused", "--at_step=0"))
    assert code == 1 and "stem_bn" in err and "--batch_moments" in err
    code, _, _ = launch(*few(run_dir, tmp_path / "own", "--at_step=0", "--batch_moments"))
    config = trained_run.read_config(trained_run.SavedRunFlags(str(run_dir)))
    model = networks.build(config.model, config.seed)
    for average in (variable for variable in model.variables if variable.name.startswith("moving_")):
        average.assign(average + 0.1)
    model.save(run_dir / "model.keras")
    launch(*few(run_dir, tmp_path / "averages"))
    launch(*few(run_dir, tmp_path / "final", "--batch_moments"))
    assert code == 0 and read(tmp_path / "own")[1] != read(tmp_path / "averages")[1]
    # A loaded network has Keras's own normalisation, which rounds otherwise than ours.
    found, expected = ([row["eigenvalue"] for row in read(tmp_path / name)[0]] for name in ("own", "final"))
    assert found == pytest.approx(expected, rel=1e-4)


def test_gpu_preset_measures_the_paper_network_s_blocks_with_thirty_products_each():
    default, preset = vars(SpectrumConfig()), vars(hessian_spectrum.GPU)
    assert {name: value for name, value in preset.items() if value != default[name]} == {
        "order": 30, "num_vectors": 4, "batch_size": 500, "with_start": True, "per_block": True, "precision": "default"
    }  # fmt: skip
    assert preset["examples"] == 500  # in one batch
    assert list(presets_of("hessian_spectrum")) == ["", "gpu"]
