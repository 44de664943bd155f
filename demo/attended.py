"""`python -m demo.attended MODULE WORDS…`: runs a module as `python -m` does, and not longer than whoever started it.

Its standard input is a pipe that only the starter holds open. The end of the pipe comes also when the starter is killed
with -9: then this process drains as on SIGTERM, and if it has not ended a while later, it ends at once. `processes.py`
starts workers, cleaners and sites so.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

PATIENCE = 10.0
"""How long the process may take to end by itself, seconds."""


def main() -> None:
    """Run the module that the words name."""
    threading.Thread(target=wait, name="attended", daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def wait() -> None:
    """Wait for the end of the standard input, and end this process."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    os._exit(1)


if __name__ == "__main__":
    main()
