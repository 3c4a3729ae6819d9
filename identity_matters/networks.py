"""Every network of this project by its name: the paper's own (model.py), and those it is compared with."""

import keras

from identity_matters import comparators
from identity_matters.config import ModelConfig
from identity_matters.model import all_conv_resnet, check_image_shape, require_usual_keras


def build(config: ModelConfig, seed: int = 0) -> keras.Model:
    """Returns the network that the config names; each kernel depends only on (seed, its layer's name).

    Networks other than all_conv_resnet use only image_shape, num_classes, weight_decay and mixed_precision; the other
    fields describe Hardt & Ma's network.

    Raises:
      UserError: the strides of all_conv_resnet do not divide the images, another's are under 9 pixels a side, or Keras
        has other settings than its usual ones.
    """
    if config.network == "all_conv_resnet":
        return all_conv_resnet(config, seed)
    require_usual_keras()
    check_image_shape(config)
    return comparators.NETWORKS[config.network](config, seed)
