"""The error message of a function's rejected arguments."""

import pytest


def refused(function, *arguments, **options) -> str:
    """Calls the function; returns the one-line message of its ValueError."""
    with pytest.raises(ValueError) as error:
        function(*arguments, **options)
    assert "\n" not in str(error.value)
    return str(error.value)
