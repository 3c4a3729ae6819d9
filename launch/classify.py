"""Classify photos with a trained network: print the file, class and probability of each.

    python -m launch.classify --saved_model=runs/photos new/1.jpg new/2.jpg
    python -m launch.classify --saved_model=runs/photos new

classify files, PNG or JPEG, or all those in a folder and the folders in it, in seconds. Images are
resized as in training. Classes have the names of the folders that the network was trained on, or
numbers if the data had no names. A probability is the softmax of the network's outputs: what the
network believes, not how often it is right, which launch.evaluate measures.

    python -m launch.classify --pretrained=digits five.png

asks a network that comes with the package. digits takes grey images of a digit that fills most of the
square, white on black.
"""

import dataclasses
import json

from identity_matters.errors import UserError, truncated_repr
from identity_matters.runs.tables import percent
from launch import launcher, terminal, trained_run


@dataclasses.dataclass(frozen=True)
class ClassifyConfig(trained_run.NetworkFlags):
    """Which network to ask.

    Attributes:
      json: Print one line of JSON for each image, {"file", "class", "probability"}.
    """


def main(config: ClassifyConfig, files: list[str]) -> None:
    """Prints the answer for each of the files and for each image in the folders among them."""
    config.require_named()
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
            print(*words, percent(probability, 1), sep="  ")


cli = launcher.command(main, {"": ClassifyConfig()}, manual=__doc__, run_dir="none", takes_files=True)

if __name__ == "__main__":
    cli()
