"""identity_matters.pretrained: the shipped weights in Table 1's network, and the classes that digits names."""

import pathlib
import re

import numpy as np
import pytest
from outputs.references import standardized, table_1

import identity_matters
from identity_matters import pretrained

# image shape, stem, widths, blocks a stage, pooling after the stem. cifar10: Hardt & Ma, Table 1.
NETWORKS = {
    "digits": ((28, 28, 1), 16, (16, 32, 64), (2, 2, 2), 1),
    "cifar10_fast": ((32, 32, 3), 48, (48, 96, 192), (2, 2, 2), 2),
    "cifar10": ((32, 32, 3), 16, (64, 128, 256), (9, 9, 9), 1),
}


def stored_weights(name) -> dict[str, np.ndarray]:
    """The arrays of NAME.npz, of which 8-bit kernels are multiplied by a scale for each output channel."""
    with np.load(pathlib.Path(identity_matters.__file__).parent / "weights" / f"{name}.npz") as file:
        names = [key for key in file if not key.endswith("/scale")]
        scales = {key: file[f"{key}/scale"] if f"{key}/scale" in file else 1.0 for key in names}
        return {key: file[key].astype(np.float32) * scales[key] for key in names}


def by_place(key: str) -> tuple:
    """Orders paths such as stage2_block10_conv1/kernel: stem, then stage, block and convolution, then projection."""
    return key.startswith("projection"), [int(digits) for digits in re.findall(r"\d+", key)]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_shipped_network_is_table_1s_with_the_weights_of_its_file(name):
    shape, stem, widths, blocks, pool = NETWORKS[name]
    plain, weights = table_1(shape, stem, widths, blocks, 10, pool), stored_weights(name)
    plain.set_weights([weights[key] for key in sorted(weights, key=by_place)])
    images = np.random.default_rng(0).integers(0, 256, (3, *shape)).astype(np.float32)
    expected = plain(standardized(images)).numpy()
    for logits in (pretrained.load(name)(images), pretrained.load(name, standardized=False)(standardized(images))):
        np.testing.assert_allclose(logits, expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max())
