"""launch.hessian_spectrum: what it prints, writes and refuses, and its eigenvalues against ARPACK's."""

import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from begun import begin, edit
from launching import config_of, launched, presets_of
from loaded import npz_digest
from scipy.sparse.linalg import LinearOperator, eigsh

from identity_matters.config import DataConfig, TrainConfig
from identity_matters.errors import UserError
from identity_matters.model import standardize
from identity_matters.runs.tables import read_rows, write_metrics
from launch import hessian_spectrum, launcher, trained_run
from launch.hessian_spectrum import SpectrumConfig
from shortcut_study import curvature
from shortcut_study.curvature import quadrature
from shortcut_study.figures.spectrum import quadrature_from_rows


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
        "eigenvalues smaller in size than 5% of the largest",
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


@pytest.mark.slow
def test_the_eigenvalues_it_finds_are_those_that_arpack_finds_in_float64(tiny_spectrum, tiny_run):
    from identity_matters.data.digits import mnist_sample

    model = curvature.with_dtype(keras.models.load_model(tiny_run / "model.keras", compile=False), "float64")
    digits = mnist_sample()
    images = np.asarray(standardize(digits.train_images[:60])).astype(np.float64)
    variables = [variable.value for variable in model.trainable_variables]
    sizes = [int(np.prod(v.shape)) for v in variables]

    @tf.function
    def product(vector):  # reverse over reverse
        parts = [tf.reshape(p, v.shape) for p, v in zip(tf.split(tf.reshape(vector, [-1]), sizes), variables)]
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                logits = model(tf.constant(images))
                of_label = tf.gather(logits, digits.train_labels[:60], axis=1, batch_dims=1)
                loss = tf.reduce_mean(tf.reduce_logsumexp(logits, axis=1) - of_label)
            gradients = inner.gradient(loss, variables)
        rows = outer.gradient(gradients, variables, output_gradients=parts)
        return tf.concat([tf.reshape(row, [-1]) for row in rows], 0)

    operator = LinearOperator((1188, 1188), lambda v: product(tf.constant(v)).numpy(), dtype=np.float64)
    exact = eigsh(operator, k=3, which="LA", tol=1e-4, return_eigenvectors=False)[::-1]
    found = quadrature_from_rows(read(tiny_spectrum)[0])
    values, bounds = quadrature.extreme_eigenvalues(found, 3)
    assert (np.abs(values - exact) <= bounds + 1e-6 * exact[0]).all()
    assert bounds[0] < 0.05 * exact[0]


def test_the_same_command_again_prints_the_same_and_computes_nothing_and_another_is_refused(
    tiny_spectrum, tiny_run, launch
):
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
    assert json.loads((run_dir / "config.json").read_text())["seconds"] is None


