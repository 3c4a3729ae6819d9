"""A SavedModel that this user exported is evaluated; any other one is rejected without --trust_saved_model."""

import os
import pathlib
import shutil
import stat

import keras
import numpy as np
import pytest
import tensorflow as tf
from refusals import refused

from identity_matters.evaluation import evaluate, export
from identity_matters.model import all_conv_resnet
from identity_matters.saved_model_signature import key_path

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 28, 28, 1)).astype(np.uint8)
LABELS = np.arange(40) % 10


@pytest.fixture
def run(tiny_run, tmp_path):
    return shutil.copytree(tiny_run, tmp_path / "run")


@pytest.fixture
def other_user(monkeypatch, tmp_path):
    """The state folder of another user, who has exported nothing."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def error_counted(run, network) -> float:
    answers = keras.ops.convert_to_numpy(network(IMAGES.astype(np.float32))).argmax(1)
    return float(np.mean(answers != LABELS))


def test_the_saved_model_is_evaluated_and_not_the_network_beside_it(launch, run, tiny_config):
    expected = error_counted(run, keras.saving.load_model(run / "model.keras"))
    (run / "model.keras").write_bytes(b"damaged")
    for path in (run, run / "saved_model", f"{run}/saved_model/"):
        assert evaluate(path, (IMAGES, LABELS))["top1_error"] == pytest.approx(expected)
    export(all_conv_resnet(tiny_config.model, seed=5), str(run / "saved_model"))  # other weights than model.keras had
    other = tf.saved_model.load(str(run / "saved_model")).signatures["serving_default"]
    answers = other(images=tf.constant(IMAGES, tf.float32))["logits"].numpy().argmax(1)
    assert evaluate(run, (IMAGES, answers))["top1_error"] == 0


def saved_files(folder) -> list[str]:
    return [str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*") if path.is_file()]


def test_one_changed_byte_in_any_file_is_an_error_that_names_the_flag(launch, run):
    folder = run / "saved_model"
    names = saved_files(folder)
    assert {"saved_model.pb", "variables/variables.index", "assets.extra/signature.txt"} <= set(names)
    for name in names:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        code, out, err = launch("evaluate", f"--saved_model={folder}")
        assert (code, out) == (1, "") and "--trust_saved_model" in err and "can run code" in err
        (folder / name).write_bytes(content)
    assert launch("evaluate", f"--saved_model={folder}")[0] == 0


@pytest.mark.parametrize("change", ["emptied", "added", "removed", "renamed", "lengthened"])
def test_files_that_are_not_those_exported_are_rejected(run, change):
    folder = run / "saved_model"
    if change == "emptied":
        (folder / "saved_model.pb").write_bytes(b"")
    if change == "added":
        (folder / "saved_model.pbtxt").write_text("")
    if change == "removed":
        (folder / "fingerprint.pb").unlink()
    if change == "renamed":
        (folder / "fingerprint.pb").rename(folder / "other.pb")
    if change == "lengthened":
        with open(folder / "assets.extra" / "signature.txt", "a") as file:
            file.write("0")
    assert "--trust_saved_model" in refused(evaluate, folder, (IMAGES, LABELS))


def test_a_copy_in_another_folder_keeps_its_signature(run, tmp_path):
    expected = evaluate(run / "saved_model", (IMAGES, LABELS))
    shutil.move(run / "saved_model", tmp_path / "elsewhere")
    shutil.rmtree(run)
    assert evaluate(tmp_path / "elsewhere", (IMAGES, LABELS)) == expected


def test_another_users_export_is_evaluated_only_if_it_is_trusted(launch, run, other_user, tmp_path):
    expected = evaluate(run / "model.keras", (IMAGES, LABELS))
    assert "--trust_saved_model" in refused(evaluate, run, (IMAGES, LABELS))  # this user has no key
    export(keras.Sequential([keras.Input((2, 5, 1)), keras.layers.Flatten()]), str(tmp_path / "own"))
    assert "--trust_saved_model" in refused(evaluate, run, (IMAGES, LABELS))  # another one
    assert evaluate(run, (IMAGES, LABELS), trust_saved_model=True) == expected
    code, out, _ = launch("evaluate", f"--saved_model={run}", "--trust_saved_model", "--json")
    assert code == 0 and '"num_examples": 50' in out


def test_only_this_user_can_read_the_key_which_stays_the_same(other_user, tmp_path):
    network = keras.Sequential([keras.Input((2, 5, 1)), keras.layers.Flatten()])
    export(network, str(tmp_path / "first"))
    key = pathlib.Path(key_path())
    content = key.read_bytes()
    assert key == tmp_path / "state" / "identity_matters" / "key" and len(content) == 32
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    export(network, str(tmp_path / "second"))
    assert key.read_bytes() == content and os.listdir(key.parent) == ["key"]
    images = (IMAGES[:, :2, :5], LABELS)
    assert evaluate(tmp_path / "first", images) == evaluate(tmp_path / "second", images)
    key.chmod(0o644)  # others could sign with it
    assert "--trust_saved_model" in refused(evaluate, tmp_path / "first", images)


def test_the_state_folder_is_below_home_unless_another_is_named(monkeypatch):
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert key_path() == "/home/ada/.local/state/identity_matters/key"


def test_an_export_without_a_place_for_the_key_is_unsigned_and_says_so(monkeypatch, tmp_path, capfd):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    export(keras.Sequential([keras.Input((2, 5, 1)), keras.layers.Flatten()]), str(tmp_path / "model"))
    assert "note: the SavedModel is not signed" in capfd.readouterr().err
    assert "--trust_saved_model" in refused(evaluate, tmp_path / "model", (IMAGES[:, :2, :5], LABELS))


def test_a_saved_model_of_other_logits_than_the_network_is_not_exported(monkeypatch, tiny_config, tmp_path):
    network, save = all_conv_resnet(tiny_config.model), tf.saved_model.save

    def save_others(module, *arguments, **options):
        weights = network.get_weights()
        network.set_weights([1.01 * array for array in weights])
        save(module, *arguments, **options)
        network.set_weights(weights)

    monkeypatch.setattr(tf.saved_model, "save", save_others)
    with pytest.raises(RuntimeError, match="other logits than the network"):
        export(network, str(tmp_path / "saved_model"))
    assert os.listdir(tmp_path) == []
