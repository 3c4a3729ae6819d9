"""The networks that ship: their errors are those that the docs state, their files are small and hold no code."""

import pathlib

import numpy as np
import pytest
from refusals import refused

import identity_matters
from identity_matters import pretrained
from identity_matters.data.digits import mnist_sample
from identity_matters.errors import UserError
from identity_matters.evaluation import evaluate
from identity_matters.model import all_conv_resnet, standardize

WEIGHTS = pathlib.Path(identity_matters.__file__).parent / "weights"
# In docs/papers/results.md: of mnist_sample's 1,000 test digits, and of CIFAR-10's 10,000 test images (a JPEG copy).
ERRORS = {"digits": 0.005, "cifar10_fast": 0.1473, "cifar10": 0.1077}
FLOAT16_ERROR = 0.1076  # of the network cifar10 before its weights were cut to 8 bits, on the same images
# Its logits then on the images of `patterns`.
FLOAT16_LOGITS = [
    [28.723, 12.834, -3.529, 12.381, -24.272, 8.211, -11.755, -7.237, -12.484, 18.034],
    [21.198, 14.692, 3.624, 9.912, -14.214, -3.701, -11.574, -3.562, -14.051, 20.636],
    [29.283, 13.842, -3.795, 4.017, -17.463, 3.360, -4.922, -9.007, -16.724, 20.392],
    [25.367, 8.524, -1.593, 4.509, -19.511, 13.354, -4.526, -12.143, -6.904, 14.052],
]  # fmt: skip


def patterns() -> np.ndarray:
    """Four images of 8 × 8 squares of random colours, standardised: [4, 32, 32, 3]."""
    squares = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3))
    return np.asarray(standardize(squares.repeat(4, axis=1).repeat(4, axis=2)))


def evaluated(name, **options):
    """The result of `evaluate` for a network on its data set; TFDS_DATA_DIR names the folder of CIFAR-10."""
    try:
        return evaluate(pretrained.load(name), pretrained.find(name).dataset, **options)
    except UserError as error:
        if name == "digits" or "not prepared" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize(
    "name", ["digits", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("cifar10_fast", "cifar10"))]
)
def test_a_network_has_the_error_that_the_docs_state(name):
    result = evaluated(name)
    images = 1 if name == "digits" else 20 if name == "cifar10_fast" else 5  # sums round otherwise on other machines
    assert result["top1_error"] == pytest.approx(ERRORS[name], abs=(images + 0.1) / result["num_examples"])


@pytest.mark.slow
def test_the_paper_s_network_has_its_known_error_on_500_test_images():
    assert evaluated("cifar10", max_examples=500)["top1_error"] == pytest.approx(0.100, abs=0.0021)


@pytest.mark.slow
def test_paper_network_s_8_bit_logits_agree_with_float16_within_2_percent():
    logits = pretrained.load("cifar10").predict_on_batch(patterns())
    np.testing.assert_allclose(logits, FLOAT16_LOGITS, rtol=0, atol=0.02 * np.std(FLOAT16_LOGITS))


@pytest.mark.parametrize("name", ERRORS)
def test_the_docs_state_the_error_of_a_network(name):
    text = (pathlib.Path(__file__).parents[2] / "docs" / "papers" / "results.md").read_text()
    assert f"--pretrained={name}" in text and f"{100 * ERRORS[name]:.2f} %" in text


@pytest.mark.slow
def test_a_shipped_network_takes_raw_images_unless_it_is_asked_for_bare():
    digits = mnist_sample().test_images
    bare, whole = pretrained.load("digits", standardized=False), pretrained.load("digits")
    np.testing.assert_array_equal(whole(digits), bare(standardize(digits)))
    error = np.mean(np.argmax(whole(digits), 1) != mnist_sample().test_labels)
    assert error == pytest.approx(ERRORS["digits"], abs=0.0011)