@pytest.mark.slow
def test_an_interrupted_run_continues_after_the_last_finished_product_to_the_same_results(
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


def test_the_figure_is_drawn_from_the_csv_files_alone(tiny_spectrum, tmp_path):
    assert not hessian_spectrum.figures(str(tmp_path))
    for name in ("results.csv", "density.csv"):
        shutil.copy(tiny_spectrum / name, tmp_path)
    assert list(hessian_spectrum.figures(str(tmp_path))) == ["spectrum"]
    axes = hessian_spectrum.figures(str(tmp_path), "as titled")["spectrum"].axes[0]
    assert axes.get_yscale() == "log" and axes.get_title() == "as titled"
    assert len(axes.get_legend().get_texts()) == 3


@pytest.mark.slow
def test_layers_blocks_and_a_tolerance_are_flags(tiny_run, launch, tmp_path):
    asked = [*flags(tiny_run, tmp_path / "run"), "--tolerance=0.2", "--per_layer", "--per_block"]
    code, out, err = launch(*asked, "--num_eigenvalues=1")
    assert code == 0, err
    tables = [read_rows(tmp_path / "run" / name) for name in ("layers.csv", "blocks.csv")]
    assert [row["part"] for row in tables[1]] == ["stem_conv", "stage1_block1", "stage2_block1"]
    assert all(sum(row["num_weights"] for row in rows) == 1188 for rows in tables)
    assert "stage2_block1_conv2" in out and (tmp_path / "run" / "layers.png").exists()
    counts = [int(pair.split("/")[1]) for pair in re.findall(r"\d+/\d+(?= \[)", err)]
    assert min(counts) < 2 * 3 * 20  # fewer steps than the order


@pytest.mark.slow
def test_a_network_that_ships_is_taken_by_name_with_its_training_digits(launch, tmp_path):
    size = "--examples=50 --batch_size=50 --order=6 --num_vectors=1".split()
    code, out, err = launch("--pretrained=digits", f"--run_dir={tmp_path}/run", *size)
    assert code == 0, err
    assert out.startswith("digits: 170,640 trained weights, 50 training images\n")
    rows = read_rows(tmp_path / "run" / "results.csv")
    assert 1 <= sum(row["vector"] == 0 for row in rows) <= 6 and "trace: " in out


@pytest.mark.slow
def test_the_gauss_newton_matrix_is_another(tiny_spectrum, tiny_run, launch, tmp_path):
    code, out, _ = launch(*flags(tiny_run, tmp_path / "run"), "--gauss_newton", "--num_vectors=1")
    assert code == 0 and "spectrum of the Gauss-Newton matrix" in out
    smallest = [min(row["eigenvalue"] for row in read(folder)[0]) for folder in (tmp_path / "run", tiny_spectrum)]
    assert smallest[1] < -0.01 < -1e-4 < smallest[0]  # positive semidefinite, but for rounding


# Each: what to change in a copy of the trained run, flags, what the line must name.
MISTAKES = {
    "no saved run": (None, ["--saved_run="], "--saved_run is missing"),
    "a saved run and a name": (None, ["--pretrained=digits"], "--saved_run and --pretrained are both given"),
    "a name that is not known": (None, ["--saved_run=", "--pretrained=x"], "no pretrained network 'x', only digits"),
    "a saved run that is not there": (None, ["--saved_run=none"], "saved_run none is not the directory of a run"),
    "no model": (lambda run: (run / "model.keras").unlink(), [], "has no model.keras"),
    "a damaged model": (lambda run: (run / "model.keras").write_bytes(b"junk"), [], "cannot load"),
    "not finished": (lambda run: edit(run, status="running"), [], "not finished: its status is running"),
    "another launcher's run": (lambda run: edit(run, config={"claim": ""}), [], "is not the directory of a run"),
    "another version's run": (lambda run: edit(run, config={"model": {"x": 1}}), [], "another version"),
    "no data": (lambda run: edit(run, {"dataset": "cifar100"}), ["--data_dir={tmp}"], "cifar100 is not prepared"),
}


@pytest.mark.parametrize("name", ["examples", "order", "num_vectors", "num_eigenvalues", "batch_size"])
def test_a_number_that_must_be_positive_is_refused_otherwise(name):
    with pytest.raises(UserError, match=f"^{name} must be at least 1, got 0$"):
        SpectrumConfig(**{name: 0})


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_line_and_writes_nothing(tiny_run, launch, tmp_path, name):
    change, arguments, named = MISTAKES[name]
    saved = tmp_path / "saved"
    saved.mkdir()
    for file in ("config.json", "model.keras"):
        shutil.copy(tiny_run / file, saved)
    if change:
        change(saved)
    arguments = [argument.format(tmp=tmp_path) for argument in arguments]
    code, out, err = launch(f"--saved_run={saved}", f"--run_dir={tmp_path}/run", *arguments)
    assert code == launcher.EXIT_ERROR
    assert err.startswith("error: ") and err.count("\n") == 1, err
    assert named in err and not out
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_jax_finds_the_eigenvalue_that_tensorflow_finds(launch, tiny_run, tmp_path):
    command = [sys.executable, "-m", "launch.hessian_spectrum", *few(tiny_run, tmp_path / "jax", "--order=5")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"KERAS_BACKEND": "jax"})
    assert done.returncode == 0, done.stderr
    assert launch(*few(tiny_run, tmp_path / "tensorflow", "--order=5"))[0] == 0
    found, expected = (max(row["eigenvalue"] for row in read(tmp_path / b)[0]) for b in ("jax", "tensorflow"))
    assert found == pytest.approx(expected, rel=2e-3)  # each to a thousandth, --tolerance


