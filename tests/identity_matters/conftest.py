"""Fixtures of the tests of the network."""

import numpy as np
import pytest
from network_in_numpy import SMALL

from identity_matters.model import PRESETS, all_conv_resnet


@pytest.fixture(scope="session")
def cifar10():
    """Table 1's network. Read only."""
    return all_conv_resnet(PRESETS["cifar10"])


@pytest.fixture(scope="module")
def images():
    """Images for networks of SMALL."""
    return np.random.default_rng(0).standard_normal((3, *SMALL.image_shape), np.float32)
