"""The errors that a user can fix, and the other ways in which a run can end early."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

EXIT_ERROR, EXIT_DIVERGED = 1, 3
EXIT_CONTINUE = 75  # sysexits' EX_TEMPFAIL: the same command continues
_MAX_LINE = 1900  # characters of an error on the terminal: a file may name a path of any length
MAX_REPR = 200  # characters of a value in a message


def first_line(error: Exception) -> str:
    """Returns the first line of an error's text that is not blank, cut; the name of its type where there is none."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)[:_MAX_LINE]


def truncated_repr(value: Any) -> str:
    """Returns repr(value), cut after MAX_REPR characters so that it fits into one line of a message."""
    text = repr(value)
    return text if len(text) <= MAX_REPR else f"{text[:MAX_REPR]}…"


class UserError(ValueError):
    """A value that the user gave cannot be used; the message is one line that says which, and what to do."""


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

    It was seen where a compiler computed an evaluation wrong. The run can continue from its newest checkpoint.
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

    def __init__(self, who: str, error: Exception) -> None:
        reason = re.sub(r"\{\{.*?\}\} *", "", first_line(error))
        super().__init__(f"{who} lost another worker ({type(error).__name__}: {reason.strip()[:200]})")


class Unreadable(OSError):
    """A file cannot be read now, though its contents may be intact."""

    same_command_continues = True


@contextlib.contextmanager
def reporting_lack_of_memory(message: str) -> Iterator[None]:
    """Opens a context that raises a UserError with this message where the memory of the machine or a GPU ran out."""
    try:
        yield
    except Exception as error:
        # TensorFlow's ResourceExhaustedError and JAX's XlaRuntimeError speak of full disks and long messages too.
        is_exhausted = "exhausted" in f"{type(error)}{error}".lower()
        is_short = is_exhausted and re.search("OOM|[Oo]ut of memory|allocate", str(error))
        if not isinstance(error, MemoryError) and not is_short and "can't start new thread" not in str(error):
            raise
        raise UserError(message) from error


@contextlib.contextmanager
def naming_file(path: str, temporary: str | None = None) -> Iterator[None]:
    """Opens a context whose OSErrors name a file in place of none, as on a full disk, or of what is in a temporary."""
    try:
        yield
    except OSError as error:
        if error.filename is None or temporary and str(error.filename).startswith(temporary):
            named = OSError(f"cannot write {path}: {error.strerror or error}")
            named.strerror = error.strerror
            raise named from error
        raise
