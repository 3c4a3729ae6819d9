"""A Keras optimiser or learning rate schedule in place of the config's: written into the config as text, and read.

The text is the JSON that keras.saving makes of the object. So config.json records it, another optimiser is another
run, and the same call, or launch.train with the same config, continues the run. It holds arguments, not a state.

A schedule goes with the config's optimiser, momentum and clipping. An optimiser replaces all of them, and decays the
weights that Keras would decay, where decoupled_weight_decay is of convolution kernels alone.
"""

import json
import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from identity_matters.errors import UserError, first_line, truncated_repr
from identity_matters.fields import require

Schedule = keras.optimizers.schedules.LearningRateSchedule
NAME = "optimizer"
_MODULES = ("keras.optimizers", "keras.optimizers.schedules")


def as_text(given: keras.optimizers.Optimizer | Schedule | None) -> str:
    """Returns a text from which `from_text` makes an equal object; "" for None.

    Raises:
      TypeError: it is neither an optimiser nor a schedule.
      UserError: it cannot be made again from text, averages weights, or excludes some of them from its decay.
    """
    if given is None:
        return ""
    # Keras leaves it out of the configuration, and so out of what is saved.
    is_selective = hasattr(given, "_exclude_from_weight_decay")
    require(not is_selective, "optimizer has exclude_from_weight_decay, which is not supported; leave it out")
    if not isinstance(given, keras.optimizers.Optimizer | Schedule):
        raise TypeError(
            f"optimizer must be a keras.optimizers.Optimizer or a LearningRateSchedule, got {truncated_repr(given)}"
        )
    try:
        contents = keras.saving.serialize_keras_object(given)
        if isinstance(given, keras.optimizers.Optimizer):
            # Keras's own name counts the optimisers of the process, and is in the names of what a checkpoint holds.
            contents["config"]["name"] = NAME
        text = json.dumps(contents)
    except Exception as error:  # of a get_config of the user's, or for what it returns
        raise UserError(f"optimizer cannot be written into config.json: {first_line(error)}") from error
    from_text(text)
    return text


def from_text(text: str) -> keras.optimizers.Optimizer | Schedule | None:
    """Returns the optimiser or the schedule of a text; None for "".

    Raises UserError if the text is damaged, or names a class that is neither an optimiser or schedule of Keras nor
    registered; nothing is imported before.
    """
    if not text:
        return None
    try:
        contents = json.loads(text)
        is_object = isinstance(contents, dict) and isinstance(contents.get("config"), dict)
        require(is_object, f"it is no object of a class with its config: {truncated_repr(text)}")
        for found in _classes(contents):
            is_known = (
                found.get("module") in _MODULES or found.get("registered_name") in keras.saving.get_custom_objects()
            )
            name = truncated_repr(found.get("class_name"))
            require(is_known, f"put @keras.saving.register_keras_serializable() before the class {name}")
        given = keras.saving.deserialize_keras_object(contents)
    except Exception as error:  # Keras and a user's from_config raise almost any
        raise UserError(f"optimizer cannot be made from config.json: {first_line(error)}") from error
    is_optimizer = isinstance(given, keras.optimizers.Optimizer)
    require(is_optimizer or isinstance(given, Schedule), f"keras_optimizer is not an optimiser: {truncated_repr(text)}")
    has_rate = not is_optimizer or "learning_rate" in contents["config"]
    require(has_rate, f"optimizer {contents['class_name']} has no learning_rate; give the one that it wraps")
    # Keras puts the averages in the weights' place at the end of every fit, which here is at every checkpoint.
    require(not getattr(given, "use_ema", False), "optimizer has use_ema, which is not supported; leave it out")
    return given


def _classes(value: Any) -> Iterator[dict]:
    """Yields the parts of a serialised object that name a class."""
    if isinstance(value, dict) and "class_name" in value:
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _classes(part)


def has_fixed_rate(text: str) -> bool:
    """Returns whether a text is of an optimiser whose learning rate is a number, which callbacks may change.

    Raises UserError as `from_text`, and where the optimiser or schedule of the text cannot make a step.
    """
    given = from_text(text)
    if given is None:
        return False
    try:
        rate = float(given(0) if isinstance(given, Schedule) else _tried(given))
    except Exception as error:  # Keras looks at few arguments before a step, and then raises almost any
        raise UserError(f"optimizer cannot make a step: {first_line(error)}; change its arguments") from error
    require(math.isfinite(rate), f"optimizer makes a step to {rate}; change its arguments")
    return not (isinstance(given, Schedule) or isinstance(json.loads(text)["config"]["learning_rate"], dict))


def _tried(optimizer: keras.optimizers.Optimizer) -> float:
    """Returns the sum of a small kernel of ones after a step of an optimiser, which is not used again."""
    kernel = keras.Variable(np.ones((1, 1, 2, 2), np.float32), name="tried")
    optimizer.build([kernel])
    optimizer.apply([keras.ops.full(kernel.shape, 0.1)], [kernel])
    return float(keras.ops.sum(kernel))
