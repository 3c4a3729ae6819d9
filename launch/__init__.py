"""Launchers: `python -m launch.train` and its siblings."""

import os
import signal
import sys

# While the modules of a command are imported its signals wait: launch.launcher.run says what follows from them.
if sys.argv[0] == "-m" or os.path.basename(sys.argv[0]).startswith("identity-"):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
