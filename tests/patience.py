"""How long a test waits for something that comes. A busy machine is no finding, so it is long; pytest's own timeout,
which shows all stacks, is longer."""

from __future__ import annotations

from typing import Final

PATIENCE_S: Final = 60.0
"""For one wait."""
TEST_S: Final = 240.0
"""For a test that runs as a whole inside one wait."""
