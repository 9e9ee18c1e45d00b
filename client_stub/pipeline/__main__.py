"""``python -m client_stub.pipeline``."""

from __future__ import annotations

from client_stub.pipeline.main import main

if __name__ == "__main__":
    raise SystemExit(main())
