"""Classify photos with a trained network: print file, class and probability, one line for each.

    python -m launch.classify --saved_model=runs/photos new/1.jpg new/2.jpg
    python -m launch.classify --saved_model=runs/photos new

classify files, PNG or JPEG, or all those in a folder and the folders in it, in seconds. Images are
resized as in training. Classes have the names of the folders that the network was trained on, or
numbers where the data had no names. A probability is the softmax of the network's outputs: what the
network believes, not how often it is right, which launch.evaluate measures.

    python -m launch.classify --pretrained=digits five.png

asks a network that comes with the package. digits takes grey images of a digit that fills most of the
square, white on black.
"""

import dataclasses
import json

from identity_matters.errors import UserError, truncated_repr
from identity_matters.fields import check_fields, option
from launch import launcher, terminal


@dataclasses.dataclass(frozen=True)
class ClassifyConfig:
    """Which network to ask.

    Attributes:
      saved_model: A run directory, or the path of its saved_model or model.keras. Required, unless pretrained is given.
      pretrained: Name of a network that comes with the package, e.g. digits.
      json: Print one line of JSON for each image, {"file", "class", "probability"}.
      trust_saved_model: Run the SavedModel itself, which is a program and can do anything that you may do. Without this
        flag the model.keras beside a run's saved_model is used instead, and a SavedModel without one is refused.
    """

    saved_model: str = option("", path=True)
    pretrained: str = ""
    json: bool = False
    trust_saved_model: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.saved_model and self.pretrained:
            raise UserError("--saved_model and --pretrained are both given; give one of them")


def main(config: ClassifyConfig, files: list[str]) -> None:
    """Prints the answer for each of the files and for each image in the folders among them."""
    if not (config.saved_model or config.pretrained):
        raise UserError("--saved_model is missing: the directory of a run, e.g. runs/first")
    if not files:
        raise UserError("no image is named: give PNG or JPEG files, or a folder of them, e.g. photo.jpg")
    with terminal.silenced_stderr():
        from identity_matters import classification, pretrained

    names = pretrained.find(config.pretrained).class_names if config.pretrained else ()
    network = config.saved_model or pretrained.load(config.pretrained)
    for file, name, probability in classification.classify(network, files, names, config.trust_saved_model):
        if config.json:
            print(json.dumps({"file": file, "class": name, "probability": probability}))
        else:
            words = (word if word.isprintable() else truncated_repr(word) for word in (file, name))
            print(*words, f"{probability:.1%}", sep="  ")


cli = launcher.command(main, {"": ClassifyConfig()}, manual=__doc__)

if __name__ == "__main__":
    cli()
