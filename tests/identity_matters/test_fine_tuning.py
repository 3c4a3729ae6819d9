"""Runs that are extended, begin with the weights of another network, or freeze some layers."""

import dataclasses
import hashlib
import os
import shutil

import numpy as np
import pytest
from begun import begin, edit, newest_checkpoint, read_config_json
from refusals import refused

from identity_matters import training
from identity_matters.config import TrainConfig
from identity_matters.model import ModelConfig, all_conv_resnet
from identity_matters.runs import files
from identity_matters.runs.record import read_record
from identity_matters.runs.tables import read_metrics
from identity_matters.starting_weights import freeze, load_matching_weights
from identity_matters.untrusted import load_network
from launch.trained_run import SavedRunFlags, load_model


@pytest.fixture(scope="module")
def whole(tiny_config, tmp_path_factory):
    """A run of 8 updates without a break."""
    run_dir = tmp_path_factory.mktemp("runs") / "whole"
    training.train(dataclasses.replace(tiny_config, train_steps=8, decay_steps=(3, 6)), run_dir)
    return run_dir


def final(run_dir):
    return newest_checkpoint(str(run_dir / "checkpoints"))


@pytest.mark.slow
def test_a_finished_run_extended_ends_with_the_bits_of_the_longer_run(tiny_config, tiny_run, whole, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "run")
    longer = dataclasses.replace(tiny_config, train_steps=8, decay_steps=(3, 6))
    assert training.train(longer, tmp_path / "run")["step"] == 8
    (step, arrays), (_, expected) = final(tmp_path / "run"), final(whole)
    assert step == 8 and arrays.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array, name)
    rows, expected_rows = (read_metrics(str(path / "metrics.csv")) for path in (tmp_path / "run", whole))
    assert [row["test_cross_entropy"] for row in rows] == [row["test_cross_entropy"] for row in expected_rows]
    exported = load_network(str(tmp_path / "run" / "model.keras"))
    assert all(np.array_equal(v, expected[f"variable/{v.path}"]) for v in exported.variables)
    assert training.train(longer, tmp_path / "run")["step"] == 8  # and is finished


@pytest.mark.parametrize(
    "schedule, old_drops, changes, fields",
    [
        ("piecewise", (3,), {"decay_steps": (3, 6)}, ("train_steps", "decay_steps")),
        ("piecewise", (3, 5), {"decay_steps": (3,)}, ("train_steps", "decay_steps")),  # the old one came not so far
        ("piecewise", (3,), {"decay_steps": (2,)}, ("train_steps",)),
        ("constant", (), {}, ("train_steps", "decay_steps")),
        ("linear", (), {}, ()),
        ("cosine", (), {}, ()),
        ("piecewise", (3,), {"train_steps": 3}, ()),
    ],
)
def test_longer_run_may_change_only_what_earlier_updates_do_not_depend_on(schedule, old_drops, changes, fields):
    old = TrainConfig(train_steps=4, schedule=schedule, decay_steps=old_drops)
    new = dataclasses.replace(old, **{"train_steps": 8} | changes)
    assert new.resumable_changes(dataclasses.asdict(old)) == fields
    if fields == ("train_steps", "decay_steps"):
        rates = [training.learning_rate_schedule(config) for config in (old, new)]
        assert [float(rates[0](step)) for step in range(4)] == [float(rates[1](step)) for step in range(4)]


@pytest.mark.parametrize("steps", [None, 5, ["a"], {}])
def test_a_damaged_config_of_a_shorter_run_is_not_gone_on_with(steps):
    assert TrainConfig(train_steps=8, decay_steps=()).resumable_changes({"train_steps": 4, "decay_steps": steps}) == ()


def test_a_schedule_that_ends_with_the_run_is_rejected_with_advice(tiny_config, tmp_path):
    linear = dataclasses.replace(tiny_config, schedule="linear", decay_steps=(), train_steps=2)
    begin(tmp_path / "run", linear, status="done")
    before = (tmp_path / "run" / "config.json").read_bytes()
    message = refused(training.train, dataclasses.replace(linear, train_steps=4), tmp_path / "run")
    assert "train_steps (2, 4); train_steps can grow unless the schedule ends with it" in message
    assert message.endswith("--init_from this") and (tmp_path / "run" / "config.json").read_bytes() == before


