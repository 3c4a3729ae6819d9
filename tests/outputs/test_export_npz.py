"""launch.export_npz: the arrays of a data set, each split under its own name, and the printed counts."""

import numpy as np
import pytest
from image_folders import noise, write
from outputs.references import numbers

from identity_matters.data.digits import mnist_sample


def test_the_file_holds_the_digits_of_each_split_in_order(launch, tmp_path):
    path = tmp_path / "digits.npz"
    code, out, _ = launch("export_npz", "--dataset=mnist_sample", f"--npz={path}")
    assert code == 0 and numbers(out.removeprefix(f"{path}: ")) == [4000, 1000, 28, 28, 1, 10]
    data = mnist_sample()
    with np.load(path) as file:
        assert set(file) == {"train_images", "train_labels", "test_images", "test_labels"}
        for name in file:
            np.testing.assert_array_equal(file[name], getattr(data, name))


@pytest.fixture
def animals(tmp_path):
    """Three classes, five training and two test images of each; the names in another order than they are written."""
    for number, name in enumerate(("cow", "ant", "bee")):
        for i in range(7):
            write(
                tmp_path / "animals" / ("train" if i < 5 else "test") / name / f"{i}.png",
                noise(6, 4, 3, seed=10 * number + i),
            )
    return tmp_path / "animals"


def test_the_file_holds_the_pixels_of_a_folder_with_labels_in_alphabetical_order(launch, animals, tmp_path):
    code, out, _ = launch("export_npz", f"--images={animals}", f"--npz={tmp_path}/animals.npz")
    assert code == 0 and numbers(out.rpartition(".npz: ")[2]) == [15, 6, 6, 4, 3, 3]
    written = {}  # by its bytes: split and label
    for label, number in enumerate((1, 2, 0)):  # ant, bee, cow
        for i in range(7):
            written[noise(6, 4, 3, seed=10 * number + i).tobytes()] = ("train" if i < 5 else "test", label)
    with np.load(tmp_path / "animals.npz") as file:
        found = [
            (image.tobytes(), (split, int(label)))
            for split in ("train", "test")
            for image, label in zip(file[f"{split}_images"], file[f"{split}_labels"])
        ]
    assert dict(found) == written and len(found) == 21
