"""TFDS sets of a few images, of one size and of several, made by this module."""

import numpy as np
import tensorflow_datasets as tfds


def gradient(example: int, height: int, width: int) -> np.ndarray:
    """Red tells a pixel's row, green its column, three levels each; blue the example, ten levels each."""
    image = np.empty((height, width, 3), np.uint8)
    image[..., 0], image[..., 1] = 3 * np.arange(height)[:, None], 3 * np.arange(width)
    image[..., 2] = 10 * example
    return image


NUM_TRAIN, NUM_TEST = 24, 7
# Height and width of an example of the set of varying size. Central and random crops are 56 of 64.
SIZES = [(64, 80), (72, 64), (64, 64)]


class _Gradients(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A class has its IMAGE, the TFDS feature, and image(example), the array; a label is the example's number."""

    VERSION = tfds.core.Version("1.0.0")
    NUM_TRAIN, NUM_TEST = NUM_TRAIN, NUM_TEST

    def _info(self):
        label = tfds.features.ClassLabel(num_classes=self.NUM_TRAIN)
        features = tfds.features.FeaturesDict({"image": self.IMAGE, "label": label})
        return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=("image", "label"))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(self.NUM_TRAIN), "test": self._generate_examples(self.NUM_TEST)}

    def _generate_examples(self, count):
        for i in range(count):
            yield i, {"image": self.image(i), "label": i}


class IdentityTinyPng(_Gradients):
    """Images of one size."""

    IMAGE = tfds.features.Image(shape=(12, 10, 3), encoding_format="png")

    def image(self, example):
        return gradient(example, 12, 10)


class IdentityTinyJpeg(_Gradients):
    """Images of varying size."""

    IMAGE = tfds.features.Image(encoding_format="jpeg")

    def image(self, example):
        return gradient(example, *SIZES[example % 3])


class IdentityTinyDeep(_Gradients):
    """Images of 16 bits."""

    IMAGE = tfds.features.Image(shape=(12, 10, 1), dtype=np.uint16, encoding_format="png")

    def image(self, example):
        return np.full((12, 10, 1), 300 + example, np.uint16)


class IdentityMany(_Gradients):
    """More images than TFDS takes from a file in turn; the label tells one from another."""

    NUM_TRAIN = 240
    IMAGE = tfds.features.Image(shape=(4, 4, 1))

    def image(self, example):
        return np.zeros((4, 4, 1), np.uint8)


class Cifar10(_Gradients, skip_registration=True):
    """A few images in the form of CIFAR-10, so that commands that name it run."""

    VERSION = tfds.core.Version("3.0.2")
    IMAGE, EXTRA = tfds.features.Image(shape=(32, 32, 3)), {"id": tfds.features.Text()}

    def _info(self):
        features = {"image": self.IMAGE, "label": tfds.features.ClassLabel(num_classes=10)} | self.EXTRA
        features = tfds.features.FeaturesDict(features)
        return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=("image", "label"))

    def _generate_examples(self, count):
        height, width, channels = self.IMAGE.shape
        for i in range(count):
            image = gradient(i, height, width)[..., :channels]
            yield i, {"image": image, "label": i % 10} | {name: str(i) for name in self.EXTRA}


class Mnist(Cifar10, skip_registration=True):
    """A few images in the form of MNIST."""

    VERSION = tfds.core.Version("3.0.1")
    IMAGE, EXTRA = tfds.features.Image(shape=(28, 28, 1)), {}


class IdentityNoImages(tfds.core.GeneratorBasedBuilder):
    """A regression set."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.FeaturesDict({"x": np.float32, "y": np.float32})
        return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=("x", "y"))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(), "test": self._generate_examples()}

    def _generate_examples(self):
        for i in range(3):
            yield i, {"x": i, "y": i}
