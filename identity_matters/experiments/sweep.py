"""The variants of launch.ablations --sweep: one field of a run, or of its network, at several values."""

import dataclasses
from typing import Any

from identity_matters.config import DataConfig, ModelConfig, TrainConfig
from identity_matters.experiments.variants import Variant
from identity_matters.fields import all_fields, require

# What every run of a sweep shares, or has of its own, and why no sweep is over it.
_FIXED = {
    **dict.fromkeys((field.name for field in dataclasses.fields(DataConfig)), "the data are the same for all runs"),
    "seed": "give --seeds=3 for three of them",
    "eval_every": "it changes no network",
    "checkpoint_every": "it changes no network",
}
_YES_AND_NO = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def variants(text: str, base: TrainConfig) -> list[Variant]:
    """Returns a variant for each value of a sweep, e.g. learning_rate=0.01,0.03,0.1 or widths=16,32;32,64.

    A run has the steps and evaluations of the base; values of several numbers are separated by semicolons.

    Raises:
      UserError: there is no such field, it cannot be swept, or fewer than two different valid values are given.
    """
    name, is_given, values = text.partition("=")
    in_model = name in {field.name for field in dataclasses.fields(ModelConfig)} - {"image_shape", "num_classes"}
    names = {field.name for field, _ in all_fields(base) if field.metadata.get("flag", True)}
    example = "write --sweep=FIELD=VALUE,VALUE, e.g. --sweep=learning_rate=0.01,0.03,0.1"
    require(bool(is_given), f"sweep must name a field and its values, got {text!r}; {example}")
    require(in_model or name in names, f"sweep: there is no field {name!r}; --help lists them")
    require(name not in _FIXED, f"sweep cannot be over {name}: {_FIXED.get(name)}")
    default = getattr(base.model if in_model else base, name)
    separator = ";" if isinstance(default, tuple) else ","
    swept = [_value(name, part.strip(), default) for part in values.split(separator) if part.strip()]
    require(len(set(swept)) == len(swept) > 1, f"sweep needs two or more different values of {name}, got {values!r}")
    return [_variant(name, value, in_model, base) for value in swept]


def _variant(name: str, value: Any, in_model: bool, base: TrainConfig) -> Variant:
    changes: dict[str, Any] = {"train_steps": base.train_steps} | ({} if in_model else {name: value})
    rate = changes.pop("learning_rate", base.learning_rate)
    evaluations = max(1, round(changes["train_steps"] / base.eval_every))
    written = "-".join(map(str, value)) if isinstance(value, tuple) else str(value)
    variant = Variant(f"{name}={written}", (rate,), {name: value} if in_model else {}, changes, evaluations)
    variant.config(base, rate)  # a value that the field refuses is said before anything is trained
    return variant


def _value(name: str, text: str, default: Any) -> Any:
    """Returns the value that a text means, of the type of the field's default."""
    if isinstance(default, str):
        return text
    try:
        if isinstance(default, bool):
            return _YES_AND_NO[text.lower()]
        return tuple(map(int, text.split(","))) if isinstance(default, tuple) else type(default)(text)
    except (KeyError, ValueError):
        expected = {bool: "true or false", int: "whole numbers", float: "numbers", tuple: "whole numbers"}
        require(False, f"sweep: values of {name} must be {expected[type(default)]}, got {text!r}")
