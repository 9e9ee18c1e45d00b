"""ClientRowShares: limits how much of the client table one process and one user may take, so that others find a row.

One user may have three rows for each free one, counted over all workers. So a single service user gets three
quarters of the table, a second user gets three quarters of the rest, and a newcomer always finds a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sidecar.common.errors import Refused
from sidecar.net.stubs.unattached import PER_FREE

if TYPE_CHECKING:
    from sidecar.shm.client_table import ClientTable

PROCESS_SHARE: Final = 0.25
"""Share of the client table that the clients of one process may take at one worker."""
COUNT_MS: Final = 100.0
"""Minimum interval in ms between counts of the rows by user, made while the table is nearly full."""


class TableFull(Refused):
    """No row is free now. Rows of clients that will not come back may be released first."""

    def __init__(self, text: str) -> None:
        super().__init__("TOO_MANY_CLIENTS", text)


class ClientRowShares:
    """Counts rows per process and user. Belongs to a worker's sessions. Rows of other workers are read from
    the table.
    """

    def __init__(self, table: ClientTable) -> None:
        self._table = table
        self._process_rows_max = max(1, int(table.capacity * PROCESS_SHARE))
        self._of_process: dict[int, int] = {}
        """Rows at this worker by pid."""
        self._of_user: dict[int, int] = {}
        """Rows at all workers by uid: the last count, plus the rows taken here since."""
        self._counted_ms = float("-inf")

    def keep(self, pid: int) -> None:
        self._of_process[pid] = self._of_process.get(pid, 0) + 1

    def release(self, pid: int) -> None:
        left = self._of_process.pop(pid) - 1
        if left:
            self._of_process[pid] = left
        self._counted_ms = float("-inf")

    def took(self, uid: int | None) -> None:
        if uid is not None:
            self._of_user[uid] = self._of_user.get(uid, 0) + 1

    def check(self, pid: int, uid: int | None, now_ms: float) -> None:
        """Raise TableFull if this process or user has its share. ``pid`` 0 and ``uid`` None: not known."""
        if pid and self._of_process.get(pid, 0) >= self._process_rows_max:
            raise TableFull(
                f"Process {pid} has {self._process_rows_max} clients here, a quarter of all there may be "
                "(daemon.clients_max)."
            )
        taken = self._table.taken()
        most = PER_FREE * (self._table.capacity - taken)
        if uid is None or taken < most:
            return
        if now_ms - self._counted_ms >= COUNT_MS:
            self._of_user, self._counted_ms = self._table.count_by_user(), now_ms
        if self._of_user.get(uid, 0) >= most:
            raise TableFull(self.full_text(uid))

    def full_text(self, uid: int | None) -> str:
        """Error text for a client that finds no row."""
        text = f"The client table is full: {self._table.taken()} of {self._table.capacity} rows are taken"
        if uid is not None:
            who = f"uid {uid}" if uid < 1 << 32 else "this key"
            text += f", {self._of_user.get(uid, 0)} of them by {who}"
        return f"{text}. Raise daemon.clients_max; a quarter of it is left for other users."