@pytest.mark.slow
def test_a_streamed_set_gives_its_training_images_without_augmentation():
    """TFDS_DATA_DIR tells where ImageNet is prepared."""
    from identity_matters.presets import TRAIN_PRESETS

    config = TRAIN_PRESETS["imagenet"]
    try:
        images, labels, _ = trained_run.first_examples(config, 7)
    except UserError as error:
        pytest.skip(str(error))
    assert images.shape == (7, 224, 224, 3) and labels.shape == (7,)
    np.testing.assert_array_equal(trained_run.first_examples(config, 7)[0], images)


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
    config = trained_run.read_config(trained_run.SavedRun(str(tiny_run)))
    networks.build(config.model, config.seed).save(tmp_path / "untrained" / "model.keras")
    launch(*few(tmp_path / "untrained", tmp_path / "expected"))
    launch(*few(tiny_run, tmp_path / "trained"))
    assert code == 0 and read(tmp_path / "first") != read(tmp_path / "trained")
    np.testing.assert_equal(read(tmp_path / "first"), read(tmp_path / "expected"))


def test_a_step_without_checkpoint_is_refused_with_those_that_have_one(launch, tiny_run, tmp_path):
    refusals = {
        "--at_step=1": "has no checkpoint of step 1; steps that have one: 4",
        "--at_step=-2": "at_step must be at least -1, got -2",
    }
    for flag, message in refusals.items():
        code, _, err = launch(*flags(tiny_run, tmp_path / "run"), flag)
        assert code == 1 and message in err.splitlines()[-1]
    code, _, err = launch("--pretrained=digits", "--at_step=1", f"--run_dir={tmp_path}/run")
    assert code == 1 and "needs --saved_run" in err
    for step in (-1, 0):
        chosen = trained_run.SavedRun(pretrained="digits", at_step=step, data_dir="/d", npz="/n.npz")
        data = trained_run.read_config(chosen).data
        assert (data.dataset, data.data_dir, data.npz) == ("mnist_sample", "/d", "/n.npz")
    begin(tmp_path / "of_npz", TrainConfig(data=DataConfig(npz="/own.npz", data_dir="/own")), status="done")
    for given, expected in (({}, ("/own", "/own.npz")), ({"data_dir": "/d", "npz": "/n.npz"}, ("/d", "/n.npz"))):
        data = trained_run.read_config(trained_run.SavedRun(str(tmp_path / "of_npz"), at_step=0, **given)).data
        assert (data.data_dir, data.npz) == expected
    (checkpoint, *_) = sorted((tiny_run / "checkpoints").glob("*.npz"))
    shutil.copytree(tiny_run, tmp_path / "damaged")
    damaged = tmp_path / "damaged" / "checkpoints" / checkpoint.name
    damaged.write_bytes(damaged.read_bytes()[:-100])
    code, _, err = launch(*flags(tmp_path / "damaged", tmp_path / "run"), f"--at_step={int(checkpoint.stem[5:])}")
    assert code == 1 and "cannot use the checkpoint" in err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_a_run_whose_npz_file_has_changed_is_refused(launch, tiny_run, digits_npz, tmp_path):
    run_dir, own = tmp_path / "run", tmp_path / "own.npz"
    shutil.copytree(tiny_run, run_dir)
    shutil.copy(digits_npz, own)
    edit(run_dir, {"npz": str(own)}, data_digest=npz_digest(str(own)))
    assert trained_run.read_config(trained_run.SavedRun(str(run_dir))).data.npz == str(own)
    with np.load(digits_npz) as arrays:
        np.savez(own, **dict(arrays) | {"train_labels": 9 - arrays["train_labels"]})
    code, _, err = launch(*flags(run_dir, tmp_path / "spectrum"))
    assert code == 1 and f"{own} has changed since saved_run {run_dir} was trained on it" in err.splitlines()[-1]
    assert not (tmp_path / "spectrum").exists()


