"""A Keras optimiser or learning rate schedule in place of the config's: written into the config as text, and read.

The text is the JSON that keras.saving makes of the object. So config.json records it, another optimiser is another
run, and the same call, or launch.train with the same config, continues the run. It holds arguments, not a state.

A schedule goes with the config's optimiser, momentum and clipping. An optimiser replaces all of them, and decays the
weights that Keras would decay, while decoupled_weight_decay applies only to convolution kernels.
"""

import json

import keras

from identity_matters.errors import UserError, first_line, truncated_repr

Schedule = keras.optimizers.schedules.LearningRateSchedule
NAME = "optimizer"


def as_text(given: keras.optimizers.Optimizer | Schedule | None) -> str:
    """Returns a text from which `from_text` makes an equal object; "" for None.

    Raises:
      UserError: it is neither an optimiser nor a schedule, cannot be made again from text, averages weights, or
        excludes some of them from its decay.
    """
    if given is None:
        return ""
    if not isinstance(given, keras.optimizers.Optimizer | Schedule):
        raise UserError(
            f"optimizer must be a keras.optimizers.Optimizer or a LearningRateSchedule, got {truncated_repr(given)}"
        )
    if hasattr(given, "_exclude_from_weight_decay"):
        # Keras omits it from the configuration, and so from the saved file.
        raise UserError("optimizer has exclude_from_weight_decay, which is not supported; leave it out")
    if getattr(given, "use_ema", False):
        # Keras puts the averages in the weights' place at the end of every fit: a run that continues inside an epoch
        # has two.
        raise UserError("optimizer has use_ema, which is not supported; leave it out")
    contents = keras.saving.serialize_keras_object(given)
    if isinstance(given, keras.optimizers.Optimizer):
        # Keras's own name counts the optimisers of the process, and is in the names of what a checkpoint holds.
        contents["config"]["name"] = NAME
    text = json.dumps(contents)
    from_text(text)
    return text


def from_text(text: str) -> keras.optimizers.Optimizer | Schedule | None:
    """Returns the optimiser or the schedule of a text; None for "".

    Raises UserError if Keras cannot make it: a class of the user's must be registered.
    """
    if not text:
        return None
    try:
        return keras.saving.deserialize_keras_object(json.loads(text))
    except (TypeError, ValueError) as error:
        raise UserError(
            f"optimizer cannot be made again from config.json: {first_line(error)}; put "
            "@keras.saving.register_keras_serializable() before its class"
        ) from error
