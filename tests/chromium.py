"""A page in a real headless Chromium: its final DOM, its console messages and its network requests."""

import json
import pathlib
import re
import shutil
import subprocess
from typing import NamedTuple

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Visit(NamedTuple):
    dom: str  # HTML, after the scripts
    console: list[str]
    requests: list[str]  # of the page, to anything but files and data


def visit(page: pathlib.Path | str, scratch: pathlib.Path, *flags: str) -> Visit:
    """Opens a file, or a page of 127.0.0.1 by its address; scratch is an empty directory.

    Nothing else is looked up: a request fails, and is noted, and so is one to the server of the page.
    """
    address = page if isinstance(page, str) else page.as_uri()
    log = scratch / "net.json"
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={scratch}/user",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--enable-logging=stderr", "--v=0",
        f"--log-net-log={log}", "--virtual-time-budget=3000", *flags, "--dump-dom", address,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout, done.stderr[-2000:]
    found = [event.get("params") or {} for event in json.loads(log.read_text())["events"]]
    # Requests of the browser itself, for updates of itself, say, have no origin.
    asked = {p["url"] for p in found if p.get("url") and p.get("initiator", "not an origin") != "not an origin"}
    console = re.findall(r":CONSOLE:\d+\] (.*)", done.stderr)
    return Visit(done.stdout, console, sorted(url for url in asked if not url.startswith(("file:", "data:"))))
