"""AskedCluster: compares the cluster and acks for which a program asks with those of the daemon.

ClientAnswers asks it at each HELLO, on the controller's loop.

A program that was written for Kafka's own client names its servers. The daemon has its own, and would otherwise send
the program's records to another cluster without a word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from sidecar.common.errors import Refused
from sidecar.common.model import Node
from sidecar.common.wording import masked
from sidecar.config.rules import parse_address
from sidecar.config.settings import SidecarConfig

SERVERS_MAX: Final = 32
"""How many of the servers that a program names are compared."""
LOOKUPS_MAX: Final = 8
"""How many programs' servers are looked up at a time; the next ask again."""
LOOKUP_S: Final = 1.5
"""How long a look-up of all their names may take: a HELLO is kept for 2 s."""
FOUND_S: Final = 60.0
"""How long the addresses of a program's servers count as known."""
FOUND_MAX: Final = 256
SHOWN_MAX: Final = 300
"""Characters of a program's servers in a sentence."""
DEFAULT_PORT: Final = 9092
_STRENGTH: Final = {"0": 0, "1": 1, "all": 2, "-1": 2}
_NAMES: Final = {0: "0", 1: "1", -1: "all"}

Address = tuple[str, int]
FindAddresses = Callable[[str, int], Awaitable[list[Any]]]
"""``find(host, port)`` as getaddrinfo(). Raises OSError."""


class AskedCluster:
    """Belongs to the controller's loop. ``nodes`` are the brokers of the cluster's metadata, empty before that came.
    ``on_found`` is called when a look-up ends: the HELLOs that wait for it can be tried again.
    """

    def __init__(
        self,
        config: Callable[[], SidecarConfig],
        nodes: Callable[[], Mapping[int, Node]],
        find: FindAddresses,
        on_found: Callable[[], None],
    ) -> None:
        self._config = config
        self._nodes = nodes
        self._find = find
        self._on_found = on_found
        self._loop = asyncio.get_running_loop()
        self._found: dict[frozenset[Address], tuple[frozenset[Address], float]] = {}
        """Names and ports → their addresses, and when these were found."""
        self._lookups: dict[frozenset[Address], asyncio.Task[None]] = {}

    def close(self) -> None:
        self._on_found = _nobody
        for task in self._lookups.values():
            task.cancel()

    def check(self, asked: object, name: str = "") -> bool:
        """Whether a client may send here that asks for ``asked``, the last field of its HELLO; False: not known yet.

        Raises Refused, which names both sides.
        """
        if not isinstance(asked, dict):
            return True
        who = f'Client "{masked(name)}"' if name else "This client"
        self._check_acks(asked.get("acks"), who)
        servers = asked.get("bootstrap.servers")
        return not isinstance(servers, str) or self._check_servers(servers, who)

    async def wait(self, asked: object) -> None:
        """As ``check``, and wait until it is known. Raises Refused, also when that takes too long."""
        ends_s = self._loop.time() + LOOKUP_S
        while not self.check(asked):
            lookups = list(self._lookups.values())
            if not lookups or self._loop.time() >= ends_s:
                raise Refused("NOT_READY", "The daemon does not know its cluster's addresses yet; try again.")
            await asyncio.wait(lookups, timeout=LOOKUP_S)

    def _check_acks(self, acks: object, who: str) -> None:
        own = self._config().integer("acks")
        if _STRENGTH.get(str(acks).lower(), 0) > _STRENGTH[str(own)]:
            raise Refused(
                "WEAKER_ACKS",
                f"{who} asks for acks={acks}, and this daemon sends with acks={_NAMES[own]}: set acks in the daemon's "
                "configuration, or ask for no more.",
            )

    def _check_servers(self, servers: str, who: str) -> bool:
        theirs = addresses(servers.split(","))
        configured = addresses(self._config().words("bootstrap.servers"))
        nodes = self._nodes()
        ours = configured | {(node.host.lower(), node.port) for node in nodes.values()}
        if not theirs or theirs & ours:
            return True
        both = [self._addresses_of(each) for each in (theirs, ours)]
        if None in both:
            return False
        if both[0] & both[1]:  # type: ignore[operator]  # neither is None
            return True
        if not nodes:
            return False  # one of its brokers may be meant
        brokers = ",".join(sorted(f"{host}:{port}" for host, port in ours - configured))
        raise Refused(
            "OTHER_CLUSTER",
            f"{who} asks for the cluster at bootstrap.servers={masked(servers[:SHOWN_MAX])}, and this daemon sends to "
            f"{','.join(self._config().words('bootstrap.servers'))}"
            f"{f', whose brokers are {brokers[:SHOWN_MAX]}' if brokers else ''}: name one of these or leave it out, or "
            "name the daemon of that cluster.",
        )

    def _addresses_of(self, names: frozenset[Address]) -> frozenset[Address] | None:
        """The numeric addresses of these names; None while they are looked up."""
        found = self._found.get(names)
        if found is not None and self._loop.time() - found[1] < FOUND_S:
            return found[0]
        if names not in self._lookups and len(self._lookups) < LOOKUPS_MAX:
            task = self._loop.create_task(self._look_up(names))
            self._lookups[names] = task
            task.add_done_callback(lambda _: self._ended(names))
        return None

    def _ended(self, names: frozenset[Address]) -> None:
        del self._lookups[names]
        self._on_found()

    async def _look_up(self, names: frozenset[Address]) -> None:
        try:
            async with asyncio.timeout(LOOKUP_S):
                answers = await asyncio.gather(*(self._find(*each) for each in names), return_exceptions=True)
        except TimeoutError:
            return  # a name server hangs: nothing is known
        found = frozenset(
            (str(row[4][0]), int(row[4][1]))
            for rows in answers
            if not isinstance(rows, BaseException)
            for row in rows
        )
        self._found.pop(names, None)
        while len(self._found) >= FOUND_MAX:
            del self._found[next(iter(self._found))]
        self._found[names] = found, self._loop.time()


def _nobody() -> None:
    """The daemon ends: nobody waits for look-ups."""


def addresses(servers: Iterable[str]) -> frozenset[Address]:
    """(host, port) of each server, as the clients take them: with a protocol before it, and without a port."""
    found = set()
    for server in list(servers)[:SERVERS_MAX]:
        text = server.strip().rpartition("://")[2].lower()
        address = parse_address(text) or parse_address(f"{text}:{DEFAULT_PORT}")
        if address is not None:
            found.add(address)
    return frozenset(found)
