"""The settings of Keras, of its keras.json or of Python, that our networks and losses need."""

import os

import keras

from identity_matters.errors import UserError


def require_usual_keras() -> None:
    """Raises UserError where Keras is set to other images or numbers than [n, h, w, c] and float32.

    All our layers say their precision, but Keras's losses and its casts take that of the setting.
    """
    for name, setting, usual in (
        ("image_data_format", keras.config.image_data_format(), "channels_last"),
        ("floatx", keras.config.floatx(), "float32"),
    ):
        if setting != usual:
            raise UserError(
                f"Keras's {name} is {setting!r} and must be {usual!r}: keras.config.set_{name}({usual!r}), or mend "
                f"{os.path.join(os.environ.get('KERAS_HOME', '~/.keras'), 'keras.json')}"
            )