@pytest.mark.slow
def test_a_spectrum_does_not_go_on_with_the_weights_of_another_run_in_the_same_place(launch, tiny_run, tmp_path):
    run_dir, spectrum = tmp_path / "run", tmp_path / "spectrum"
    shutil.copytree(tiny_run, run_dir)
    command = few(run_dir, spectrum)
    assert launch(*command)[0] == 0
    network = keras.models.load_model(run_dir / "model.keras", compile=False)
    network.set_weights([1.5 * array for array in network.get_weights()])
    network.save(run_dir / "model.keras")
    code, out, err = launch(*command)
    message = f"{spectrum} was computed for other weights than {run_dir} has now"
    assert code == 1 and message in err.splitlines()[-1] and not out
    shutil.copy(tiny_run / "model.keras", run_dir)
    assert launch(*command)[0] == 0


def test_at_full_order_all_eigenvalues_are_printed_once_and_no_larger_order_is_advised(
    launch, tiny_run, tmp_path, monkeypatch
):
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
    assert lines[15] == "index: 0.00% of the eigenvalues are negative, 55.00% are 0 within rounding"
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
    assert code == 1 and "stem_bn has averaged no batches yet; add --batch_moments" in err
    code, _, _ = launch(*few(run_dir, tmp_path / "own", "--at_step=0", "--batch_moments"))
    config = trained_run.read_config(trained_run.SavedRun(str(run_dir)))
    model = networks.build(config.model, config.seed)
    for average in (variable for variable in model.variables if variable.name.startswith("moving_")):
        average.assign(average + 0.1)
    model.save(run_dir / "model.keras")
    launch(*few(run_dir, tmp_path / "averages"))
    launch(*few(run_dir, tmp_path / "final", "--batch_moments"))
    assert code == 0 and read(tmp_path / "own")[1] != read(tmp_path / "averages")[1]
    np.testing.assert_equal(read(tmp_path / "own"), read(tmp_path / "final"))


@pytest.mark.parametrize("flags, steps", [([], [3]), (["--with_start"], [3, 0]), (["--batch_moments"], [3])])
def test_networks_of_the_step_and_of_the_start_have_averages_unless_batches_are_normalised_alone(
    flags, steps, monkeypatch
):
    loaded, names, asked = [], [], []
    for name, result in {"read_config": None, "first_examples": (0, 0, ""), "weights_digest": "digest"}.items():
        monkeypatch.setattr(trained_run, name, lambda *_, result=result: result)
    monkeypatch.setattr(trained_run, "require_same_weights", lambda _, *of: asked.append(of))
    monkeypatch.setattr(trained_run, "load_model", lambda _, chosen, kept: (loaded.append(chosen.at_step), kept))
    monkeypatch.setattr("shortcut_study.curvature.checks.without_averages", lambda _: names)
    spectra = hessian_spectrum.Spectra(config_of("hessian_spectrum", "--saved_run=/r", "--at_step=3", *flags), "/run")
    spectra.load(SimpleNamespace(file=str))
    assert asked == [("digest", "/r")] and list(spectra.details.values()) == ["digest"]
    names.append("stem_bn")
    refused = pytest.raises(UserError, match="stem_bn has averaged no batches yet; add --batch_moments")
    with contextlib.nullcontext() if "--batch_moments" in flags else refused:
        spectra.load(SimpleNamespace(file=str))
    assert loaded[: len(steps)] == steps and len(loaded) == (2 if "--batch_moments" in flags else len(steps) + 1)


