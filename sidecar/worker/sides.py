"""The two sides of a worker: objects that serve stubs, and objects that serve brokers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from sidecar.net.kafka.cluster_links import ClusterLinks
    from sidecar.worker.brokers.inquiry import Inquiry
    from sidecar.worker.brokers.produce_port import ProducePort
    from sidecar.worker.brokers.producer_id_port import ProducerIdPort
    from sidecar.worker.streams.client_limits import ClientLimits
    from sidecar.worker.streams.outboxes import Outboxes
    from sidecar.worker.streams.sessions import Sessions
    from sidecar.worker.stubs.client_processes import ClientProcesses
    from sidecar.worker.stubs.client_watch import ClientWatch
    from sidecar.worker.stubs.express import Express
    from sidecar.worker.stubs.group_commit import GroupCommit
    from sidecar.worker.stubs.holds import Holds
    from sidecar.worker.stubs.intake import Intake
    from sidecar.worker.stubs.openings import StreamOpenings
    from sidecar.worker.stubs.shares import Shares
    from sidecar.worker.stubs.stub_port import StubPort
    from sidecar.worker.transactions.transaction_port import TransactionPort


@dataclass(frozen=True, slots=True)
class Stubs:
    """Objects that serve stubs."""

    sessions: Sessions
    limits: ClientLimits
    outboxes: Outboxes
    processes: ClientProcesses
    shares: Shares
    openings: StreamOpenings
    holds: Holds
    express: Express
    intake: Intake
    commit: GroupCommit | None
    port: StubPort
    clients: ClientWatch
    submission_bytes_max: int


@dataclass(frozen=True, slots=True)
class Brokers:
    """Objects that serve brokers."""

    links: ClusterLinks
    produce_port: ProducePort
    producer_id_port: ProducerIdPort
    inquiry: Inquiry
    transactions: TransactionPort
    codecs: ThreadPoolExecutor
