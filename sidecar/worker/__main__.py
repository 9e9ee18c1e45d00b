"""``python -m sidecar.worker``: the command by which the controller starts a worker. Not meant for users."""

import logging
import os
import sys

from sidecar.worker.main import main

status = main()
logging.shutdown()
sys.stderr.flush()
# A normal interpreter shutdown takes longer than an adoption, and a successor waits for this process to end.
os._exit(status)
