"""What TensorBoard shows of a training run, asked of TensorBoard itself."""

import shutil

import pytest
from boards import metrics_and_sessions, tensorboard

from identity_matters.runs.metrics_log import tag
from identity_matters.runs.tables import read_metrics


@pytest.fixture(scope="module")
def ask(tiny_run, tmp_path_factory):
    logdir = tmp_path_factory.mktemp("logs") / "runs"
    shutil.copytree(tiny_run, logdir / "first")
    with tensorboard(logdir) as ask:
        yield ask


@pytest.mark.slow
def test_the_run_has_its_directorys_name_and_its_groups(ask, tiny_run):
    tags = ask("plugin/scalars/tags")
    assert list(tags) == ["first"]
    columns = read_metrics(tiny_run / "metrics.csv")[-1].keys() - {"step"}
    assert set(tags["first"]) == {tag(column) for column in columns}
    groups = sorted({name.partition("/")[0] for name in tags["first"]})
    assert groups == ["error", "loss", "norm", "optimizer", "speed"]
    assert set(ask("plugin/images/tags")["first"]) == {"pictures/convergence", "pictures/input_images"}
    (histogram, *_) = ask("plugin/histograms/tags")["first"]
    assert histogram.startswith("weights/")


def test_every_column_has_its_tag():
    columns = ["loss", "train_cross_entropy", "test_cross_entropy", "train_top1_error", "test_top5_error"]
    columns += ["kernel_norm", "kernel_norm_stage1", "images_per_second", "train_flops"]
    columns += ["learning_rate", "epoch", "staleness"]
    assert [tag(column) for column in columns] == [
        "loss/train", "loss/train_cross_entropy", "loss/test_cross_entropy", "error/train_top1", "error/test_top5",
        "norm/kernels", "norm/kernels_stage1", "speed/images_per_second", "speed/train_flops",
        "optimizer/learning_rate", "optimizer/epoch", "optimizer/staleness",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_training_run_has_a_line_of_hparams_with_its_last_error(ask, tiny_run, tiny_config):
    metrics, (group,) = metrics_and_sessions(ask)
    assert metrics[0] == "error/test_top1" and "loss/train" in metrics
    hparams = group["hparams"]
    assert hparams["learning_rate"] == tiny_config.learning_rate and hparams["widths"] == "4,8"
    values = {value["name"]["tag"]: value["value"] for value in group["metricValues"]}
    last = read_metrics(tiny_run / "metrics.csv")[-1]
    assert values["error/test_top1"] == pytest.approx(last["test_top1_error"], rel=1e-6)
    assert group["sessions"][0]["status"] == "STATUS_SUCCESS"
