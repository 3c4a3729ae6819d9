"""launch.export_npz: the arrays of a data set, each split under its own name, and the printed counts."""

import re

import numpy as np

from identity_matters.data.digits import mnist_sample


def test_the_file_holds_the_digits_of_each_split_in_order(launch, tmp_path):
    path = tmp_path / "digits.npz"
    code, out, _ = launch("export_npz", "--dataset=mnist_sample", f"--npz={path}")
    assert code == 0 and re.findall(r"\d+", out.removeprefix(f"{path}: ")) == ["4000", "1000", "28", "28", "1", "10"]
    data = mnist_sample()
    with np.load(path) as file:
        assert set(file) == {"train_images", "train_labels", "test_images", "test_labels"}
        for name in file:
            np.testing.assert_array_equal(file[name], getattr(data, name))
