"""The errors that a user can fix, and the other ways in which a run can end early."""

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

EXIT_ERROR = 1
EXIT_DIVERGED = 3
EXIT_CONTINUE = 75  # sysexits' EX_TEMPFAIL: the same command continues
_MAX_LINE = 1900  # characters of an error on the terminal: a file may name a path of any length
MAX_REPR = 200  # characters of a value in a message


def first_line(error: Exception) -> str:
    """Returns the first line of an error's text that is not blank, cut; the name of its type if there is none."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)[:_MAX_LINE]


def reason_of(error: Exception) -> str:
    """Returns why a file cannot be used: the words of the system, or else the first line of the error's text, cut."""
    words = error.strerror if isinstance(error, OSError) else None
    return words or first_line(error)[:MAX_REPR]  # zipfile quotes the bytes that it read, however long


def truncated_repr(value: Any) -> str:
    """Returns repr(value), cut after MAX_REPR characters so that a message stays short."""
    text = repr(value)
    return text if len(text) <= MAX_REPR else f"{text[:MAX_REPR]}…"


class UserError(ValueError):
    """Raised for a value that cannot be used; the short message names the value and the way out."""


class VaryingSizes(UserError):
    """The images of a data set vary in size, and no image_size is given."""


class Diverged(ArithmeticError):
    """The loss became NaN or infinite.

    It is checked after each call of the compiled program, which makes num_steps updates, and at an evaluation; in which
    update of the call it happened is not known. `step` is the number of the last one, from 1.
    """

    def __init__(self, step: int, num_steps: int = 1) -> None:
        where = f"at step {step}" if num_steps == 1 else f"in the {num_steps} steps up to step {step}"
        super().__init__(f"the loss became NaN or infinite {where}")
        self.step = step


class EvaluationFailed(UserError):
    """The loss of the test images is NaN or infinite, while the weights and the training loss are finite.

    A compiler that computed an evaluation wrong has caused it. The run can continue from its newest checkpoint.
    """

    def __init__(self, step: int, training_loss: float) -> None:
        super().__init__(
            f"the evaluation after step {step} gave a loss that is NaN or infinite, while the training loss is "
            f"{training_loss:.4g} and the network gives finite numbers without compilation; the checkpoints are "
            "intact and the same command continues; if this happens again, use another Keras backend, or a new "
            "run_dir with --jit_compile=off"
        )


class Preempted(Exception):
    """SIGTERM came before the end of the run, saved after `step` updates; None: there was nothing new to save."""

    same_command_continues = True  # for launch.launcher

    def __init__(self, step: int | None = None) -> None:
        saved = "nothing new to save" if step is None else f"saved at step {step}"
        super().__init__(f"received SIGTERM, {saved}")
        self.step = step


class WorkerLost(ConnectionError):
    """Another worker has ended or never came, so that the rest of the job cannot continue."""

    same_command_continues = True

    def __init__(self, process: str, error: Exception) -> None:
        reason = re.sub(r"\{\{.*?\}\} *", "", first_line(error))
        super().__init__(f"{process} lost another worker ({type(error).__name__}: {reason.strip()[:200]})")


class Unreadable(OSError):
    """A file cannot be read now, though its contents may be intact."""

    same_command_continues = True


def note(line: str) -> None:
    """Prints a note on stderr."""
    print(f"note: {line}", file=sys.stderr, flush=True)


Rule = Callable[[Exception], Exception | None]  # the error to raise in place of another, if that is one of its kind


@contextlib.contextmanager
def translate_errors(*rules: Rule) -> Iterator[None]:
    """Context manager: raises, in place of an error, the result of the first rule that recognises it."""
    try:
        yield
    except Exception as error:
        for rule in rules:
            if (explanation := rule(error)) is not None:
                raise explanation from error
        raise


def out_of_memory_error(message: str) -> Rule:
    """Returns the rule that raises a UserError with this message if the memory of the machine or a GPU ran out."""

    def rule(error: Exception) -> Exception | None:
        # TensorFlow's ResourceExhaustedError and JAX's XlaRuntimeError speak of full disks and long messages too.
        is_exhausted = "exhausted" in f"{type(error)}{error}".lower()
        is_short = is_exhausted and re.search("OOM|[Oo]ut of memory|allocate", str(error))
        is_known = isinstance(error, MemoryError) or is_short or "can't start new thread" in str(error)
        return UserError(message) if is_known else None

    return rule


def add_filename(path: str, temporary: str | None = None) -> Rule:
    """Returns the rule by which OSErrors name a file in place of none, as on a full disk, or of one in a temporary."""

    def rule(error: Exception) -> Exception | None:
        if not isinstance(error, OSError):
            return None
        if error.filename is not None and not (temporary and str(error.filename).startswith(temporary)):
            return None
        named = OSError(f"cannot write {path}: {error.strerror or error}")
        named.strerror = error.strerror
        return named

    return rule


def table_error(path: str) -> Rule:
    """Returns the rule by which an error of Python's or NumPy's, on rows that were read from a table, names its path.

    The new error is no UserError: the fault may be the code's, so its traceback is shown. Only for rows that another
    call has written: with rows that this call computed the error is raised as it is.
    """

    def rule(error: Exception) -> Exception | None:
        errors = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
        if isinstance(error, UserError) or not isinstance(error, errors):
            return None
        return RuntimeError(f"cannot use the rows of {path} ({type(error).__name__}: {first_line(error)[:200]})")

    return rule


def unreadable_data(error: Exception) -> Exception | None:
    """The rule that recovers the UserError of a data stream after TensorFlow has wrapped it in another error."""
    match = re.search(r"\bUserError: (cannot read .*)\n", str(error))
    return UserError(match[1]) if match and not isinstance(error, UserError) else None


def as_user_error(error: Exception) -> Exception | None:
    """The rule that turns the ValueError of a library function, called with the user's values, into a UserError."""
    return UserError(str(error)) if isinstance(error, ValueError) and not isinstance(error, UserError) else None
