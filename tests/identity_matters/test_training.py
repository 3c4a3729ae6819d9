"""Training: the update rule, the schedules, a run's files, and that nothing is lost when it is killed."""

import contextlib
import dataclasses
import os
import re
import shutil

import keras
import numpy as np
import processes
import pytest
import tensorflow as tf
from begun import begin, newest_checkpoint, read_config_json
from refusals import refused
from tensorflow.python.framework import config as tensorflow_config

from identity_matters import training
from identity_matters.config import DataConfig, ModelConfig
from identity_matters.data.batches import ArrayBatches
from identity_matters.data.source import open_source
from identity_matters.errors import UserError, out_of_memory_error, translate_errors
from identity_matters.evaluation import evaluate
from identity_matters.model import all_conv_resnet, standardize
from identity_matters.optimization import compile_model
from identity_matters.run import Run
from identity_matters.runs import checkpoint
from identity_matters.runs.tables import read_metrics
from identity_matters.untrusted import load_network


def assert_same_run(a, b) -> None:
    """Bit-identical weights and optimiser state, and the same rows except for the speed."""
    (_, arrays), (_, others) = (newest_checkpoint(os.path.join(path, "checkpoints")) for path in (a, b))
    assert arrays.keys() == others.keys()
    for name in arrays:
        if not name.startswith("sum/"):  # means of an epoch that was interrupted can differ in the last digit
            np.testing.assert_array_equal(arrays[name], others[name], err_msg=name)
    rows, other_rows = (read_metrics(os.path.join(path, "metrics.csv")) for path in (a, b))
    for row, other in zip(rows, other_rows, strict=True):
        assert row | {"images_per_second": 0} == pytest.approx(other | {"images_per_second": 0}, rel=1e-6)


def compiled(config):
    """The network of a config of seed 1, the model that trains it, and its batches."""
    batches = ArrayBatches(open_source(DataConfig("mnist_sample")), config)
    network = all_conv_resnet(dataclasses.replace(config.model, image_shape=(28, 28, 1)), seed=1)
    model = batches.attach(network)
    compile_model(model, config)
    return network, model, batches


def test_two_updates_equal_momentum_sgd_written_out_in_numpy(short):
    network, model, batches = compiled(training.with_fields(short, weight_decay=0.01))
    weights = [v.numpy().astype(np.float64) for v in network.trainable_variables]
    velocity = [np.zeros_like(w) for w in weights]
    reference = all_conv_resnet(dataclasses.replace(short.model, image_shape=(28, 28, 1)), seed=1)
    for step in range(2):
        for variable, value in zip(reference.trainable_variables, weights):
            variable.assign(value)
        plan, labels = next(batches.train_batches(step))
        images = batches.device_images(plan)
        with tf.GradientTape() as tape:
            log_probabilities = tf.nn.log_softmax(reference(standardize(images)))
            loss = -tf.reduce_mean(tf.gather(log_probabilities, labels, axis=1, batch_dims=1))
        gradients = tape.gradient(loss, [v.value for v in reference.trainable_variables])
        for i, gradient in enumerate(gradients):
            velocity[i] = 0.9 * velocity[i] - 0.05 * (gradient.numpy() + 0.01 * weights[i])
            weights[i] = weights[i] + velocity[i]
        model.train_on_batch(*next(batches.train_batches(step)))
    for variable, expected in zip(network.trainable_variables, weights):
        # float32 arithmetic on numbers of the size of `expected`, some 30 operations deep.
        np.testing.assert_allclose(variable.numpy(), expected, rtol=0, atol=30 * 6e-8 * np.abs(expected).max())


def test_the_gradient_is_scaled_down_to_the_clip_norm(short):
    network, model, batches = compiled(dataclasses.replace(short, clip_norm=1e-3, momentum=0.0))
    before = [v.numpy() for v in network.trainable_variables]
    model.train_on_batch(*next(batches.train_batches(0)))
    moved = np.sqrt(sum(np.sum((v.numpy() - b) ** 2) for v, b in zip(network.trainable_variables, before)))
    assert moved == pytest.approx(0.05 * 1e-3, rel=1e-2)


@pytest.mark.slow
def test_the_loss_falls_on_real_digits(short, tmp_path):
    # The standard initialiser leaves the saddle at once: every seed tried falls by 0.3 or more every 100 steps.
    network = {"widths": (8, 16, 32), "blocks_per_stage": (1, 1, 1), "residual_initializer": "standard"}
    steps = {"train_steps": 300, "decay_steps": (), "eval_every": 100, "checkpoint_every": 300}
    data = dataclasses.replace(short.data, train_examples=0, eval_examples=200)
    model = ModelConfig(image_shape=(28, 28, 1), stem_width=8, **network)
    config = dataclasses.replace(short, model=model, learning_rate=0.1, clip_norm=0.5, data=data, **steps)
    training.train(config, str(tmp_path / "run"))
    rows = read_metrics(tmp_path / "run" / "metrics.csv")
    assert rows[0]["loss"] > rows[1]["loss"] > rows[2]["loss"]
    assert rows[2]["loss"] < 0.8 * np.log(10)


