"""``python -m sidecar.worker``: how the controller starts a worker; not for people."""

import logging
import os
import sys

from sidecar.worker.main import main

status = main()
logging.shutdown()
sys.stderr.flush()
# Taking apart an interpreter with all this imported lasts longer than an adoption, and a successor waits for us.
os._exit(status)
