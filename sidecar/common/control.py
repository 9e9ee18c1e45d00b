"""Messages between controller and worker over their inherited socketpair. :mod:`sidecar.common.control_codec` encodes
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple, TypeAlias

from sidecar.common.condition import BrokerRow, HoldRow, LettersRow, ShareRow, WaitRow
from sidecar.common.explanation import EVERY_USER, ClientAccount, StageAccount, WaitingRow
from sidecar.common.model import Node


class ControlKind(IntEnum):
    START = 1
    READY = 2
    UPDATE_METADATA = 3
    UPDATE_METADATA_REPLY = 4
    NEED_TOPICS = 5
    TOPIC_ERRORS = 6
    DRAIN = 7
    DRAINED = 8
    STOP = 9
    WARM = 10
    CONFIGURE = 11
    CONFIGURED = 12
    LOGIN_TOKEN = 30
    TOKEN_REFUSED = 31
    FAILED_RECORDS = 20
    LISTEN_AGAIN = 13
    CONDITION = 14
    EXPLAIN = 15
    EXPLAINED = 16


class UpdateError(IntEnum):
    """Why a worker refused an UpdateMetadata (with Kafka's codes)."""

    NONE = 0
    STALE_CONTROLLER_EPOCH = 11
    STALE_WORKER_EPOCH = 77  # Kafka: STALE_BROKER_EPOCH


class PartitionUpdate(NamedTuple):
    """One partition state of an UpdateMetadata. ``leader`` -2 means that the partition is being deleted.

    ``topic_id`` is the UUID's 16 bytes, or None from a broker without topic ids.
    """

    topic: str
    topic_id: bytes | None
    partition: int
    leader: int
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    replicas: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()


class FailureRow(NamedTuple):
    """Records of one topic that failed with one error. ``code`` is the outcome's; ``persistence`` is wire.Persistence.

    ``topic`` is empty for records of many topics. ``client`` is the sender of the last one, empty if it is gone.
    ``cause``: for what the last one waited until its time was over, a WaitCause or the name of a broker's error.
    """

    topic: str
    code: int
    text: str
    persistence: int
    count: int  # type: ignore[assignment]  # shadows tuple.count
    client: str
    cause: str = ""


class TopicError(NamedTuple):
    """Why a topic cannot be used now. ``code`` is Kafka's; ``text`` one sentence naming the topic."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class Start:
    """controller → worker, the first message: everything that a worker needs to start.

    ``config`` has the daemon's concluded settings by name. File descriptors carry the sender's numbers; the
    descriptors themselves arrive with START_FD_BYTE before this message, under numbers of the worker's own. ``slot``
    is the worker's area of the segment. ``incarnation`` never repeats.
    """

    kind: ClassVar[ControlKind] = ControlKind.START
    worker_index: int
    worker_epoch: int
    slot: int
    incarnation: int
    endpoint: str
    instance_key: bytes
    segment_fd: int
    wake_fds: tuple[int, ...] = ()
    controller_epoch: int = 0
    segment_path: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ready:
    """worker → controller: the endpoint is bound and the segment attached, so clients may be sent here."""

    kind: ClassVar[ControlKind] = ControlKind.READY
    pid: int
    worker_epoch: int = 0


@dataclass(frozen=True, slots=True)
class UpdateMetadata:
    """controller → worker (rule U3): live brokers, and partition states to add, replace or delete.

    ``is_full``: the partition states are all that the controller knows (a new worker, a new controller, or a worker
    that lagged behind). A missing topic is deleted or not in use any more: a worker that holds records of it asks.
    Not full and no partition states: only the brokers changed. A deletion of partition -1 is one of the whole topic.
    A broker has one address: that of the listener which the daemon's security protocol asks.
    """

    kind: ClassVar[ControlKind] = ControlKind.UPDATE_METADATA
    controller_id: int
    controller_epoch: int
    worker_epoch: int
    brokers: tuple[Node, ...]
    partitions: tuple[PartitionUpdate, ...] = ()
    is_full: bool = False
    cluster_id: str | None = None
    version: int = 0


@dataclass(frozen=True, slots=True)
class UpdateMetadataReply:
    """worker → controller. ``error`` is an UpdateError; ``version`` repeats the request's."""

    kind: ClassVar[ControlKind] = ControlKind.UPDATE_METADATA_REPLY
    error: int
    worker_epoch: int
    version: int = 0


@dataclass(frozen=True, slots=True)
class NeedTopics:
    """worker → controller.

    ``topics``: topics that are needed and unknown or stale at the worker. ``refresh``: ask the cluster again even if
    they are known (rule M7). ``used``: topics with records since the last message (renews their expiry, rule M2).
    """

    kind: ClassVar[ControlKind] = ControlKind.NEED_TOPICS
    topics: tuple[str, ...] = ()
    refresh: bool = False
    used: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicErrors:
    """controller → worker: the topics that the last metadata answer refused, by name.

    A topic without an error again appears in an UpdateMetadata. ``cluster_error`` says why no broker answers, "" while
    one does. ``is_login_refused``: the reason is that brokers refuse the login.
    """

    kind: ClassVar[ControlKind] = ControlKind.TOPIC_ERRORS
    errors: Mapping[str, TopicError] = field(default_factory=dict)
    cluster_error: str = ""
    is_login_refused: bool = False


@dataclass(frozen=True, slots=True)
class Drain:
    """controller → worker: accept nothing new, deliver the rest within ``timeout_ms``, then fail the rest."""

    kind: ClassVar[ControlKind] = ControlKind.DRAIN
    timeout_ms: float


@dataclass(frozen=True, slots=True)
class Drained:
    """worker → controller: the drain has ended, with ``left`` records not delivered."""

    kind: ClassVar[ControlKind] = ControlKind.DRAINED
    left: int


@dataclass(frozen=True, slots=True)
class Stop:
    """controller → worker: exit now."""

    kind: ClassVar[ControlKind] = ControlKind.STOP


@dataclass(frozen=True, slots=True)
class Warm:
    """worker → controller, before START: everything is imported."""

    kind: ClassVar[ControlKind] = ControlKind.WARM
    pid: int


@dataclass(frozen=True, slots=True)
class Configure:
    """controller → worker: settings that changed while the daemon runs.

    ``config`` has all settings, as in START; only live ones differ. ``serial`` increases by one per change. The worker
    applies changes in order, between two turns.
    """

    kind: ClassVar[ControlKind] = ControlKind.CONFIGURE
    serial: int
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Configured:
    """worker → controller: the settings of CONFIGURE ``serial`` are applied."""

    kind: ClassVar[ControlKind] = ControlKind.CONFIGURED
    serial: int


@dataclass(frozen=True, slots=True)
class FailedRecords:
    """worker → controller: records that have failed since the last message of this kind."""

    kind: ClassVar[ControlKind] = ControlKind.FAILED_RECORDS
    rows: tuple[FailureRow, ...]


@dataclass(frozen=True, slots=True)
class Condition:
    """worker → controller, at most once a second and only after a change: brokers, pool, and held streams of this
    worker.

    It replaces the previous one. ``topics`` and ``clients`` are those that hold most of the pool. ``waits``: the
    oldest record with a partition, and the oldest one that waits for its topic. ``letters``: empty while the spool
    takes all. Without ``knows_cluster`` the worker has just begun and has no metadata yet: its predecessor's brokers,
    waits and letters still hold.
    """

    kind: ClassVar[ControlKind] = ControlKind.CONDITION
    brokers: tuple[BrokerRow, ...] = ()
    topics: tuple[ShareRow, ...] = ()
    clients: tuple[ShareRow, ...] = ()
    holds: tuple[HoldRow, ...] = ()
    waits: tuple[WaitRow, ...] = ()
    letters: tuple[LettersRow, ...] = ()
    knows_cluster: bool = True


@dataclass(frozen=True, slots=True)
class Explain:
    """controller → worker: explain what waits for what. ``name``: a topic, a partition or a client; empty: everything.

    ``uid``: name and count only clients of this user or key; EVERY_USER: all.
    """

    kind: ClassVar[ControlKind] = ControlKind.EXPLAIN
    serial: int
    name: str = ""
    uid: int = EVERY_USER


@dataclass(frozen=True, slots=True)
class Explained:
    """worker → controller: the answer to EXPLAIN ``serial``. ``row_count``, ``client_count`` and ``stage_count`` are
    totals.

    ``is_known``: the worker has a topic, partition or client of that name. ``unread``: number of batches not examined.
    """

    kind: ClassVar[ControlKind] = ControlKind.EXPLAINED
    serial: int
    is_known: bool = False
    rows: tuple[WaitingRow, ...] = ()
    row_count: int = 0
    clients: tuple[ClientAccount, ...] = ()
    client_count: int = 0
    unread: int = 0
    stages: tuple[StageAccount, ...] = ()
    stage_count: int = 0


@dataclass(frozen=True, slots=True)
class LoginToken:
    """controller → worker: the OAuth token for logins at brokers. Sent again for each newer one.

    ``expires_at_ms`` is in ms since 1970; None if it does not end. ``why_not`` says why no newer token could be
    fetched, "" while that works; ``token`` is then the last one, "" if there never was one.
    """

    kind: ClassVar[ControlKind] = ControlKind.LOGIN_TOKEN
    token: str = field(default="", repr=False)
    expires_at_ms: float | None = None
    principal: str = ""
    extensions: Mapping[str, str] = field(default_factory=dict)
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class ListenAgain:
    """controller → worker: the run directory was removed and made again. Lock the slot's byte there, and listen."""

    kind: ClassVar[ControlKind] = ControlKind.LISTEN_AGAIN


@dataclass(frozen=True, slots=True)
class TokenRefused:
    """worker → controller: a broker has refused the token with this fingerprint."""

    kind: ClassVar[ControlKind] = ControlKind.TOKEN_REFUSED
    fingerprint: bytes


ControlMessage: TypeAlias = (
    Start
    | Ready
    | UpdateMetadata
    | UpdateMetadataReply
    | NeedTopics
    | TopicErrors
    | Drain
    | Drained
    | Stop
    | Warm
    | Configure
    | Configured
    | FailedRecords
    | Condition
    | Explain
    | Explained
    | LoginToken
    | TokenRefused
    | ListenAgain
)
