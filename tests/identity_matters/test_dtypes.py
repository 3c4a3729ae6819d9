"""Copies of networks in another type; further ones are in shortcut_study/test_hessian_operator.py."""

import keras
import numpy as np

from identity_matters.dtypes import with_dtype


def test_copy_of_a_network_with_two_inputs_and_dropout_computes_the_same():
    inputs = [keras.Input((3,)), keras.Input((2,))]
    x = keras.layers.Dropout(0.5)(keras.layers.Dense(2)(keras.layers.Concatenate()(inputs)))
    model = keras.Model(inputs, keras.layers.Rescaling(1e4)(x))
    arrays = [np.random.default_rng(0).random((4, *x.shape[1:])) for x in inputs]
    found, expected = with_dtype(model, "float64")(arrays), model(arrays)
    assert found.dtype == "float64"
    np.testing.assert_allclose(found, expected, rtol=1e-5)
