"""identity_matters.muon: orthogonalisation against a singular value decomposition, and the update against NumPy."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from refusals import refused

from identity_matters.momentum import Momentum
from identity_matters.muon import COEFFICIENTS, Muon, orthogonalize
from identity_matters.optimization import WarmUp


def polynomial(values, num_steps):
    a, b, c = COEFFICIENTS
    for _ in range(num_steps):
        values = a * values + b * values**3 + c * values**5
    return values


def by_svd(matrix, num_steps):
    """U diag(p(…p(s/‖u‖_F))) Vᵀ in float64; num_steps None: the polar factor U Vᵀ."""
    u, s, vt = np.linalg.svd(np.asarray(matrix, np.float64), full_matrices=False)
    return (u * (1 if num_steps is None else polynomial(s / np.linalg.norm(s), num_steps))) @ vt


@pytest.mark.parametrize("shape", [(6, 18), (576, 64)])
@pytest.mark.parametrize("num_steps", [1, 5])
def test_orthogonalize_maps_the_singular_values_and_keeps_the_vectors(shape, num_steps):
    matrices = np.random.default_rng(0).standard_normal((2, *shape)).astype(np.float32)
    found = keras.ops.convert_to_numpy(orthogonalize(keras.ops.convert_to_tensor(matrices), num_steps))
    rounding = 2**-22 * COEFFICIENTS[0] ** num_steps  # a step multiplies small singular values, and their errors, by a
    for matrix, ours in zip(matrices, found):
        np.testing.assert_allclose(ours, by_svd(matrix, num_steps), atol=1e-6 + rounding)


def test_five_steps_are_near_the_polar_factor():
    matrix = np.random.default_rng(1).standard_normal((1, 90, 10)).astype(np.float32)
    ours = keras.ops.convert_to_numpy(orthogonalize(keras.ops.convert_to_tensor(matrix), 5))[0]
    values = np.linalg.svd(ours, compute_uv=False)
    assert 0.68 < values.min() and values.max() < 1.14
    polar = by_svd(matrix[0], None)
    assert np.sum(ours * polar) / np.linalg.norm(ours) / np.linalg.norm(polar) > 0.98


def test_singular_values_of_rounding_size_stay_bounded():
    rng = np.random.default_rng(5)
    of_low_rank = rng.standard_normal((216, 8)) @ rng.standard_normal((8, 24))
    decaying = np.linalg.qr(rng.standard_normal((216, 24)))[0] * 10.0 ** -np.arange(24)
    matrices = np.stack([of_low_rank, decaying]).astype(np.float32)
    found = keras.ops.convert_to_numpy(orthogonalize(keras.ops.convert_to_tensor(matrices), 30))
    assert np.all(np.linalg.svd(found, compute_uv=False) < 1.22)  # p(s) ≤ 1.203 for s in 0 … 1.21


def test_a_zero_gradient_leaves_zero():
    for dtype in ("float32", "bfloat16"):
        found = orthogonalize(keras.ops.zeros((1, 9, 4), dtype), 3)
        assert not np.any(keras.ops.convert_to_numpy(found))
        assert keras.backend.standardize_dtype(found.dtype) == "float32"


@pytest.mark.parametrize("scale", [1e-32, 1e25])
def test_matrices_whose_squares_underflow_or_overflow_are_orthogonalized_as_others(scale):
    matrices = -np.abs(np.random.default_rng(3).standard_normal((2, 18, 6))).astype(np.float32)
    matrices[:, 0, 0] = 0
    expected, found = (
        keras.ops.convert_to_numpy(orthogonalize(keras.ops.convert_to_tensor(np.float32(factor) * matrices), 3))
        for factor in (1, scale)
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(found[0], by_svd(matrices[0], 3), atol=1e-4)


@pytest.mark.parametrize(("nesterov", "dense"), [(True, False), (False, False), (True, True)])
def test_updates_are_those_of_the_formulas(nesterov, dense):
    rng = np.random.default_rng(2)
    shapes = [(3, 3, 2, 4), (3, 3, 2, 4), (1, 1, 2, 5), (4,), (6, 3)]  # the third is wider than high
    weights = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    variables = [keras.Variable(weight) for weight in weights]
    optimizer = Muon(
        0.1, momentum=0.9, nesterov=nesterov, newton_schulz_steps=3, weight_decay=0.5, orthogonalize_dense=dense
    )
    optimizer.exclude_from_weight_decay([variable for variable in variables if len(variable.shape) != 4])
    optimizer.build(variables)
    momenta = [np.zeros(shape) for shape in shapes]
    for _ in range(3):
        gradients = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients], variables)
        for i, gradient in enumerate(gradients):
            momenta[i] = 0.9 * momenta[i] + gradient
            step = gradient + 0.9 * momenta[i] if nesterov else momenta[i]
            if len(shapes[i]) == 4 or dense and len(shapes[i]) == 2:
                matrix = by_svd(step.reshape(-1, shapes[i][-1]), 3)
                step = max(1, matrix.shape[1] / matrix.shape[0]) ** 0.5 * matrix.reshape(shapes[i])
            if len(shapes[i]) == 4:
                weights[i] = (1 - 0.1 * 0.5) * weights[i]
            weights[i] = weights[i] - 0.1 * step
    for variable, weight in zip(variables, weights):
        np.testing.assert_allclose(keras.ops.convert_to_numpy(variable), weight, atol=2e-5)


TOLERANCES = {"float64": 1e-7, "float32": 1e-5, "float16": 3e-3, "bfloat16": 2e-2}  # the rate is of float32


@pytest.mark.parametrize("dtype", list(TOLERANCES)[keras.backend.backend() == "jax" :])  # which has no float64
def test_variables_of_any_precision_are_updated(dtype):
    """Several of one shape at once, and of two types; half precision keeps its 11 or 8 bits."""
    rng = np.random.default_rng(2)
    weights = [rng.standard_normal(shape) for shape in ((3, 3, 2, 4), (3, 3, 2, 4), (4,), (6, 3))]
    variables = [keras.Variable(weight, dtype=dtype) for weight in weights]
    variables.append(keras.Variable(weights[0], dtype="float32"))
    optimizer = Muon(0.1, newton_schulz_steps=3, orthogonalize_dense=True)
    gradients = [rng.standard_normal(variable.shape) for variable in variables]
    optimizer.build(variables)
    optimizer.apply([keras.ops.convert_to_tensor(g, v.dtype) for g, v in zip(gradients, variables)], variables)
    for variable, weight, gradient in zip(variables, [*weights, weights[0]], gradients):
        step = 1.95 * gradient
        if len(weight.shape) > 1:
            step = by_svd(step.reshape(-1, step.shape[-1]), 3).reshape(step.shape)
        found = keras.ops.convert_to_numpy(keras.ops.cast(variable, "float64"))
        np.testing.assert_allclose(found, weight - 0.1 * step, rtol=0, atol=TOLERANCES[variable.dtype])
        assert variable.dtype == (dtype if variable is not variables[-1] else "float32")


@pytest.mark.parametrize(
    "options, words",
    [
        ({"newton_schulz_steps": 10**9}, "newton_schulz_steps must be at most 100, got 1000000000"),
        ({"newton_schulz_steps": 0}, "newton_schulz_steps must be at least 1, got 0"),
        ({"momentum": 1.0}, "momentum must lie in [0, 1), got 1.0"),
    ],
)
def test_the_limits_of_the_flags_are_those_of_the_class(options, words):
    assert words in refused(Muon, **options)
    assert words in refused(Muon.from_config, Muon().get_config() | options)


def test_the_config_makes_the_same_optimizer_again():
    optimizer = Muon(
        0.1, momentum=0.8, nesterov=False, newton_schulz_steps=2, weight_decay=0.1, orthogonalize_dense=True
    )
    again = Muon.from_config(optimizer.get_config())
    assert again.get_config() == optimizer.get_config()


def warm_up():
    return WarmUp(keras.optimizers.schedules.CosineDecay(0.1, 10), 3)


RANDOM = np.random.default_rng(4)
EXAMPLES = RANDOM.standard_normal((20, 6, 6, 1)).astype(np.float32), RANDOM.integers(0, 2, 20)
OPTIMIZERS = {
    "Muon": lambda: Muon(0.01, momentum=0.8),
    "Muon with WarmUp": lambda: Muon(warm_up()),
    "Momentum with WarmUp": lambda: Momentum(warm_up(), momentum=0.8, weight_decay=0.1, global_clipnorm=1.0),
    "SGD with WarmUp": lambda: keras.optimizers.SGD(warm_up(), momentum=0.9),
}


@pytest.fixture(params=OPTIMIZERS)
def trained(request):
    """A small model after two epochs of fit."""
    layers = [keras.Input((6, 6, 1)), keras.layers.Conv2D(3, 3), keras.layers.Flatten(), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    model.compile(OPTIMIZERS[request.param](), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(*EXAMPLES, epochs=2, verbose=0)
    return model


@pytest.mark.slow
def test_a_saved_model_is_loaded_and_trained_on_as_if_it_had_not_been(trained, tmp_path):
    trained.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is type(trained.optimizer) and int(loaded.optimizer.iterations) == 2
    for model in (trained, loaded):
        model.fit(*EXAMPLES, shuffle=False, verbose=0)
    expected, found = (model.variables + model.optimizer.variables for model in (trained, loaded))
    for pair in zip(found, expected, strict=True):
        np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(value) for value in pair))


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() == "jax", reason="this is the test that starts them under JAX")
def test_the_other_tests_of_this_file_pass_under_jax():
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "", __file__]
    done = subprocess.run(command, env=os.environ | {"KERAS_BACKEND": "jax"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
