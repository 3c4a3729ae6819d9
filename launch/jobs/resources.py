"""What this machine gives the tasks of a local job: cores, GPUs and ports, and an end with the launcher's."""

import contextlib
import ctypes
import itertools
import os
import random
import signal
import socket


def share(cores: list[int], index: int, count: int) -> list[int]:
    """Returns the cores of worker `index` of `count`; none where there are fewer cores than workers."""
    return cores[index * len(cores) // count : (index + 1) * len(cores) // count] if len(cores) >= count else []


def visible_gpus() -> list[str]:
    """Returns the NVIDIA GPUs that a process started here sees, as CUDA_VISIBLE_DEVICES has them; [] if unknown."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        names = (name.strip() for name in os.environ["CUDA_VISIBLE_DEVICES"].split(","))
        return list(itertools.takewhile(lambda name: name and not name.startswith("-"), names))  # as CUDA reads them
    with contextlib.suppress(OSError):
        return [str(number) for number in range(len(os.listdir("/proc/driver/nvidia/gpus")))]
    return []


def free_ports(count: int) -> list[int]:
    """Returns ports that nobody listens on, below those of outgoing connections (on Linux from 32,768 on)."""
    found, candidates = [], range(10_000, 32_000)
    while len(found) < count:
        port = random.choice(candidates)
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            found += [port] if port not in found else []
    return found


def die_with_parent() -> None:
    """To be called in a process before it starts: when the launcher is killed, so is that process (Linux only)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