def test_a_run_leaves_everything_that_the_readme_promises(short_run):
    expected = {"config.json", "metrics.csv", "checkpoints", "convergence.png", "model.keras", "saved_model"}
    found = set(os.listdir(short_run))
    assert expected <= found
    assert any(name.startswith("events.out.tfevents") for name in found)
    assert [step for step, _ in checkpoint.list_checkpoints(str(short_run / "checkpoints"))] == [6, 9, 12]
    assert not [name for name in found if name.startswith(".tmp")]
    record = read_config_json(short_run)
    assert record["status"] == "done"
    assert record["config"]["model"]["image_shape"] == [28, 28, 1]
    assert record["versions"]["keras"] == keras.__version__


def test_the_norms_are_those_of_the_saved_network(short_run):
    network = keras.saving.load_model(short_run / "model.keras")
    norms = [np.linalg.norm(layer.kernel) for layer in network.layers if isinstance(layer, keras.layers.Conv2D)]
    last = read_metrics(short_run / "metrics.csv")[-1]
    assert last["kernel_norm"] == pytest.approx(np.mean(norms), rel=1e-5)
    assert last["kernel_norm_stage2"] == pytest.approx(np.mean(norms[3:]), rel=1e-5)


def test_the_projection_is_not_trained_and_every_convolution_is(short, short_run):
    trained = keras.saving.load_model(short_run / "model.keras")
    initial = all_conv_resnet(dataclasses.replace(short.model, image_shape=(28, 28, 1)), short.seed)
    for before, after in zip(initial.variables, trained.variables):
        assert np.array_equal(before, after) == before.path.startswith("projection"), before.path


def test_tensorboard_holds_the_scalars_the_histograms_and_the_figure(short_run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(short_run))
    events.Reload()
    tags = events.Tags()
    scalars = {"loss/train", "optimizer/learning_rate", "speed/images_per_second", "norm/kernels_stage1"}
    assert scalars | {"error/train_top1", "error/train_top5", "error/test_top5"} <= set(tags["scalars"])
    assert "weights/stage2_block1_conv1" in tags["histograms"]
    assert tags["images"] == ["pictures/input_images", "pictures/convergence"]
    rows = read_metrics(short_run / "metrics.csv")
    assert [e.value for e in events.Scalars("error/test_top1")] == pytest.approx([r["test_top1_error"] for r in rows])


def interrupt(monkeypatch, config, run_dir, step) -> None:
    """Runs until the checkpoint of `step` is written, then fails."""

    def save_and_fail(directory, arrays, save=checkpoint.save):
        save(directory, arrays)
        if arrays["step"] == step:
            raise RuntimeError("power cut")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save", save_and_fail)
        with pytest.raises(RuntimeError, match="power cut"):
            training.train(config, run_dir)


