"""python -m tests.walk train spectrum: the function bodies that a reader passes on the way to the work itself.

Counted, while the program runs, are the functions of this repository that are entered before that point:

    train      with the run's TrainConfig among their arguments, from launch.train to the first call of Model.fit
    spectrum   that are on the stack when curvature.spectrum has its first product computed

A function counts once, however often it is entered. Not counted are functions of other packages, the checks that a
config makes of itself, and identity_matters/fields.py, which knows no field by its name. tests/test_house.py holds the
numbers.
"""

import os
import pathlib
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = str(pathlib.Path(__file__).parents[1])
PACKAGES = tuple(os.path.join(ROOT, name, "") for name in ("identity_matters", "shortcut_study", "launch"))
FIELDS = os.path.join(ROOT, "identity_matters", "fields.py")


class Arrived(BaseException):
    """The point has been reached; no `except Exception` on the way stops it."""


def body(frame) -> str:
    """The file and the name of a function, as module.name."""
    path = os.path.relpath(frame.f_code.co_filename, ROOT).removesuffix(".py").replace(os.sep, ".")
    return f"{path}.{frame.f_code.co_qualname if hasattr(frame.f_code, 'co_qualname') else frame.f_code.co_name}"


def is_ours(frame) -> bool:
    name = frame.f_code.co_name
    return frame.f_code.co_filename.startswith(PACKAGES) and not name.startswith("<")


def to_first_step() -> list[str]:
    """Returns the bodies that the config of a run enters, in order, until Keras trains."""
    import keras

    from identity_matters.config import TrainConfig
    from identity_matters.fields import with_fields
    from identity_matters.presets import TRAIN_PRESETS
    from launch import train

    entered = {}

    def enter(frame, event, _):
        if event == "call" and is_ours(frame):
            count = frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount
            arguments = [frame.f_locals.get(name) for name in frame.f_code.co_varnames[:count]]
            is_check = isinstance(frame.f_locals.get("self"), TrainConfig) or frame.f_code.co_filename == FIELDS
            if any(isinstance(value, TrainConfig) for value in arguments) and not is_check:
                entered[body(frame)] = True

    def arrive(*_, **__):
        raise Arrived

    config = with_fields(TRAIN_PRESETS["mnist"], train_examples=64, eval_examples=8, train_steps=2, decay_steps=())
    keras.Model.fit = arrive
    with tempfile.TemporaryDirectory() as folder:
        sys.setprofile(enter)
        try:
            train.main(config, os.path.join(folder, "run"))
        except Arrived:
            pass
        finally:
            sys.setprofile(None)
    return list(entered)


def to_product() -> list[str]:
    """Returns the bodies on the stack, from the outside in, when a spectrum multiplies by the Hessian on the device."""
    import numpy as np

    from identity_matters.pretrained import load
    from shortcut_study import curvature
    from shortcut_study.curvature import tensorflow_backend

    stack, total = [], tensorflow_backend.Backend.total

    def arrive(*arguments):
        frame, bodies = sys._getframe(1), []
        while frame:
            bodies += [body(frame)] * is_ours(frame)
            frame = frame.f_back
        if any("_checks." in name for name in bodies):  # what is compared before the first number
            return total(*arguments)
        stack.extend(bodies)
        raise Arrived

    tensorflow_backend.Backend.total = arrive
    try:
        curvature.spectrum(load("digits"), np.zeros((4, 28, 28, 1), np.uint8), np.arange(4), progress=False)
    except Arrived:
        pass
    return list(dict.fromkeys(reversed(stack)))


if __name__ == "__main__":
    for walk in sys.argv[1:]:
        for place in {"train": to_first_step, "spectrum": to_product}[walk]():
            print(walk, place)
