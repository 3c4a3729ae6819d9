"""The networks that ship: their errors are those that the docs state, their files are small and hold no code."""

import pathlib

import numpy as np
import pytest
from refusals import refused

import identity_matters
from identity_matters import pretrained
from identity_matters.errors import UserError
from identity_matters.evaluation import evaluate
from identity_matters.model import all_conv_resnet

WEIGHTS = pathlib.Path(identity_matters.__file__).parent / "weights"
# In docs/results.md: of mnist_sample's 1,000 test digits, and of CIFAR-10's 10,000 test images (a JPEG copy of them).
ERRORS = {"digits": 0.005, "cifar10_fast": 0.1473}


@pytest.mark.parametrize("name", ["digits", pytest.param("cifar10_fast", marks=pytest.mark.nightly)])
def test_a_network_has_the_error_that_the_docs_state(name):
    """TFDS_DATA_DIR tells where CIFAR-10 is prepared."""
    try:
        result = evaluate(pretrained.load(name), pretrained.find(name).dataset)
    except UserError as error:
        if name == "digits" or "not prepared" not in str(error):
            raise
        pytest.skip(str(error))
    images = 1 if name == "digits" else 20  # sums round otherwise on other machines
    assert result["top1_error"] == pytest.approx(ERRORS[name], abs=(images + 0.1) / result["num_examples"])


@pytest.mark.parametrize("name", ERRORS)
def test_the_docs_state_the_error_of_a_network(name):
    text = (pathlib.Path(__file__).parents[2] / "docs" / "results.md").read_text()
    assert f"--pretrained={name}" in text and f"{100 * ERRORS[name]:.2f} %" in text


def test_every_network_has_an_error_and_a_file_of_plain_half_precision_arrays():
    assert set(ERRORS) == set(pretrained.NETWORKS)
    assert {path.stem for path in WEIGHTS.iterdir()} == set(pretrained.NETWORKS)
    assert sum(path.stat().st_size for path in WEIGHTS.iterdir()) < 6e6
    for path in WEIGHTS.iterdir():
        with np.load(path, allow_pickle=False) as weights:
            assert {weights[key].dtype for key in weights} == {np.dtype(np.float16)}


def test_weights_that_are_saved_are_loaded_and_nothing_else(tmp_path, monkeypatch):
    network = all_conv_resnet(pretrained.NETWORKS["digits"].model, seed=5)
    (tmp_path / "weights").mkdir()
    pretrained.save(network, str(tmp_path / "weights" / "digits.npz"))
    monkeypatch.setattr(pretrained.importlib.resources, "files", lambda _: tmp_path)
    for variable, expected in zip(pretrained.load("digits").variables, network.variables):
        np.testing.assert_array_equal(variable, np.asarray(expected).astype(np.float16))


def test_weights_beyond_half_precision_are_refused(tmp_path):
    network = all_conv_resnet(pretrained.NETWORKS["digits"].model)
    network.variables[0].assign(np.full(network.variables[0].shape, 1e6))
    assert "beyond the range of float16" in refused(pretrained.save, network, str(tmp_path / "x.npz"))


def test_a_network_is_found_by_the_name_of_its_preset_too():
    own, by_preset = pretrained.load("digits"), pretrained.load("mnist")
    assert pretrained.find("mnist") == pretrained.find("digits")
    for variable, expected in zip(by_preset.variables, own.variables, strict=True):
        np.testing.assert_array_equal(variable, expected)


def test_an_unknown_network_is_refused_with_those_that_there_are():
    assert "no pretrained network 'cifar11', only digits, cifar10_fast" in refused(pretrained.load, "cifar11")