def taken(network, source):
    """Takes the weights of a source, as if it were the run RUN; returns the line that says which."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("identity_matters.starting_weights.load_source", lambda _: source)
        return load_matching_weights(network, "RUN")[0]


def test_weights_are_taken_by_name_and_shape():
    network, other = (
        all_conv_resnet(ModelConfig(image_shape=(8, 8, 3), widths=(4, 8), blocks_per_stage=(1, blocks), stem_width=4,
                                    num_classes=classes), seed)
        for blocks, classes, seed in ((2, 7, 0), (1, 10, 1))
    )  # fmt: skip
    before = {variable.path: variable.numpy() for variable in network.variables}
    line = taken(network, other)
    new = {f"stage2_block2_conv{k}/kernel" for k in (1, 2)} | {"projection/kernel"}
    for variable in network.variables:
        expected = before if variable.path in new else {v.path: v for v in other.variables}
        np.testing.assert_array_equal(variable, expected[variable.path], variable.path)
    assert line == (
        "5 of the network's 8 variables begin with the weights of RUN; new: stage2_block2_conv1/kernel [3, 3, 8, 8], "
        "stage2_block2_conv2/kernel [3, 3, 8, 8], projection/kernel [8, 7]"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("without_results")
def test_a_fresh_head_keeps_its_own_weights_where_all_others_are_taken(tiny_config, tiny_run, tmp_path):
    config = dataclasses.replace(tiny_config, init_from=str(tiny_run), seed=1, train_steps=1, eval_every=1)
    training.train(dataclasses.replace(config, fresh="projection"), tmp_path / "run")  # which is not trained
    own = all_conv_resnet(dataclasses.replace(tiny_config.model, num_classes=10), seed=1).get_layer("projection").kernel
    (found, taken) = (final(path)[1]["variable/projection/kernel"] for path in (tmp_path / "run", tiny_run))
    np.testing.assert_array_equal(found, own)
    assert not np.array_equal(found, taken)
    unknown = dataclasses.replace(config, fresh="head")
    assert "fresh names 'head', but no layer" in refused(training.train, unknown, tmp_path / "unknown")


def test_a_network_of_grey_images_computes_the_same_as_one_of_colour_images():
    colour, grey = (
        all_conv_resnet(ModelConfig(image_shape=(8, 8, c), widths=(4, 8), blocks_per_stage=(1, 1), stem_width=4), seed)
        for c, seed in ((3, 1), (1, 0))
    )
    line = taken(grey, colour)
    assert "6 of the network's 6 variables" in line and "; stem_conv/kernel is summed over the colours" in line
    image = np.random.default_rng(0).standard_normal((5, 8, 8, 1)).astype(np.float32)
    np.testing.assert_allclose(grey(image), colour(image.repeat(3, axis=-1)), rtol=1e-5, atol=1e-6)
    assert "new: stem_conv/kernel [3, 3, 3, 4]" in taken(colour, grey)  # but not the other way round


@pytest.mark.slow
def test_a_run_begins_with_another_and_keeps_what_is_frozen(tiny_config, whole, tmp_path, capfd, monkeypatch):
    tuned = dataclasses.replace(tiny_config, init_from=str(whole), freeze="stem,stage1")
    training.train(tuned, tmp_path / "run")
    assert "6 of the network's 6 variables begin with the weights of" in capfd.readouterr().err
    expected = final(whole)[1]
    for variable in load_network(str(tmp_path / "run" / "model.keras")).variables:
        is_kept = variable.path.startswith(("stem", "stage1", "projection"))  # the projection is not trained at all
        assert np.array_equal(variable, expected[f"variable/{variable.path}"]) == is_kept, variable.path
    initial, _ = load_model(tuned, SavedRunFlags(str(tmp_path / "run"), at_step=0))
    for variable, other in zip(initial.variables, load_network(str(whole / "model.keras")).variables):
        np.testing.assert_array_equal(variable, other)
    monkeypatch.setattr("identity_matters.run.write_results", lambda *_: None)
    row = training.train(tiny_config, tmp_path / "by_argument", init_from=whole / "model.keras")
    assert row["step"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("place", ["source", "source/model.keras"])
def test_a_run_begins_again_with_the_weights_of_its_first_beginning(
    place, tiny_config, tiny_run, whole, tmp_path, monkeypatch, without_results
):
    def put(run):
        shutil.rmtree(tmp_path / "source", ignore_errors=True)
        if run:
            shutil.copytree(run, tmp_path / "source")
            os.utime(tmp_path / "source" / "model.keras", (0, 0))

    def begun_again():
        """The run that a kill before its first checkpoint leaves, and the same command."""
        for name in ("checkpoints", "metrics.csv"):
            files.remove(str(run / name))
        edit(run, status="running")
        training.train(tuned, str(run))

    def has_begun_as_before():
        return all(np.array_equal(array, expected[name]) for name, array in final(run)[1].items())

    monkeypatch.chdir(tmp_path)
    put(whole)
    run, tuned = tmp_path / "run", dataclasses.replace(tiny_config, init_from=place)
    training.train(tuned, str(run))
    (_, expected), digest = final(run), read_config_json(run)["init_digest"]
    # Another network at the path, as when the run there goes on; nothing there any more.
    for later, reason in ((tiny_run, "has changed since the run began"), (None, "source")):
        put(later)
        assert reason in refused(begun_again)
        assert reason in refused(load_model, tuned, SavedRunFlags(str(run), at_step=0))
        assert read_config_json(run)["init_digest"] == digest
    put(whole)  # the same weights in another file
    load_model(tuned, SavedRunFlags(str(run), at_step=0))
    begun_again()
    assert read_config_json(run)["init_digest"] == digest and has_begun_as_before()


@pytest.mark.slow
def test_a_source_from_another_folder_is_another_one(tiny_config, tiny_run, whole, tmp_path, monkeypatch, launch):
    """Every command resolves a relative path against the directory in which the run was started."""
    for folder, source in (("first", whole), ("second", tiny_run)):
        shutil.copytree(source, tmp_path / folder / "source")
    monkeypatch.chdir(tmp_path / "first")
    training.train(dataclasses.replace(tiny_config, init_from="source"), "run")
    monkeypatch.chdir(tmp_path / "second")
    config = read_record("../first/run").config_as(TrainConfig())
    assert config.init_from == str(tmp_path / "first" / "source")
    load_model(config, SavedRunFlags("../first/run", at_step=0))
    absolute = dataclasses.replace(tiny_config, init_from=config.init_from)
    assert training.train(absolute, "../first/run")["step"] == 4  # it is the same run
    assert "another config (old, new): init_from" in refused(
        training.train, dataclasses.replace(tiny_config, init_from="../second/source"), "../first/run"
    )
    shutil.rmtree(tmp_path / "first" / "source")
    for name, flags in (("near_identity", ["--examples=10"]), ("hessian_spectrum", ["--examples=10", "--order=2"])):
        code, _, err = launch(name, "--saved_run=../first/run", "--at_step=0", f"--run_dir={name}", *flags)
        assert code == 1 and f"no run or file {tmp_path}/first/source" in err.splitlines()[-1], err


def test_unfit_starting_weights_are_a_short_error_and_leave_nothing(tiny_config, tiny_run, tmp_path):
    named = "digits, cifar10_fast"
    for source, reason in (
        ("none", named),
        ("runs/none", "no run or file runs/none"),
        (tmp_path, "No such file"),
        (tmp_path / "x.keras", "No such file"),
    ):
        message = refused(training.train, tiny_config, tmp_path / "run", init_from=source)
        assert reason in message
        assert not (tmp_path / "run" / "config.json").exists()
    network = all_conv_resnet(ModelConfig(image_shape=(8, 8, 3), widths=(5,), blocks_per_stage=(1,), stem_width=5))
    assert "has no weights of the names and shapes" in refused(load_matching_weights, network, str(tiny_run))


def test_one_kernel_is_enough_to_take_and_one_to_train(monkeypatch):
    tiny = ModelConfig(image_shape=(8, 8, 3), widths=(5,), blocks_per_stage=(1,), stem_width=5)
    network = all_conv_resnet(tiny)
    other = all_conv_resnet(dataclasses.replace(tiny, widths=(6,), num_classes=3), seed=1)
    monkeypatch.setattr("identity_matters.starting_weights.load_source", lambda source: other)
    line, digest = load_matching_weights(network, "RUN")
    assert line.startswith("1 of the network's 4 variables begin")
    np.testing.assert_array_equal(network.variables[0], other.variables[0])
    arrays = {variable.path: variable.numpy() for variable in other.variables}
    parts = (f"{path} float32 {array.shape}".encode() + array.tobytes() for path, array in arrays.items())
    assert digest == hashlib.blake2b(b"".join(parts), digest_size=8).hexdigest()
    freeze(network, "stage1")
    assert [variable.path for variable in network.trainable_variables] == ["stem_conv/kernel"]


@pytest.mark.parametrize(
    "prefixes, reason",
    [
        ("stem,nix", "freeze names 'nix', but no layer with weights has such a name; try stem, stage1, projection"),
        ("s", "freeze s leaves nothing to train"),
    ],
)
def test_layers_to_freeze_must_be_there_and_leave_some_to_train(prefixes, reason):
    network = all_conv_resnet(ModelConfig(image_shape=(8, 8, 3), widths=(5,), blocks_per_stage=(1,), stem_width=5))
    assert refused(freeze, network, prefixes) == reason
