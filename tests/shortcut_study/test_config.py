"""shortcut_study.config in Python: the command line gives the types of the fields, a caller anything."""

import re

import pytest

from shortcut_study.config import StudyConfig

MISTAKES = {
    "num_runs must be a whole number, got '3'": {"num_runs": "3"},
    "depth must be a whole number, got 16.0": {"depth": 16.0},
    "depths must be a list of whole numbers, got 3": {"depths": 3},
    "relu_depths must be a list of whole numbers, got (2.5,)": {"relu_depths": (2.5,)},
    "learning_rate must be a number, got True": {"learning_rate": True},
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_value_of_another_type_is_refused(message):
    with pytest.raises(ValueError, match=re.escape(message)):
        StudyConfig(**MISTAKES[message])
    assert StudyConfig(depths=[2, 3], learning_rate=1) == StudyConfig(depths=(2, 3), learning_rate=1)
