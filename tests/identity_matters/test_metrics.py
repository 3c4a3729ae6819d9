"""The rows of metrics.csv: what each training column holds, and that a test loss that is not finite ends the run."""

import dataclasses

import numpy as np
import processes
import pytest
from begun import read_config_json
from scipy.special import log_softmax

from identity_matters import training
from identity_matters.callbacks import Progress, StopOnNaN
from identity_matters.data.batches import ArrayBatches
from identity_matters.data.source import open_source
from identity_matters.errors import EvaluationFailed
from identity_matters.model import all_conv_resnet
from identity_matters.runs.tables import read_metrics


@pytest.fixture(scope="module")
def config(tiny_config):
    """Four updates of 16 of 200 examples; the rate drops after the second, and the penalty is not small."""
    model = dataclasses.replace(tiny_config.model, weight_decay=0.1, residual_initializer="standard")
    return dataclasses.replace(tiny_config, model=model, decay_steps=(2,), eval_every=1)


@pytest.fixture(scope="module")
def every_step(config, tmp_path_factory):
    """The directory of a run of 3 updates a second, with rows of steps 1, 2, 3 and 4."""
    run_dir = tmp_path_factory.mktemp("runs") / "every_step"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Progress, "pop_steps_per_second", lambda self: 3.0)
        patched.setattr("identity_matters.run.write_results", lambda *_: None)
        training.train(config, run_dir)
    return run_dir


@pytest.fixture
def rows(every_step):
    return read_metrics(every_step / "metrics.csv")


@pytest.mark.slow
def test_the_first_row_has_the_figures_of_the_initial_network_on_the_first_batch(config, rows):
    batches = ArrayBatches(open_source(config.data), config)
    network = all_conv_resnet(config.model, config.seed)
    plan, labels = next(batches.train_batches(0))
    logits = batches.attach(network)(plan).numpy()
    cross_entropy = -np.mean(log_softmax(logits, axis=1)[range(len(labels)), labels])
    penalty = float(sum(network.losses))
    assert penalty > 0.1
    assert rows[0]["train_cross_entropy"] == pytest.approx(cross_entropy, rel=1e-5)
    assert rows[0]["loss"] == pytest.approx(cross_entropy + penalty, rel=1e-5)
    assert rows[0]["train_top1_error"] == pytest.approx(np.mean(logits.argmax(axis=1) != labels))


@pytest.mark.slow
def test_epochs_images_operations_and_rates_are_those_of_the_updates_so_far(rows):
    assert [row["epoch"] for row in rows] == pytest.approx([step * 16 / 200 for step in (1, 2, 3, 4)])
    # 2·k²·a·b·h·w each: of the stem, for the kernel and the output; of the others, for the input too.
    stem, first, last = 2 * 9 * 4 * 28**2, 2 * 2 * 9 * 16 * 28**2, 2 * 9 * (32 + 64) * 14**2
    operations = 16 * (2 * stem + 3 * (first + last))
    assert [row["train_flops"] for row in rows] == pytest.approx([step * operations for step in (1, 2, 3, 4)])
    assert [row["images_per_second"] for row in rows] == [3 * 16] * 4
    # The rate of the update before the evaluation.
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.05, 0.05, 0.005, 0.005])


@pytest.mark.slow
def test_a_non_finite_evaluation_stops_the_run_which_can_resume(
    config, every_step, tmp_path, monkeypatch, without_results
):
    config = dataclasses.replace(config, eval_every=2, checkpoint_every=1)
    with monkeypatch.context() as patched:
        check = StopOnNaN.on_test_end
        patched.setattr(StopOnNaN, "on_test_end", lambda self, logs: check(self, logs | {"cross_entropy": np.nan}))
        with pytest.raises(
            EvaluationFailed, match=r"after step 2 gave .* training loss is 3\.\d+ and .* same command continues"
        ):
            training.train(config, tmp_path / "run")
    assert read_config_json(tmp_path / "run")["status"] == "failed"
    training.train(config, tmp_path / "run")
    processes.assert_same_variables(tmp_path / "run", every_step, 4)


@pytest.mark.slow
def test_a_test_loss_that_is_not_finite_ends_the_run_although_the_training_loss_was(config, tmp_path):
    config = dataclasses.replace(config, learning_rate=1e30, train_steps=1)
    with pytest.raises(training.Diverged):
        training.train(config, tmp_path)
    record = read_config_json(tmp_path)
    assert (record["status"], record["diverged_at_step"]) == ("diverged", 1)
    assert not (tmp_path / "metrics.csv").exists()
