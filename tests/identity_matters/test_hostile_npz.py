"""The .npz files of strangers: what was checked is what is read, any header is one line, bombs stay packed."""

import dataclasses
import pathlib
import tempfile
import zipfile

import damage
import numpy as np
import pytest
from damage import npy, with_header
from hypothesis import example, given, settings
from hypothesis import strategies as st
from loaded import load_npz, npz_digest
from refusals import refused

from identity_matters import training
from identity_matters.config import DataConfig
from identity_matters.data import npz as npz_source
from identity_matters.data.source import open_source
from identity_matters.evaluation import evaluate
from identity_matters.runs import checkpoint, npz
from identity_matters.runs.config_json import read_config_json

ARRAYS = {
    "train_images": np.arange(6 * 8 * 8, dtype=np.uint8).reshape(6, 8, 8),
    "train_labels": np.array([0, 1, 2, 0, 1, 2]),
    "test_images": np.zeros((5, 8, 8), np.uint8),
    "test_labels": np.array([2, 1, 0, 1, 2]),
}


def write(path, *others, compression=zipfile.ZIP_STORED, **changes) -> str:
    """The four arrays, some changed to any bytes, and other members (name, content) after them."""
    members = [(f"{name}.npy", changes.get(name, npy(array))) for name, array in ARRAYS.items()]
    return damage.write(path, [*members, *others], compression)


@pytest.mark.parametrize("header", damage.HEADERS, ids=range(len(damage.HEADERS)))
def test_a_checkpoint_with_a_damaged_header_is_skipped(tmp_path, header):
    write(tmp_path / "step_00000001.npz", train_images=with_header(header))
    with pytest.warns(UserWarning):
        assert checkpoint.load_newest(str(tmp_path)) is None


@settings(max_examples=80, deadline=None)
@given(st.text("{}()[]'\"\\,:=-+*.#<>|fuO0123456789LFalse shapedcrotn_\n\té", max_size=200), st.integers(0, 3))
def test_a_header_of_any_text_is_refused_or_that_of_the_array(text, version):
    with tempfile.TemporaryDirectory() as folder:
        content = with_header(text.encode(), ARRAYS["test_images"].tobytes(), (max(1, version), 0))
        path = write(pathlib.Path(folder) / "x.npz", test_images=content)
        assert len(refused(load_npz, path)) < 500


@settings(max_examples=80, deadline=None)
@example([(1781, 2)], False)  # zipfile's sentence then quotes the archive
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=8), st.booleans())
def test_whatever_bytes_change_the_arrays_are_those_that_were_written_or_refused(flips, is_packed):
    with tempfile.TemporaryDirectory() as folder:
        method = zipfile.ZIP_DEFLATED if is_packed else zipfile.ZIP_STORED
        path = write(pathlib.Path(folder) / "x.npz", compression=method)
        content = bytearray(pathlib.Path(path).read_bytes())
        for position, change in flips:
            content[position % len(content)] ^= change
        pathlib.Path(path).write_bytes(content)
        try:
            data = load_npz(path)
        except ValueError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000
        else:
            for name, array in ARRAYS.items():
                np.testing.assert_array_equal(getattr(data, name).reshape(array.shape), array)


@pytest.fixture
def exchanged(tmp_path, monkeypatch):
    """A config of an .npz file that somebody exchanges as soon as it has been read, and its digest before."""
    path = write(tmp_path / "x.npz", train_labels=npy(np.array([0, 1, 2, 2, 1, 0])))
    digest = npz_digest(path)
    read = npz_source._read

    def read_and_exchange(*arguments):
        found = read(*arguments)
        write(tmp_path / "x.npz")
        return found

    monkeypatch.setattr(npz_source, "_read", read_and_exchange)
    return DataConfig(npz=path), digest


@pytest.mark.slow
def test_a_run_records_the_digest_of_the_file_that_it_read(exchanged, tiny_config, tmp_path):
    config, digest = exchanged
    steps = {"data": config, "batch_size": 2, "train_steps": 1}
    training.train(dataclasses.replace(tiny_config, decay_steps=(), **steps), tmp_path / "run")
    assert npz_digest(config.npz) != digest == read_config_json(str(tmp_path / "run"))["data_digest"]
    for path in ("saved_model", "model.keras"):
        assert "has changed since" in refused(evaluate, tmp_path / "run" / path)


def test_what_is_held_out_of_a_file_or_shortened_keeps_its_digest(exchanged):
    config, digest = exchanged
    config = dataclasses.replace(config, validation_examples=1, train_examples=2, image_size=9)
    assert open_source(config).digest == digest


def test_an_open_file_gives_each_array_as_numpy_does(tmp_path):
    arrays = {"f": np.asfortranarray(np.arange(12.0).reshape(3, 4)), "e": np.zeros((0, 3), ">i2"), "s": np.float16(2.5)}
    np.savez(tmp_path / "x.npz", **arrays)
    found = npz.read_arrays(str(tmp_path / "x.npz"))
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
