"""Launchers: `python -m launch.train` and its siblings."""

import os
import resource
import signal
import sys
import warnings

MIN_ADDRESS_SPACE = 2**32  # bytes; a run of the smallest network takes 3.4 GiB, with 2 cores

# While the modules of a command are imported its signals wait: launch.launcher.run says what follows from them.
if sys.argv[0] == "-m" or os.path.basename(sys.argv[0]).startswith("identity-"):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    # With less TensorFlow and OpenBLAS hang, or abort, in the middle of their imports.
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if 0 <= limit < MIN_ADDRESS_SPACE:
        sys.exit(f"error: {limit:,} bytes of address space are too few: ulimit -v {MIN_ADDRESS_SPACE // 1024} or more")
    # What the environment says to other programs must not end a command: a backend of Matplotlib, whose figures go to
    # files alone, and warnings as errors.
    os.environ["MPLBACKEND"] = "agg"
    warnings.filters[:] = [entry for entry in warnings.filters if entry[0] != "error"]