def test_every_network_has_an_error_and_a_small_file_of_plain_arrays():
    assert set(ERRORS) == set(pretrained.NETWORKS)
    assert {path.stem for path in WEIGHTS.iterdir()} == set(pretrained.NETWORKS)
    sizes = {name: (WEIGHTS / f"{name}.npz").stat().st_size for name in ERRORS}
    assert sizes.pop("cifar10") <= 14e6 and sum(sizes.values()) < 6e6
    for name in ERRORS:
        with np.load(WEIGHTS / f"{name}.npz", allow_pickle=False) as weights:
            kernels = {key for key in weights if weights[key].ndim == 4}
            rest = {weights[key].dtype for key in weights if key not in kernels and not key.endswith("/scale")}
            assert {weights[key].dtype for key in kernels} == {np.dtype(np.int8 if name == "cifar10" else np.float16)}
            assert rest <= {np.dtype(np.float16)}


def test_paper_network_has_a_card_with_recipe_images_errors_and_licence():
    card = (WEIGHTS / "cifar10.md").read_text()
    errors = [f"{100 * error:.2f} %" for error in (ERRORS["cifar10"], FLOAT16_ERROR)]
    assert not [word for word in ("--preset=cifar10", "JPEG copy", "Apache-2.0", *errors) if word not in card]


def test_weights_that_are_saved_are_loaded_and_nothing_else(tmp_path, monkeypatch):
    network = all_conv_resnet(pretrained.NETWORKS["digits"].model, seed=5)
    (tmp_path / "weights").mkdir()
    pretrained.save(network, str(tmp_path / "weights" / "digits.npz"))
    monkeypatch.setattr(pretrained.importlib.resources, "files", lambda _: tmp_path)
    for variable, expected in zip(pretrained.load("digits").variables, network.variables):
        np.testing.assert_array_equal(variable, np.asarray(expected).astype(np.float16))


def test_weights_that_are_pickled_objects_are_not_run(tmp_path, monkeypatch):
    (tmp_path / "weights").mkdir()
    first = all_conv_resnet(pretrained.NETWORKS["digits"].model, seed=5).variables[0].path
    np.savez(tmp_path / "weights" / "digits.npz", **{first: np.array([print], dtype=object)})
    monkeypatch.setattr(pretrained.importlib.resources, "files", lambda _: tmp_path)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        pretrained.load("digits")


@pytest.fixture
def in_8_bits(tmp_path, monkeypatch):
    """The digits network of random weights, one channel of them 0, and the same from a file of 8 bits a weight."""
    network = all_conv_resnet(pretrained.NETWORKS["digits"].model, seed=5)
    kernel = network.variables[1]
    kernel.assign(np.asarray(kernel) * (np.arange(kernel.shape[-1]) > 0) * 10.0 ** np.arange(kernel.shape[-1]) / 1e12)
    (tmp_path / "weights").mkdir()
    with np.errstate(divide="raise", invalid="raise"):  # of a channel of zeros
        pretrained.save(network, str(tmp_path / "weights" / "digits.npz"), in_8_bits=True)
    monkeypatch.setattr(pretrained.importlib.resources, "files", lambda _: tmp_path)
    return network, pretrained.load("digits")


def test_eight_bit_weight_has_an_error_of_at_most_1_254_of_its_channel_s_largest(in_8_bits):
    for variable, loaded in zip(*(network.variables for network in in_8_bits), strict=True):
        weights, found = np.asarray(variable), np.asarray(loaded)
        if weights.ndim == 4:
            largest = np.abs(weights).max(axis=(0, 1, 2))
            assert (np.abs(found - weights) <= largest / 254 * (1 + 1e-5)).all()
            np.testing.assert_allclose(np.abs(found).max(axis=(0, 1, 2)), largest, rtol=1e-6)
        else:
            np.testing.assert_array_equal(found, weights.astype(np.float16))


def test_weights_beyond_half_precision_are_rejected(tmp_path):
    network = all_conv_resnet(pretrained.NETWORKS["digits"].model)
    network.variables[0].assign(
        np.where(np.arange(network.variables[0].shape[-1]) == 1, -1e6, 1e-3 + 0 * network.variables[0])
    )
    assert "beyond the range of float16" in refused(pretrained.save, network, str(tmp_path / "x.npz"))


def test_network_is_found_by_its_preset_s_name_too_and_an_unknown_name_raises():
    assert pretrained.find("mnist") == pretrained.find("digits")
    assert "no pretrained network 'cifar11', only digits, cifar10_fast, cifar10" in refused(pretrained.load, "cifar11")
