"""Messages of errors: one line of limited length, and which foreign errors become ours."""

import pytest

from identity_matters import errors


def test_values_and_lines_that_are_too_long_are_cut():
    for length, shown in ((198, f"'{198 * 'x'}'"), (199, f"'{199 * 'x'}…")):
        assert errors.truncated_repr(length * "x") == shown
    assert errors.first_line(ValueError("\n  " + 2000 * "x" + "\nmore")) == 1900 * "x"
    assert errors.first_line(KeyError()) == "KeyError"
    assert [errors.reason_of(of) for of in (OSError(2, "gone"), OSError(300 * "x"))] == ["gone", 200 * "x"]


def test_a_lost_worker_and_a_loss_that_is_not_finite_have_a_short_error():
    lost = errors.WorkerLost("worker 1", ConnectionError("{{node sum}} the peer has gone\n\nTraceback"))
    assert str(lost) == "worker 1 lost another worker (ConnectionError: the peer has gone)"
    assert str(errors.Diverged(7)) == "the loss became NaN or infinite at step 7"
    assert str(errors.Diverged(8, 2)) == "the loss became NaN or infinite in the 2 steps up to step 8"


@pytest.mark.parametrize(
    "rule, error, words",
    [
        (errors.as_user_error, ValueError("too large"), "too large"),
        (errors.as_user_error, errors.UserError("too large"), None),
        (errors.as_user_error, TypeError("no number"), None),
        (errors.unreadable_data, RuntimeError("E at x: UserError: cannot read a.png: gone\nTraceback"), "a.png: gone"),
        (errors.unreadable_data, errors.UserError("UserError: cannot read a.png\n"), None),
        (errors.unreadable_data, RuntimeError("cannot read"), None),
    ],
)
def test_known_errors_of_libraries_become_user_errors(rule, error, words):
    found = rule(error)
    assert (found is None) == (words is None)
    assert found is None or isinstance(found, errors.UserError) and words in str(found)


def test_an_error_on_the_rows_of_a_table_names_its_path_and_is_no_users_mistake():
    rule = errors.table_error("rows.csv")
    found = rule(KeyError("loss"))
    assert isinstance(found, RuntimeError) and str(found) == "cannot use the rows of rows.csv (KeyError: 'loss')"
    assert rule(errors.UserError("no rows")) is None
    assert rule(OSError("gone")) is None
