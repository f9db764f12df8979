"""What a round counts, of looks that are given: once what was ever wrong, and what stays so until the time is over."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from random import Random

import msgspec
import pytest

from fractile.kube.client import KubeClient
from fractile.lab.layout import ClusterLayout
from tests.chaos.acts.players import Players
from tests.chaos.acts.wishes import Wishes
from tests.chaos.judging import readmission
from tests.chaos.judging.journal import Journal
from tests.chaos.judging.snapshot import LedgerReport, SeenPod, Snapshot
from tests.chaos.rounds import SWEPT, Rounds, Settings
from tests.chaos.world import but, seen_pod, world
from tests.fakes.apiserver import FakeApiServer

PATIENT = Settings(seed=1, seconds=0.02, faults=0, steps=0, settle=60, look=0.01)
IMPATIENT = msgspec.structs.replace(PATIENT, settle=0.2)
RUNS, OTHER = seen_pod("runs", node="n1"), seen_pod("other", node="n1")
QUIET = world(RUNS, OTHER)


class Given:
    """Programs that are not there, and looks that were written down; the last one stays."""

    def __init__(self, folder: Path) -> None:
        self.players = Players(ClusterLayout(folder / "cluster", folder / "shortcuts"), {}, {})
        self.nodes = ["n1", "n2"]
        self.coming: list[Snapshot] = [QUIET]
        self.agent = 1

    def agents(self) -> dict[str, int]:
        return {"n1": self.agent, "n2": 2}

    async def look(self) -> Snapshot:
        return self.coming.pop(0) if len(self.coming) > 1 else self.coming[0]

    async def pods(self) -> tuple[SeenPod, ...]:
        return self.coming[0].pods


class Play:
    """Rounds whose looks a test gives; ``told`` is what they said."""

    def __init__(self, rounds: Rounds, given: Given, wishes: Wishes, told: list[str]) -> None:
        self.rounds, self.given, self.wishes, self.told = rounds, given, wishes, told
        self.turn = 0

    async def round(self, *looks: Snapshot) -> bool:
        self.given.coming = list(looks)
        self.turn += 1
        return await self.rounds.round(self.turn)

    def sums(self) -> tuple[int, int]:
        return self.rounds.sums.violations, self.rounds.sums.stuck


Start = Callable[..., Play]


@pytest.fixture
async def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Start]:
    """``wanted``: names of the pods that are to exist."""
    async with FakeApiServer() as server, KubeClient(server.credentials(), rng=Random(0)) as client:

        def made(*wanted: str, settings: Settings = PATIENT, clock: Callable[[], float] | None = None) -> Play:
            given, journal, told = Given(tmp_path), Journal(tmp_path), list[str]()
            wishes = Wishes(client, 1, journal)
            names = dict.fromkeys(wanted or ("runs", "other"), "aliyun-part")

            def only(_: Mapping[str, str]) -> None:
                wishes.wanted = dict(names)

            monkeypatch.setattr(wishes, "only", only)  # the rounds plan no pods here
            more = {"clock": clock} if clock else {}
            rounds = Rounds(given, wishes, given, settings, journal=journal, say=told.append, **more)
            return Play(rounds, given, wishes, told)

        yield made


def behind() -> Snapshot:
    return but(QUIET, ledger=LedgerReport(1, 1, 0))


def full() -> Snapshot:
    return world(*(seen_pod(name, memory=9000, node="n1") for name in ("runs", "other")))


async def test_a_quiet_round_finds_nothing_and_says_so(start: Start, tmp_path: Path) -> None:
    play = start()
    assert await play.round(QUIET)
    assert play.rounds.sums.line == "faults=0 pods=0 violations=0 stuck=0"
    assert play.told[-1].startswith("round 1: faults=0 pods=0 refused=0 running=2 of 2 ")
    assert "runs uid=uid-runs node=n1 phase=Running" in (tmp_path / "round-1.log").read_text()


async def test_a_book_that_is_behind_for_a_moment_is_waited_for(start: Start) -> None:
    play = start()
    assert await play.round(behind(), QUIET, behind(), QUIET, QUIET)
    assert play.sums() == (0, 0)
    assert len(play.given.coming) == 1, "two quiet looks in a row were wanted"


async def test_a_book_that_stays_behind_is_a_violation_and_nobody_is_stuck(start: Start) -> None:
    play = start(settings=IMPATIENT)
    assert not await play.round(behind())
    assert play.sums() == (1, 0)
    assert "VIOLATION ledger" in "".join(play.told)


async def test_a_card_that_was_promised_twice_in_one_look_only_is_a_violation_once(start: Start) -> None:
    play = start()
    assert not await play.round(full(), full(), QUIET, QUIET)
    assert play.sums() == (1, 0)


async def test_a_pod_that_fits_and_is_not_bound_is_stuck(start: Start) -> None:
    play = start("runs", "waits", settings=IMPATIENT)
    assert not await play.round(world(RUNS, seen_pod("waits")))
    assert play.sums() == (0, 1)
    assert play.rounds.sums.line == "faults=0 pods=0 violations=0 stuck=1"


@pytest.mark.parametrize(
    "later",
    [[seen_pod("runs", node="n1", restarts=1), OTHER], [OTHER]],
    ids=["restarted", "gone"],
)
async def test_a_pod_that_ran_in_the_round_before_and_was_killed_is_a_violation(
    start: Start, later: Sequence[SeenPod]
) -> None:
    play = start()
    assert await play.round(QUIET)
    assert not await play.round(world(*later), QUIET)
    assert play.sums() == (1, 0)


async def test_a_pod_that_kubelet_lost_is_told_apart_from_one_that_was_killed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = start()
    assert await play.round(QUIET)

    def lost(pod: SeenPod, *_: object) -> bool:
        return pod.finished

    monkeypatch.setattr(readmission, "lost", lost)
    failed = seen_pod("runs", node="n1", phase="Failed", started=True)
    again = seen_pod("runs", node="n1", more={"uid": "uid-again"})
    assert await play.round(world(failed, OTHER), world(OTHER), world(again, OTHER), world(again, OTHER))
    assert play.rounds.sums.line == "faults=0 pods=1 lost=1 violations=0 stuck=0"


async def test_a_pod_that_was_deleted_may_be_gone(start: Start) -> None:
    play = start("other")
    assert await play.round(QUIET, world(OTHER), world(OTHER))
    assert play.wishes.deleted == {"runs"}


async def test_a_directory_without_an_owner_is_a_leak_after_its_time_counted_from_the_agents_start(
    start: Start,
) -> None:
    now = [0.0]
    play = start("other", clock=lambda: now[0])
    left = msgspec.structs.replace(world(OTHER), tokens=QUIET.tokens)
    assert await play.round(left)
    now[0] = SWEPT - 1
    assert await play.round(left)
    play.given.agent = 3  # it was started again
    now[0] = SWEPT + 1
    assert await play.round(left)
    now[0] = 2 * SWEPT + 2
    assert not await play.round(left)
    assert play.sums() == (1, 0)