@pytest.mark.slow
@pytest.mark.usefixtures("without_results")
def test_run_stopped_twice_or_with_a_damaged_newest_checkpoint_ends_bit_identical(
    short, tmp_path, short_run, monkeypatch
):
    """It ends between two evaluations, and between a checkpoint and its evaluation."""
    run_dir = tmp_path / "run"
    interrupt(monkeypatch, short, str(run_dir), step=9)
    assert read_config_json(run_dir)["status"] == "failed"
    damaged = shutil.copytree(run_dir, tmp_path / "damaged")
    interrupt(monkeypatch, short, str(run_dir), step=12)
    assert len(read_metrics(run_dir / "metrics.csv")) == 1
    training.train(short, str(run_dir))
    assert_same_run(run_dir, short_run)
    newest = damaged / "checkpoints" / "step_00000009.npz"
    content = bytearray(newest.read_bytes())
    content[len(content) // 3] ^= 1
    newest.write_bytes(content)
    with pytest.warns(UserWarning, match="skipping the damaged checkpoint .*step_00000009"):
        training.train(short, str(damaged))
    assert_same_run(damaged, short_run)


def test_operations_are_deterministic_and_seeded_from_before_the_first_step(short, tmp_path, monkeypatch):
    found, seeds = [], []
    is_enabled = tensorflow_config.is_op_determinism_enabled
    monkeypatch.setattr(
        Run, "restore", lambda _, state, *__: found.extend([is_enabled(), state.network]) or exec("raise OSError")
    )
    monkeypatch.setattr(keras.utils, "set_random_seed", seeds.append)
    tensorflow_config.disable_op_determinism()
    with pytest.raises(OSError):
        training.train(dataclasses.replace(short, seed=3), tmp_path)
    assert found[0] and seeds == [3]
    expected = all_conv_resnet(dataclasses.replace(short.model, image_shape=(28, 28, 1)), seed=3)
    np.testing.assert_array_equal(found[1].variables[0], expected.variables[0])


@pytest.mark.parametrize("way", ["checkpoint", "another worker"])
def test_the_state_of_a_run_is_taken_over_whole(tmp_path, way):
    """After three steps, a row, and one more step."""

    def state(seed):
        network = all_conv_resnet(ModelConfig((8, 8, 1), stem_width=4, widths=(4, 8), blocks_per_stage=(1, 1)), seed)
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9, name="sgd")
        optimizer.build(network.trainable_variables)
        for variable in optimizer.variables[2:]:
            variable.assign(np.random.default_rng(seed).standard_normal(variable.shape))
        return checkpoint.TrainingState(network, optimizer, 4)

    given, taking = state(1), state(2)
    names = "loss", "cross_entropy", "top1", "top5"
    given.begin_epoch()
    given.advance(1, dict.fromkeys(names, 8.0))
    given.begin_epoch()  # of a run that continues inside an epoch
    given.advance(2, {name: 2.0 + i for i, name in enumerate(names)})
    assert given.step == 3
    assert given.pop_means() == {name: (8 + 2 * (2.0 + i)) / 3 for i, name in enumerate(names)}
    given.begin_epoch()
    given.advance(1, dict.fromkeys(names, 5.0))
    if way == "checkpoint":
        checkpoint.save(str(tmp_path), given.arrays())
        taking.restore(str(tmp_path))
    else:
        taking.assign(given.arrays())
    assert taking.step == 4
    assert given.arrays().keys() == taking.arrays().keys()
    for name, array in given.arrays().items():
        np.testing.assert_array_equal(array, taking.arrays()[name])
    assert taking.pop_means() == dict.fromkeys(names, 5.0)


def test_a_finished_run_is_not_trained_again(short, short_run):
    before = {path: path.stat().st_mtime_ns for path in short_run.rglob("*")}
    row = training.train(short, str(short_run))
    assert row["step"] == 12
    assert {path: path.stat().st_mtime_ns for path in short_run.rglob("*")} == before


@pytest.mark.parametrize("is_done", [True, False])
def test_a_run_without_its_checkpoints_is_not_begun_again_over_what_is_left(short, tmp_path, short_run, is_done):
    run_dir = shutil.copytree(short_run, tmp_path / "run")
    for name in ("checkpoints", "saved_model"):
        shutil.rmtree(run_dir / name)
    if not is_done:
        text = (run_dir / "config.json").read_text()
        (run_dir / "config.json").write_text(text.replace('"status": "done"', '"status": "running"'))
    before = (run_dir / "metrics.csv").read_text()
    assert "holds a run of 12 steps without its checkpoints" in refused(training.train, short, str(run_dir))
    assert (run_dir / "metrics.csv").read_text() == before


@pytest.mark.usefixtures("without_results")
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(tiny_config, tiny_run, tmp_path):
    (row,) = read_metrics(tiny_run / "metrics.csv")
    begin(tmp_path, tiny_config, rows=[row | {"step": 2}])
    assert training.train(tiny_config, str(tmp_path))["step"] == 4
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.csv")] == [4]


@pytest.mark.parametrize(
    ("num_steps", "where"),
    [pytest.param(1, r"at step \d", marks=pytest.mark.slow), (2, r"in the 2 steps up to step \d")],
)
def test_a_loss_that_is_not_finite_stops_the_run_at_once(short, tmp_path, num_steps, where):
    config = dataclasses.replace(short, learning_rate=1e30, steps_per_execution=num_steps, checkpoint_every=6)
    with pytest.raises(training.Diverged) as error:
        training.train(config, str(tmp_path / "run"))
    record = read_config_json(tmp_path / "run")
    assert (record["status"], record["diverged_at_step"]) == ("diverged", error.value.step)
    assert error.value.step <= 3 + num_steps and error.value.step % num_steps == 0
    assert re.fullmatch(f"the loss became NaN or infinite {where}", str(error.value))
    with pytest.raises(training.Diverged, match=f"^{error.value}$"):
        training.train(config, str(tmp_path / "run"))


