"""The user's .npz files: accepted forms, and files that are rejected before they are read."""

import hashlib
import zipfile

import numpy as np
import pytest
from loaded import load, load_npz, npz_digest
from npz_arrays import arrays
from refusals import refused

from identity_matters.config import DataConfig
from identity_matters.data.base import read_all
from identity_matters.data.source import open_source


def load_test_examples(path):
    return read_all(open_source(DataConfig(npz=path)), ["test"])


def npz(tmp_path, save=np.savez, **changes) -> str:
    path = tmp_path / "own.npz"
    save(path, **{name: array for name, array in arrays(**changes).items() if array is not None})
    return str(path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_file_gives_back_its_arrays(tmp_path, save):
    data = load_npz(npz(tmp_path, save))
    for name, array in arrays().items():
        np.testing.assert_array_equal(getattr(data, name), array)
    assert (data.source.num_classes, data.source.image_shape) == (3, (8, 4, 3)) and data.train_images.dtype == np.uint8


_NO_TRAINING = {"train_images": None, "train_labels": None}


def test_to_evaluate_on_the_test_arrays_suffice_and_to_train_they_do_not(tmp_path):
    whole, found = arrays(), load_test_examples(npz(tmp_path, **_NO_TRAINING))
    np.testing.assert_array_equal(found[0], whole["test_images"])
    np.testing.assert_array_equal(found[1], whole["test_labels"])
    config = DataConfig(npz=npz(tmp_path, **_NO_TRAINING), image_size=8, eval_examples=3)
    assert read_all(open_source(config), ["test"])[0].shape == (3, 8, 8, 3)
    assert "lacks train_images, train_labels; it holds test_images" in refused(load, config)
    np.savez(tmp_path / "keras.npz", x_test=whole["test_images"], y_test=whole["test_labels"])
    np.testing.assert_array_equal(load_test_examples(str(tmp_path / "keras.npz"))[0], found[0])
    for name in ("test_images", "test_labels"):
        assert f"lacks {name}" in refused(load_test_examples, npz(tmp_path, **{name: None}))


@pytest.mark.parametrize("change", [lambda labels: labels[:, None], lambda labels: np.eye(5)[labels]])
def test_labels_in_columns_and_one_hot_rows_are_taken(tmp_path, change):
    """Further forms are in test_arrays.py."""
    labels = {name: array for name, array in arrays().items() if "labels" in name}
    data = load_npz(npz(tmp_path, **{name: change(array) for name, array in labels.items()}))
    for name, array in labels.items():
        np.testing.assert_array_equal(getattr(data, name), array)


def test_image_size_resizes_every_image(tmp_path):
    ramp = np.broadcast_to((10 * np.arange(16)).astype(np.uint8)[:, None], (6, 16, 16))
    flat = np.broadcast_to(np.uint8([0, 1, 77, 254, 255])[:, None, None], (5, 16, 16))
    data = load(DataConfig(npz=npz(tmp_path, train_images=ramp, test_images=flat), image_size=8))
    assert data.train_images.shape == (6, 8, 8, 1) and data.train_images.dtype == np.uint8
    # Pixel i covers rows 2i and 2i + 1, and a ramp's mean is its middle; the border has no far side.
    np.testing.assert_array_equal(data.train_images[0, 1:-1, 3, 0], (20 * np.arange(8) + 5)[1:-1])
    np.testing.assert_array_equal(data.test_images[..., 0], flat[:, :8, :8])


def test_the_digest_of_a_file_is_only_of_its_four_arrays(tmp_path):
    digest = npz_digest(npz(tmp_path))
    assert digest == npz_digest(npz(tmp_path, np.savez_compressed, other=np.zeros(3)))
    keras = {"train_images": "x_train", "train_labels": "y_train", "test_images": "x_test", "test_labels": "y_test"}
    np.savez(tmp_path / "moved.npz", **{keras[name]: array for name, array in reversed(arrays().items())})
    assert digest == npz_digest(tmp_path / "moved.npz")
    changed = {npz_digest(npz(tmp_path, **{name: np.roll(array, 1, 0)})) for name, array in arrays().items()}
    assert len(changed | {digest}) == 5
    with zipfile.ZipFile(npz(tmp_path)) as file:
        members = [file.getinfo(f"{name}.npy") for name in keras]
    checksums = "".join(f"{member.CRC} {member.file_size} " for member in members)
    assert digest == hashlib.blake2b(checksums.encode(), digest_size=4).hexdigest()  # by which earlier runs go on


def test_arrays_of_a_file_that_nothing_reads_are_named(tmp_path, capfd):
    x, y = np.zeros((3, 8, 8), np.uint8), np.arange(3)
    arrays = {"train_images": x, "train_labels": y, "x_test": x, "y_test": y}
    np.savez(tmp_path / "mine.npz", **arrays)
    load_npz(str(tmp_path / "mine.npz"))
    assert not capfd.readouterr().err
    np.savez(tmp_path / "mine.npz", **arrays, val_images=x, val_labels=y)
    load_npz(str(tmp_path / "mine.npz"))
    assert "note: mine.npz: val_images, val_labels are not read; the errors are those" in capfd.readouterr().err


def test_a_file_that_is_not_there_is_said_in_the_words_of_the_system(tmp_path):
    found = refused(open_source, DataConfig(npz=str(tmp_path / "none.npz")))
    assert f"cannot read {tmp_path}/none.npz as an .npz file: No such file or directory" in found
