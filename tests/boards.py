"""A TensorBoard server, asked over HTTP as its page asks."""

import contextlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator

from processes import until


@contextlib.contextmanager
def tensorboard(logdir: pathlib.Path) -> Iterator[Callable]:
    """ask(route, request=None) -> the JSON answer of TensorBoard on this logdir; a request is sent by POST."""
    command = [sys.executable, "-m", "tensorboard.main", f"--logdir={logdir}", "--host=localhost", "--port=0"]
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(command, stdout=log, stderr=log) as board:

        def address() -> str | None:
            log.seek(0)
            found = re.search(r"http://localhost:\d+", log.read())
            return found and found[0]

        def ask(route: str, request: dict | None = None):
            data = None if request is None else json.dumps(request).encode()
            sent = urllib.request.Request(f"{address()}/data/{route}", data, {"Content-Type": "application/json"})
            with urllib.request.urlopen(sent, timeout=60) as answer:
                return json.load(answer)

        try:
            until(address, seconds=120)
            until(lambda: ask("plugin/images/tags"), seconds=60)  # it reads the events in a thread
            until(lambda seen=[]: seen.append(ask("runs")) or seen[-1:] == seen[-2:-1], seconds=60)
            yield ask
        finally:
            board.kill()


def metrics_and_sessions(ask: Callable) -> tuple[list[str], list[dict]]:
    """The metrics of the HParams page, and its lines."""
    experiment = ask("plugin/hparams/experiment", {"experimentName": "", "includeMetrics": True})
    columns = [{"metric": info["name"]} for info in experiment["metricInfos"]]
    columns += [{"hparam": info["name"]} for info in experiment["hparamInfos"]]
    asked = {
        "experimentName": "",
        "allowedStatuses": ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"],
        "colParams": [column | {"includeInResult": True} for column in columns],
        "startIndex": 0,
        "sliceSize": 1000,
    }
    groups = ask("plugin/hparams/session_groups", asked)["sessionGroups"]
    return [info["name"]["tag"] for info in experiment["metricInfos"]], groups
