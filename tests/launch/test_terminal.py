"""launch.terminal: a launcher outlives its terminal."""

import os
import signal
import sys
import threading

from processes import start_in_terminal

from launch import terminal

LAUNCHED = """
import contextlib, dataclasses, pathlib, subprocess, sys, time
from launch import launcher

@dataclasses.dataclass(frozen=True)
class Config:
    pass

def main(config):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    print("ready", flush=True)
    with contextlib.suppress(OSError):
        sys.stdin.read()  # until the terminal is gone
    time.sleep(0.5)
    print("goes on", flush=True)
    pathlib.Path(path).write_text(f"{child.poll()}")
    child.kill()

path = sys.argv.pop()
launcher.run(main, {"only": Config()}, "", has_run_dir=False)
"""


def test_a_launcher_and_what_it_has_started_outlive_a_closed_terminal(tmp_path):
    process, outer = start_in_terminal(sys.executable, "-c", LAUNCHED, str(tmp_path / "child"))
    written = b""
    while b"ready" not in written:
        written += os.read(outer, 1000)
    os.close(outer)
    assert process.wait(60) == 0 and (tmp_path / "child").read_text() == "None"


def test_sighup_means_afterwards_what_it_meant_before():
    before = signal.getsignal(signal.SIGHUP)
    with terminal.ignoring_hangup():
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    assert signal.getsignal(signal.SIGHUP) == before


def test_a_launcher_that_is_called_in_another_thread_leaves_sighup_alone():
    def look():
        with terminal.ignoring_hangup():
            found.append(signal.getsignal(signal.SIGHUP))

    found, thread = [], threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGHUP)]
