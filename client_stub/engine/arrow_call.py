"""The way to a TableCall, whose module is loaded with the first call: pyarrow is large, and few programs have it.

The two producers call it in the thread of send_arrow().
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from client_stub.system.missing_resources import start_failed

if TYPE_CHECKING:
    import pyarrow

    from client_stub.engine.engine import Engine
    from client_stub.engine.table_call import TableCall


def table_call(engine: Engine, topic: str, table: pyarrow.Table | pyarrow.RecordBatch) -> TableCall:
    """The call that queues ``table``. Raises as Producer.send_arrow()."""
    try:
        from client_stub.engine.table_call import TableCall
    except OSError as error:  # its file cannot be opened
        raise start_failed(error) from error

    return TableCall(engine.stream_of(topic), table)