@pytest.mark.slow
def test_a_run_that_diverges_leaves_its_last_finite_weights(short, tmp_path, monkeypatch, capsys):
    from identity_matters import callbacks

    # As large a rate grows the weights for some steps before a loss is infinite; the only checkpoint is the last one.
    config = dataclasses.replace(short, learning_rate=1e4, train_steps=40, checkpoint_every=40, eval_every=40)
    kept = {}
    for name, seconds in (("kept", 0), ("whole", 1000)):
        monkeypatch.setattr(callbacks, "SNAPSHOT_SECONDS", seconds)
        with pytest.raises(training.Diverged) as error:
            training.train(config, str(tmp_path / name))
        kept[name] = checkpoint.list_checkpoints(str(tmp_path / name / "checkpoints"))
    ((step, path),) = kept["kept"]
    assert 0 < step < error.value.step and not kept["whole"]
    assert f"the last finite weights, of step {step}, are in {path} (--at_step={step})" in capsys.readouterr().err
    # They are those of a run that ends there.
    ended = dataclasses.replace(config, train_steps=step, checkpoint_every=step, eval_every=step)
    with contextlib.suppress(training.Diverged):  # the evaluation of such weights
        training.train(ended, str(tmp_path / "ended"))
    ((_, other),) = checkpoint.list_checkpoints(str(tmp_path / "ended" / "checkpoints"))
    with np.load(path) as arrays, np.load(other) as expected:
        assert {"variable/stem_conv/kernel", "step"} <= set(arrays.files)
        for name in arrays.files:
            assert np.isfinite(arrays[name]).all()
            np.testing.assert_array_equal(arrays[name], expected[name])


@pytest.mark.slow
def test_all_variants_together_train_and_are_exported(short, tmp_path):
    changes = {"mixed_precision": True, "use_batch_norm": True, "train_projection": True, "shortcut": False}
    config = training.with_fields(short, train_steps=4, eval_every=4, checkpoint_every=4, decay_steps=(2,), **changes)
    row = training.train(config, str(tmp_path / "run"))
    assert np.isfinite(row["loss"])
    assert (tmp_path / "run" / "saved_model").is_dir()
    arrays = processes.final_variables(tmp_path / "run", 4)
    assert all(array.dtype != np.float16 and array.dtype.kind in "fi" for array in arrays.values())
    assert arrays["variable/stage1_block1_conv1/kernel"].dtype == np.float32


MUON = {"optimizer": "muon", "schedule": "linear", "warmup_steps": 2, "decay_steps": (), "decoupled_weight_decay": 0.1}


@pytest.mark.slow
@pytest.mark.parametrize("initializer, changes", [("fixup", {"clip_norm": 0.5}), ("rezero", MUON)])
def test_a_run_with_scalars_trains_resumes_is_exported_and_evaluated(
    short, tmp_path, monkeypatch, initializer, changes
):
    model = dataclasses.replace(short.model, residual_initializer=initializer)
    config, whole, run_dir = dataclasses.replace(short, model=model, **changes), tmp_path / "whole", tmp_path / "run"
    row = training.train(config, whole)
    interrupt(monkeypatch, config, str(run_dir), step=9)
    training.train(config, run_dir)
    assert_same_run(run_dir, whole)
    network = load_network(str(run_dir / "model.keras"))
    multipliers = [v.numpy().item() for v in network.trainable_variables if v.path.endswith("multiplier/value")]
    assert len(multipliers) == 2 and not {0.0, 1.0} & set(multipliers)  # they are trained
    found = evaluate(str(run_dir / "model.keras"), "mnist_sample")
    assert found == evaluate(str(run_dir / "saved_model"), "mnist_sample", trust_saved_model=True)
    assert evaluate(run_dir)["top1_error"] == pytest.approx(row["test_top1_error"])  # on the run's own images


MEMORY = "batch_size 16 and this network need more memory than there is; reduce one"


def test_data_that_do_not_fit_into_memory_have_a_short_error(tmp_path, tiny_config, monkeypatch):
    def allocate(*_, **__):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[1048576,1048576]")

    monkeypatch.setattr(keras.Model, "fit", allocate)
    assert refused(training.train, tiny_config, tmp_path / "run") == MEMORY


@pytest.mark.slow  # TensorFlow asks for ten seconds whether there is memory by now
def test_tensorflow_s_own_lack_of_memory_has_a_short_error(tmp_path, tiny_config):
    config = training.with_fields(tiny_config, stem_width=2, widths=(2**17,), blocks_per_stage=(1,))
    assert refused(training.train, config, tmp_path / "run") == MEMORY


def test_other_errors_do_not_count_as_out_of_memory():
    full = tf.errors.ResourceExhaustedError(None, None, "/disk/file; No space left on device")
    for error in (full, ValueError("cannot allocate")):
        with pytest.raises(type(error)), translate_errors(out_of_memory_error("memory")):
            raise error
    with pytest.raises(UserError, match="^memory$"), translate_errors(out_of_memory_error("memory")):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes")  # as JAX says it
