"""A launcher in a process of its own that starts in milliseconds: forked from one that has imported everything."""

import atexit
import contextlib
import dataclasses
import faulthandler
import importlib
import os
import pathlib
import resource
import signal
import sys
import time
from collections.abc import Callable

SECONDS = 300  # what takes longer waits for something; a loaded machine takes a minute for a second


@dataclasses.dataclass
class Ended:
    """How a command ended: its exit code (minus the signal that ended it), what it printed, the seconds it took."""

    code: int
    out: str
    err: str
    seconds: float


def run(
    folder: pathlib.Path,
    name: str,
    *flags,
    cwd: pathlib.Path | None = None,
    environment: dict[str, str] | None = None,
    memory: int | None = None,
    sigterm_after: float | None = None,
    number: int = signal.SIGTERM,
    prepare: Callable[[], None] = lambda: None,
    seconds: float = SECONDS,
) -> Ended:
    """Runs launch.NAME with flags, its output in folder; fails where it does not end by itself.

    The process is a fork of this one, so `environment` reaches what is read while it runs, not at import. `memory`
    bounds the address space that it may add to this process's, in bytes; `sigterm_after` sends SIGTERM then, or the
    signal of that `number`; `prepare` is called in the process before the launcher.
    """
    out, err = folder / f"{name}.out", folder / f"{name}.err"
    started = time.monotonic()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])  # as launch/__init__.py does
    pid = os.fork()
    if pid == 0:
        _become(name, flags, out, err, cwd, environment or {}, memory, prepare)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])
    code, signalled = None, sigterm_after is None
    while code is None and time.monotonic() - started < seconds:
        time.sleep(0.01)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
        elif not signalled and time.monotonic() - started > sigterm_after:
            os.kill(pid, number)
            signalled = True
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if code is None:
        os.waitpid(pid, 0)
    texts = [path.read_text(errors="replace") if path.exists() else "" for path in (out, err)]
    assert code is not None, f"{name} {flags} has not ended after {seconds} s: {texts[1][-2000:]}"
    return Ended(code, *texts, time.monotonic() - started)


def _become(name, flags, out, err, cwd, environment, memory, prepare):
    """Turns the forked process into the command; does not return."""
    code = 101
    atexit._clear()  # what this process does at its exit, as removing folders, is not the command's
    try:
        os.setsid()
        for descriptor, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        os.chdir(cwd or out.parent)
        os.environ.update(environment)
        sys.argv = [f"launch/{name}.py", *map(str, flags)]
        if memory:
            used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job ignores
        faulthandler.dump_traceback_later(SECONDS - 5, file=2)  # where it hangs
        prepare()
        importlib.import_module(f"launch.{name}").cli()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def must_end_well(ended: Ended, *, codes: tuple[int, ...] = (0, 1, 75)) -> None:
    """Fails unless the command ended with one of these codes, with one line where it failed, and no traceback."""
    text = ended.out[-2000:] + ended.err[-2000:]
    is_table = "error: cannot use the rows of" in ended.err  # of an earlier call: shown with its traceback
    assert is_table or "Traceback" not in ended.out + ended.err, text
    assert ended.code in codes, f"exit code {ended.code}: {text}"
    if ended.code == 1:
        errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1 and len(errors[0]) < 2000, text
