"""``python -m sidecar.worker``: how the controller starts a worker; not for people."""

import sys

from sidecar.worker.main import main

sys.exit(main())
