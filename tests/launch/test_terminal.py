"""launch.terminal: a launcher outlives its terminal."""

import os
import sys

from processes import start_in_terminal

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
launcher.run(main, {"only": Config()}, "")
"""


def test_a_launcher_and_what_it_has_started_outlive_a_closed_terminal(tmp_path):
    process, outer = start_in_terminal(sys.executable, "-c", LAUNCHED, str(tmp_path / "child"))
    written = b""
    while b"ready" not in written:
        written += os.read(outer, 1000)
    os.close(outer)
    assert process.wait(60) == 0 and (tmp_path / "child").read_text() == "None"
