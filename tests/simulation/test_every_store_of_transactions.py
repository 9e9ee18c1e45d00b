"""Goal: a worker may die after any single store of its life with transactions, and of the adoption that follows; each
transaction ends as its client asked, whole and once.

As tests/worker/test_every_store.py for plain records. Nothing else goes wrong here, so no client loses its id.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from sidecar.common.model import ProducerIdAndEpoch
from sidecar.producer.coordinator_requests import InitTransactionalId
from sidecar.producer.transaction_manager import TransactionManager
from sidecar.producer.transaction_states import TransactionState
from sidecar.shm.lane_records import LaneRecords

from .lane_client import Plan
from .lane_worker import Stores
from .lane_world import CLIENTS_MAX, LaneWorld, new_segment

HISTORIES: Final = {
    "committed": [Plan((("a", 3), ("b", 1)), False, True), Plan((("a", 1),), False, True)],
    "aborted": [Plan((("a", 2), ("b", 1)), False, False, 4.0), Plan((("a", 1),), False, True)],
    "offsets": [Plan((("a", 1),), True, True), Plan((), True, True), Plan((), False, True)],
}
VERSIONS: Final = (0, 1, 2)
DEATHS: Final = 10
"""Of one history in the short form."""
CASES: Final = pytest.mark.parametrize(
    ("name", "version"), [(name, version) for name in HISTORIES for version in VERSIONS]
)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", logger="sidecar")


class Lives:
    """One history, again and again on a segment of its own."""

    def __init__(self, folder: Path, name: str, version: int) -> None:
        self._path = folder / "segment"
        self._name, self._version = name, version

    def world(self) -> LaneWorld:
        self._path.unlink(missing_ok=True)
        world = LaneWorld(new_segment(self._path), version=self._version, seed=self._name)
        world.add_client("c0", "id-1", HISTORIES[self._name])
        return world

    def stores(self) -> list[tuple[int, int]]:
        """(moment, words) of each store of a life without a death."""
        world = self.world()
        world.death = stores = Stores(world.segment, CLIENTS_MAX)
        world.begin_worker()
        world.finish()
        world.segment.close()
        return stores.found

    def moments(self) -> Iterator[tuple[int, int]]:
        """(moment, words stored of it): each store, and each part of plain writes."""
        for moment, words in self.stores():
            for stored in range(1, words + 1):
                yield moment, stored

    def die_at(self, *dooms: tuple[int, int]) -> None:
        """The worker dies at the first of them, its successor at the second, and so on; then all must be well."""
        world = self.world()
        world.doom(*dooms[0])
        world.dooms = list(dooms[1:])
        try:
            world.begin_worker()
            world.finish()
            world.check()
            plans = HISTORIES[self._name]
            (client,) = world.clients
            assert client.lost is None, f"its id is lost: {client.lost}"
            assert [told.result for told in client.told] == [
                "committed" if plan.commits else "aborted" for plan in plans
            ], [told.why for told in client.told]
        except Exception as error:
            raise AssertionError(
                f"{self._name}, version {self._version}, deaths at {dooms}: {error}"
            ) from error
        finally:
            world.segment.close()


@pytest.mark.slow
@CASES
def test_every_store_of_a_life_with_transactions(
    tmp_path: Path, name: str, version: int, request: pytest.FixtureRequest
) -> None:
    lives = Lives(tmp_path, name, version)
    moments = list(lives.moments())
    step = 1 if request.config.getoption("--long") else max(1, len(moments) // DEATHS)
    start = random.Random(f"{name} {version}").randrange(step)
    for moment in moments[start::step]:
        lives.die_at(moment)
    print(f"\n{name}, version {version}: {len(moments[start::step])} deaths at {len(moments)} moments")


@pytest.mark.slow
@CASES
def test_every_store_of_an_adoption_with_transactions(
    tmp_path: Path, name: str, version: int, request: pytest.FixtureRequest
) -> None:
    """Deaths of the second worker too, at any moment of its adoption or soon after."""
    lives = Lives(tmp_path, name, version)
    draw = random.Random(f"second {name} {version}")
    moments = list(lives.moments())
    for _ in range(400 if request.config.getoption("--long") else DEATHS // 2):
        seconds = [(draw.randrange(1, 900), draw.choice((0, 1, 2))) for _ in range(draw.choice((1, 1, 2)))]
        lives.die_at(draw.choice(moments), *seconds)


# --- planted faults: each must be seen ----------------------------------------------------------------------------


def store_late(patch: pytest.MonkeyPatch) -> None:
    """A lane's record is stored after the request that it is about: with the next one."""
    store = LaneRecords.store
    late: dict[int, bytes] = {}

    def stored_later(self: LaneRecords, row: int, content: bytes) -> None:
        before = late.get(id(self))
        late[id(self)] = content
        if before is not None:
            store(self, row, before)

    patch.setattr(LaneRecords, "store", stored_later)


def adopt_afresh(patch: pytest.MonkeyPatch) -> None:
    """A successor continues under another producer id."""
    adopt = TransactionManager.adopt

    def adopted(self: TransactionManager, record: Any) -> None:
        adopt(self, record)
        if self.state is TransactionState.IN_TRANSACTION:
            self.identity = ProducerIdAndEpoch(self.identity.producer_id + 1_000, 0)

    patch.setattr(TransactionManager, "adopt", adopted)


def init_for_commit(patch: pytest.MonkeyPatch) -> None:
    """A commit that a dead worker has asked for is repeated as InitProducerId."""
    following = TransactionManager._next_request
    adopt = TransactionManager.adopt

    def adopted(self: TransactionManager, record: Any) -> None:
        adopt(self, record)
        self.is_planted = record.has_asked_commit  # type: ignore[attr-defined]

    def request(self: TransactionManager, is_quiet: bool) -> Any:
        wanted = following(self, is_quiet)
        if (
            getattr(self, "is_planted", False)
            and self.state is TransactionState.COMMITTING
            and wanted is not None
        ):
            coordinator = self._coordinator
            if coordinator is not None:
                return InitTransactionalId(coordinator, self.transactional_id, 60_000, self.identity)
        return wanted

    patch.setattr(TransactionManager, "adopt", adopted)
    patch.setattr(TransactionManager, "_next_request", request)


@pytest.mark.slow
@pytest.mark.parametrize("plant", [store_late, adopt_afresh, init_for_commit])
def test_planted_fault_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    lives = Lives(tmp_path, "committed", 2)
    moments = list(lives.moments())
    random.Random(plant.__name__).shuffle(moments)
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="deaths at"):
        for moment in moments:
            lives.die_at(moment)