def test_a_job_measures_the_one_hessian_at_the_weights_asked_for_and_keeps_their_checkpoint(tmp_path, monkeypatch):
    made, moved, said, checkpoint = [], [], [], tmp_path / "checkpoint"
    hessian = SimpleNamespace(move_to=moved.append)
    monkeypatch.setattr(curvature, "Hessian", lambda *given, **options: made.append((*given[:3], options)) or hessian)
    flags = "--saved_run=/r", "--gauss_newton", "--batch_moments", "--batch_size=6", "--precision=default"
    spectra = SimpleNamespace(
        _config=config_of("hessian_spectrum", *flags), _run_dir=str(tmp_path), _images="x", _labels="y", _hessian=None,
        _networks={"": ("end", ""), "start_": ("start", str(checkpoint))},
    )  # fmt: skip
    checkpoint.write_text("weights")
    for prefix in ("", "start_", "start_"):
        job = hessian_spectrum.Spectra._job(spectra, prefix, "label", lambda h: h.on_batch() or ["row"])
        assert job.compute(said.append) == ["row"]
        if prefix:
            assert (tmp_path / "start_weights.npz").read_text() == "weights"
            checkpoint.write_text("others")  # a run that goes on
    options = {"gauss_newton": True, "training": True, "batch_size": 6, "precision": "default"}
    assert made == [("end", "x", "y", options)] and moved == ["end", "start", "start"] and said == [0, 0, 0]


def test_layers_and_blocks_are_printed_and_drawn_by_their_tables(tiny_spectrum, tmp_path):
    part = {"part": "conv", "num_weights": 2} | dict.fromkeys(
        ("largest", "largest_error_bound", "smallest", "smallest_error_bound", "trace", "trace_error"), 1.0
    )
    rows, density = read(tiny_spectrum)
    assert [text.split()[0] for text in hessian_spectrum._texts([rows, density, [part]], 1, 1188)] == [
        "largest",
        "part",
    ]
    for name in ("layers", "start_blocks"):
        write_metrics(str(tmp_path / f"{name}.csv"), [part])
    assert set(hessian_spectrum.figures(str(tmp_path))) == {"layers", "start_blocks"}


@pytest.mark.parametrize(
    "flags, kept, lines, seconds",
    [
        (["--at_step=0"], {"seconds": None, "minutes": 1.5}, ["/r after 0 steps", "Hessian, 1.5 minutes"], 90.0),
        ([], {"seconds": 30, "minutes": 9.0}, ["/r", "Hessian, 0.5 minutes"], 30),
        (["--gauss_newton", "--with_start"], {"seconds": None},
         ["/r", "Gauss-Newton matrix", "Gauss-Newton matrix at the initial weights"], None),
    ],
)  # fmt: skip
def test_the_report_says_which_weights_and_how_long(tmp_path, monkeypatch, flags, kept, lines, seconds):
    config, taken = config_of("hessian_spectrum", "--saved_run=/r", "--num_eigenvalues=4", *flags), []
    monkeypatch.setattr(hessian_spectrum, "_texts", lambda *given: taken.append(given) or ["text"])
    model = SimpleNamespace(trainable_variables=[np.zeros((3, 4)), np.zeros(1200)])
    weights = ["", "start_"][: 1 + config.with_start]
    spectra = SimpleNamespace(_config=config, _networks={"": (model, "")}, _images=np.zeros(7), weights=weights)
    for prefix in weights:
        (tmp_path / f"{prefix}products").mkdir()
    run, tables = SimpleNamespace(contents=kept, file=lambda name: str(tmp_path / name)), [*"abcd"[: 2 * len(weights)]]
    found = hessian_spectrum.Spectra.report(spectra, run, *tables)
    first, *rest = lines
    expected = [f"{first}: 1,212 trained weights, 7 training images"]
    assert found.text.splitlines() == expected + [text for line in rest for text in (f"spectrum of the {line}", "text")]
    assert taken == [(tables[i : i + 2], 4, 1212) for i in range(0, len(tables), 2)] and not os.listdir(tmp_path)
    assert found.details == {"num_weights": 1212, "num_examples": 7, "seconds": seconds}


def test_the_preset_of_a_gpu_measures_the_start_and_the_blocks_of_the_paper_s_network_with_thirty_products_each():
    default, preset = vars(SpectrumConfig()), vars(hessian_spectrum.GPU)
    assert {name: value for name, value in preset.items() if value != default[name]} == {
        "order": 30, "num_vectors": 4, "batch_size": 500, "with_start": True, "per_block": True, "precision": "default"
    }  # fmt: skip
    assert preset["examples"] == 500  # in one batch
    assert list(presets_of("hessian_spectrum")) == ["", "gpu"]
