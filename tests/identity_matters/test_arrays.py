"""Data in memory: the embedded digits and the user's .npz files."""

import io
import zipfile

import numpy as np
import pytest
from refusals import refused

from identity_matters.config import TrainConfig
from identity_matters.data.arrays import ArrayData, load_npz, mnist_sample
from identity_matters.data.loading import load

# The embedded digits.


@pytest.fixture(scope="module")
def sample() -> ArrayData:
    return mnist_sample()


def test_the_embedded_sample_has_400_training_and_100_test_digits_of_each_class(sample):
    assert (sample.train_images.shape, sample.test_images.shape) == ((4000, 28, 28, 1), (1000, 28, 28, 1))
    assert (sample.train_images.dtype, sample.train_labels.dtype) == (np.uint8, np.int32)
    assert np.bincount(sample.train_labels).tolist() == [400] * 10
    assert np.bincount(sample.test_labels).tolist() == [100] * 10
    assert np.bincount(sample.train_labels[:200]).tolist() == [20] * 10  # the first examples are a sample of all


def test_the_embedded_training_and_test_digits_are_disjoint(sample):
    train, test = ({image.tobytes() for image in images} for images in (sample.train_images, sample.test_images))
    assert len(train) == 4000 and len(test) == 1000 and not train & test


def test_the_embedded_digits_have_their_labels(sample):
    """Class means tell 4 of 5 test digits apart, on other pixels or labels than these 1 of 10."""
    means = np.stack([sample.train_images[sample.train_labels == c].mean(0).ravel() for c in range(10)])
    test = sample.test_images.reshape(1000, -1).astype(np.float64)
    nearest = np.argmin(((test[:, None] - means) ** 2).sum(-1), axis=1)
    assert np.mean(nearest == sample.test_labels) > 0.75
    assert np.mean(nearest == np.roll(sample.test_labels, 1)) < 0.25


def test_the_first_so_many_examples_are_taken_on_request(sample):
    data = load(TrainConfig(dataset="mnist_sample", train_examples=30, eval_examples=7))
    np.testing.assert_array_equal(data.train_images, sample.train_images[:30])
    np.testing.assert_array_equal(data.test_labels, sample.test_labels[:7])


# The user's own data.


def arrays(**changes) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "train_images": rng.integers(0, 256, (6, 8, 4, 3), np.uint8),
        "train_labels": np.array([0, 1, 2, 0, 1, 2]),
        "test_images": rng.integers(0, 256, (5, 8, 4, 3), np.uint8),
        "test_labels": np.array([2, 1, 0, 1, 2]),
    } | changes


def npz(tmp_path, save=np.savez, **changes) -> str:
    path = tmp_path / "own.npz"
    save(path, **{name: array for name, array in arrays(**changes).items() if array is not None})
    return str(path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_file_gives_back_its_arrays(tmp_path, save):
    data = load(TrainConfig(npz=npz(tmp_path, save)))
    for name, array in arrays().items():
        np.testing.assert_array_equal(getattr(data, name), array)
    assert (data.num_classes, data.image_shape, data.train_images.dtype) == (3, (8, 4, 3), np.uint8)


def test_grey_images_gain_a_channel(tmp_path):
    grey = {name: arrays()[name][..., 0] for name in ("train_images", "test_images")}
    data = load_npz(npz(tmp_path, **grey))
    assert data.image_shape == (8, 4, 1)
    np.testing.assert_array_equal(data.test_images[..., 0], grey["test_images"])


def test_integers_of_any_width_are_taken(tmp_path):
    wide = {name: array.astype(np.int64) for name, array in arrays().items()}
    np.testing.assert_array_equal(load_npz(npz(tmp_path, **wide)).train_images, arrays()["train_images"])


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"test_labels": None}, ["own.npz", "lacks test_labels"]),
        ({"train_images": np.zeros((6, 8, 4, 3))}, ["train_images", "integers", "float64"]),
        ({"train_labels": np.zeros(6)}, ["train_labels", "integers", "float64"]),
        ({"train_images": np.full((6, 8, 4, 3), 256)}, ["train_images", "0–255", "256"]),
        ({"test_images": np.full((5, 8, 4, 3), -1)}, ["test_images", "0–255", "-1"]),
        ({"train_labels": np.array([0, 1, -1, 0, 1, 2])}, ["train", "labels", "-1"]),
        ({"test_labels": np.array([0, 1, 2, 3, 0])}, ["test", "0–2", "3"]),
        ({"train_labels": np.array([0, 1, 2**32, 0, 1, 2])}, ["labels", str(2**32)]),
        ({"train_labels": np.arange(5)}, ["6 images", "(5,)"]),
        ({"train_labels": np.eye(6, dtype=int)}, ["6 images", "(6, 6)"]),
        ({"test_images": np.zeros((5, 4, 8, 3), int)}, ["differ in shape", "(8, 4, 3)", "(4, 8, 3)"]),
        (
            {"train_images": np.zeros((0, 8, 4, 3), int), "train_labels": np.zeros(0, int)},
            ["not empty", "(0, 8, 4, 3)"],
        ),
        ({"train_images": np.zeros((6, 8), int)}, ["[n, h, w]", "(6, 8)"]),
        ({"train_labels": np.array([0, 1, "a", 0, 1, 2], object)}, ["own.npz", "cannot read"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_unfit_arrays_are_refused_with_what_was_found(tmp_path, changes, words):
    message = refused(load_npz, npz(tmp_path, **changes))
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize("content", ["missing", "junk", "empty", "truncated", "damaged", "an .npy file", "another zip"])
def test_a_file_that_is_no_npz_is_refused_by_name(tmp_path, content):
    path = tmp_path / "own.npz"
    if content != "missing":
        npz(tmp_path, np.savez_compressed)
        whole = path.read_bytes()
        single = io.BytesIO()
        np.save(single, np.zeros(3))
        path.write_bytes(
            {
                "junk": b"junk" * 100,
                "truncated": whole[: len(whole) // 2],
                "damaged": whole[:100] + bytes(b ^ 255 for b in whole[100:160]) + whole[160:],
                "an .npy file": single.getvalue(),
            }.get(content, b"")
        )
        if content == "another zip":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("readme.txt", "hello")
    assert str(path) in refused(load_npz, str(path))


def test_a_directory_in_place_of_the_npz_is_refused(tmp_path):
    assert str(tmp_path) in refused(load_npz, str(tmp_path))


def test_image_size_resizes_every_image(tmp_path):
    ramp = np.broadcast_to((10 * np.arange(16)).astype(np.uint8)[:, None], (6, 16, 16))
    data = load(TrainConfig(npz=npz(tmp_path, train_images=ramp, test_images=np.full((5, 16, 16), 77)), image_size=8))
    assert data.train_images.shape == (6, 8, 8, 1) and data.train_images.dtype == np.uint8
    # Pixel i covers rows 2i and 2i + 1, and a ramp's mean is its middle; the border has no far side.
    np.testing.assert_array_equal(data.train_images[0, 1:-1, 3, 0], (20 * np.arange(8) + 5)[1:-1])
    assert np.all(data.test_images == 77)
