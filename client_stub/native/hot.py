"""The names of the compiled part, for all other rooms. Without it the import says what is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

try:
    from client_stub.native._native import *  # noqa: F403
except ImportError as error:
    from client_stub.native.missing import COMPILED, why_not

    raise ImportError(why_not(error), name=COMPILED) from error

if TYPE_CHECKING:
    from client_stub.errors import SidecarError
    from client_stub.record_metadata import RecordMetadata

OnDelivery: TypeAlias = "Callable[[SidecarError | None, RecordMetadata | None], object]"
