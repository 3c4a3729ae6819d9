"""Each entry of the table of damaged files (tests/damage.py) is refused in one short line that names what is wrong."""

import dataclasses
import shutil
import tracemalloc

import damage
import keras
import pytest
from gradient_sets import IdentityTinyJpeg
from loaded import load, load_npz
from refusals import refused

from identity_matters.config import DataConfig, TrainConfig
from identity_matters.evaluation import evaluate
from identity_matters.runs import tables
from identity_matters.runs.directory import RunDirectory
from identity_matters.safe_loading import load_network


def of_table(table, slow=()):
    """Parameters (make, words) of a table's entries."""
    marks = {name: [pytest.mark.slow] * (name in slow) for name in table}
    return pytest.mark.parametrize(
        "make, words", [pytest.param(make, words, id=name, marks=marks[name]) for name, (make, *words) in table.items()]
    )


def refused_in_little_memory(read, path, words, limit) -> str:
    """Returns the message; fails where words lack in it, or it took more bytes than a whole file of its kind takes."""
    tracemalloc.start()
    try:
        message = refused(read, str(path))
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()
    assert [word for word in words if word not in message] == [] and len(message) < 600, message
    return message


@of_table(damage.NPZ)
def test_a_damaged_npz_file_is_refused(tmp_path, make, words):
    path = tmp_path / "own.npz"
    damage.with_arrays()(path)
    make(path)
    message = refused_in_little_memory(load_npz, path, words, 5 * 10**6)
    assert str(path) in message or words


def save_another_network(path):
    x = keras.Input((3,))
    keras.Model(x, keras.layers.Dense(2, kernel_initializer="zeros")(x)).save(path)


@of_table(
    damage.KERAS | {"another shape": (save_another_network, "one number per class")},
    slow=("deep", "folder", "link to nothing"),
)
def test_a_damaged_network_is_refused(tiny_run, tmp_path, make, words):
    path = shutil.copy(tiny_run / "model.keras", tmp_path / "model.keras")
    make(path)
    message = refused_in_little_memory(load_network, path, words, 10**8)
    assert message.startswith(f"cannot load {path}: ") and not (tmp_path.parent / "evil").exists()
    assert refused(evaluate, path, "mnist_sample") == message


@pytest.fixture(scope="module")
def prepared_set(tmp_path_factory):
    path = tmp_path_factory.mktemp("tfds") / "data"
    IdentityTinyJpeg(data_dir=str(path)).download_and_prepare()
    return path


@of_table(damage.TFDS | damage.TFDS_FROM_FILES)
def test_a_damaged_set_of_tfds_is_refused(prepared_set, tmp_path, make, words):
    shutil.copytree(prepared_set, tmp_path / "data")
    config = DataConfig("identity_tiny_jpeg", str(tmp_path / "data"), image_size=8)
    make(tmp_path / "data" / "identity_tiny_jpeg" / "1.0.0")
    if make in [entry[0] for entry in damage.TFDS_FROM_FILES.values()]:
        config = dataclasses.replace(config, dataset="identity_tiny_jpeg:1.0.0")
    message = refused(load, config)
    assert [word for word in words if word not in message] == [] and len(message) < 1000, message


@pytest.mark.parametrize("text", damage.TABLES.values(), ids=damage.TABLES)
def test_a_damaged_table_is_refused(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode(errors="surrogateescape"))
    for read in (tables.read_rows, tables.read_metrics):
        message = refused(read, str(path))
        assert str(path) in message and len(message) < 500
        assert "line 3 has 1 cells" in message or text != damage.TABLES["a short row"]


@pytest.mark.parametrize("text", damage.RECORDS.values(), ids=damage.RECORDS)
def test_a_damaged_config_json_is_refused_and_stays(tmp_path, text):
    (tmp_path / "config.json").write_bytes(content := text.encode(errors="surrogateescape"))
    message = refused(RunDirectory, str(tmp_path), TrainConfig())
    assert (tmp_path / "config.json").read_bytes() == content
    assert "config.json is not a run's config.json" in message and len(message) < 500
