"""identity_matters.optimization: the metrics, which have evaluation's rule for ties."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from identity_matters.config import ModelConfig, TrainConfig
from identity_matters.evaluation import evaluate
from identity_matters.model import all_conv_resnet
from identity_matters.optimization import compile_model, is_among_highest

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("num_classes", [2, 5, 10])
@pytest.mark.parametrize("count", [1, 5])
def test_ties_and_nan_count_against_the_label(num_classes, count):
    logits = RNG.integers(0, 4, (200, num_classes)).astype(np.float32)  # most rows have ties
    logits[:20, 1] = np.nan
    labels = RNG.integers(0, num_classes, 200)
    pairs = zip(labels, logits)
    expected = [sum(not other < row[label] for other in np.delete(row, label)) < count for label, row in pairs]
    for shape in ((200,), (200, 1)):
        for function in (is_among_highest, tf.function(is_among_highest)):  # whose graph TensorFlow rewrites
            found = function(labels.reshape(shape), keras.ops.convert_to_tensor(logits), count)
            np.testing.assert_array_equal(keras.ops.convert_to_numpy(found), expected)


def test_a_network_of_equal_logits_is_wrong_everywhere_in_training_as_in_evaluate():
    config = TrainConfig(model=ModelConfig(image_shape=(8, 8, 1), widths=(16,), blocks_per_stage=(1,)))
    network, images, labels = all_conv_resnet(config.model), np.zeros((12, 8, 8, 1), np.float32), np.arange(12) % 10
    compile_model(network, config)
    found = network.evaluate(images, labels, verbose=0, return_dict=True)
    assert found["top1"] == found["top5"] == 0
    assert evaluate(network, (images, labels)) == {"top1_error": 1.0, "top5_error": 1.0, "num_examples": 12}
