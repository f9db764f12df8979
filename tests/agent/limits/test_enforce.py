"""Whose isolation is off, and who is paced: the rules, and the pages and pods that follow them."""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.agent.limits.enforce import PACED, flagged, has_share, is_off, is_right, paced_cards
from fractile.agent.limits.isolation import IsolationVerdict, judge
from fractile.kube import paths
from fractile.model.units import CardUUID, ContainerName, Percent, PodUID
from fractile.region import directory, live
from fractile.region.page import FLAG_OFF, CardLimits, ContainerLimits
from fractile.wire.fractile import isolation as wire
from fractile.wire.kubernetes.objects import ObjectMeta, Pod
from tests.agent.world import CARDS, NODE, Asks, World, world
from tests.fakes.apiserver import Fault
from tests.region.writer import alive

A, B = CARDS
OFF = "fractile.dev/isolation"
OPTIONAL = "fractile.dev/isolation-optional"
CGPU = "cgpu.disable.isolation"


# ---- whose isolation is off ----


@pytest.mark.parametrize(
    ("node", "namespace", "wish", "off"),
    [
        pytest.param({}, {}, False, False, id="nobody says anything"),
        pytest.param({OFF: "off"}, {}, False, True, id="the node's label"),
        pytest.param({CGPU: "true"}, {}, False, True, id="the node's label in gpushare's words"),
        pytest.param({OFF: "on", CGPU: "false"}, {}, False, False, id="labels that say the opposite"),
        pytest.param({}, {OFF: "off"}, False, False, id="a namespace has no such say"),
        pytest.param({}, {}, True, False, id="a user may not lift his own limits"),
        pytest.param({}, {OPTIONAL: "true"}, True, True, id="with leave of the namespace"),
        pytest.param({OPTIONAL: "true"}, {}, True, True, id="with leave of the node"),
        pytest.param({OPTIONAL: "yes"}, {OPTIONAL: "false"}, True, False, id="other values are no leave"),
        pytest.param({OPTIONAL: "true"}, {OPTIONAL: "true"}, False, False, id="leave alone changes nothing"),
    ],
)
def test_isolation_is_off_only_by_an_administrators_word(
    node: dict[str, str], namespace: dict[str, str], wish: bool, off: bool
) -> None:
    verdict = judge(Pod(metadata=ObjectMeta(annotations={OFF: "off"} if wish else None)), node, namespace)
    assert verdict.off is off
    assert bool(verdict.reason) == (off or wish)


# ---- who is paced ----


def limits(pod: str, *cards: CardLimits, flags: int = 0) -> ContainerLimits:
    uid, name = PodUID(pod), ContainerName("c")
    return ContainerLimits(pod_uid=uid, namespace="n", pod=pod, container=name, cards=cards, flags=flags)


def on(card: str, cores: int = 0, limit: int = 0, flags: int = 0) -> CardLimits:
    return CardLimits(uuid=CardUUID(card), memory=2**30, cores=Percent(cores), cores_limit=Percent(limit), flags=flags)


NONE = frozenset[PodUID]()
_CARDS = st.builds(
    on,
    st.sampled_from("abc"),
    st.sampled_from([0, 1, 50, 99, 100]),
    st.sampled_from([0, 30, 100]),
    st.integers(0, 7),
)


@st.composite
def pages(draw: st.DrawFn) -> ContainerLimits:
    cards = {c.uuid: c for c in draw(st.lists(_CARDS, max_size=3))}
    return limits(draw(st.sampled_from("pqrs")), *cards.values(), flags=draw(st.integers(0, 3)))


def test_all_containers_of_a_card_are_paced_as_soon_as_one_has_a_share() -> None:
    live = [limits("p", on("a", 30)), limits("q", on("a"), on("b")), limits("r", on("b"))]
    assert paced_cards(live, off=NONE) == {"a"}
    flags = [[c.flags for c in flagged(x, paced=frozenset({CardUUID("a")}), off=NONE).cards] for x in live]
    assert flags == [[PACED], [PACED, 0], [0]]


def test_a_limit_counts_as_a_share_and_a_whole_card_does_not() -> None:
    assert [has_share(c) for c in (on("a", 0), on("a", 1), on("a", 100), on("a", 0, 20), on("a", 100, 100))] == [
        *(False, True, False),
        *(True, False),
    ]


@given(st.lists(pages(), max_size=6), st.frozensets(st.sampled_from("pqrs").map(PodUID)))
def test_pages_agree_about_each_card_and_a_second_round_changes_nothing(
    live: list[ContainerLimits], off: frozenset[PodUID]
) -> None:
    paced = paced_cards(live, off=off)
    after = [flagged(x, paced=paced, off=off) for x in live]
    assert [is_right(x, paced=paced, off=off) for x in live] == [a == x for a, x in zip(after, live, strict=True)]
    for page in after:
        free = page.pod_uid in off
        assert bool(page.flags & FLAG_OFF) is free
        assert all(bool(c.flags & PACED) is (c.uuid in paced and not free) for c in page.cards)
    assert paced_cards(after, off=off) == paced
    assert [flagged(x, paced=paced, off=off) for x in after] == after
    assert [bare(x) for x in after] == [bare(x) for x in live]


def bare(page: ContainerLimits) -> ContainerLimits:
    cards = tuple(msgspec.structs.replace(c, flags=c.flags & ~PACED) for c in page.cards)
    return msgspec.structs.replace(page, cards=cards, flags=page.flags & ~FLAG_OFF)


def test_without_a_verdict_a_page_stays_as_it_is() -> None:
    live = [limits("p", on("a"), flags=FLAG_OFF), limits("q", on("a")), limits("r", on("a"), flags=FLAG_OFF)]
    assert is_off(live, {PodUID("r"): IsolationVerdict(False)}) == {"p"}


# ---- pages and pods ----


async def until(met: Callable[[], bool]) -> None:
    for _ in range(1500):
        if met():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not happen within 30 s")


async def started(w: World, *names: str) -> list[Pod]:
    pods = [w.admit(Asks("c", 2), on={"c": [A]}, name=name) for name in names]
    await until(lambda: all(w.kubelet.started(pod, "c") is not None for pod in pods))
    return pods


def promise(w: World, pod: Pod, cores: int) -> None:
    """A share in the page of a container that runs, as an earlier agent may have left it."""
    page = w.limits(pod, "c")
    cards = tuple(msgspec.structs.replace(c, cores=Percent(cores)) for c in page.cards)
    live.update(token_directory(w, pod) / directory.LIMITS, msgspec.structs.replace(page, cards=cards))


def token_directory(w: World, pod: Pod) -> Path:
    container = w.kubelet.started(pod, "c")
    assert container is not None
    return Path(container.mounts[directory.MOUNT])


def state(w: World, pod: Pod) -> str | None:
    return w.annotations(pod).get(wire.STATE)


def events(w: World, reason: str) -> list[str]:
    return [e["message"] for e in w.server.all(paths.events("default")) if e["reason"] == reason]


async def test_a_node_label_switches_the_isolation_of_its_pods_off_for_everybody_to_see() -> None:
    async with world(agent=False) as w:
        w.server.merge(paths.node(NODE), {"metadata": {"labels": {CGPU: "true"}}})
        w.start_agent()
        await w.ready()
        (pod,) = await started(w, "p")
        assert w.limits(pod, "c").flags == FLAG_OFF
        assert w.env(pod, "c")["CGPU_DISABLE"] == "true"
        await until(lambda: state(w, pod) == f"off: its node has the label {CGPU}=true")
        await until(lambda: len(events(w, "IsolationOff")) == 1)


async def test_a_users_annotation_is_refused_with_an_event_and_followed_where_the_namespace_permits_it() -> None:
    async with world(agent=False) as w:
        w.server.create("/api/v1/namespaces", {"metadata": {"name": "default"}})
        w.start_agent()
        await w.ready()
        pod = w.bind(Asks("c", 2), on={"c": [A]})
        w.annotate(pod, {OFF: "off"})
        w.kubelet.add(w.pod(pod))
        await until(lambda: w.kubelet.started(pod, "c") is not None)
        assert w.limits(pod, "c").flags == 0
        await until(lambda: len(events(w, "IsolationKept")) == 1)
        assert "has no effect" in events(w, "IsolationKept")[0]
        assert state(w, pod) is None

        w.server.merge("/api/v1/namespaces/default", {"metadata": {"labels": {OPTIONAL: "true"}}})
        await w.restart_agent()  # reads the label again at once, not within half a minute
        await w.ready()
        await until(lambda: w.limits(pod, "c").flags == FLAG_OFF)
        await until(lambda: "namespace permits it" in (state(w, pod) or ""))

        w.annotate(pod, {OFF: None})  # pyright: ignore[reportArgumentType]
        await until(lambda: w.limits(pod, "c").flags == 0)
        await until(lambda: state(w, pod) is None)
        await until(lambda: len(events(w, "IsolationOn")) == 1)


async def test_neighbours_are_paced_while_one_of_them_has_a_share_and_no_longer() -> None:
    async with world() as w:
        plain, sharer = await started(w, "plain", "sharer")
        elsewhere = w.admit(Asks("c", 2), on={"c": [B]})
        await until(lambda: w.kubelet.started(elsewhere, "c") is not None)
        assert w.limits(plain, "c").cards[0].flags == 0
        await w.stop_agent()
        promise(w, sharer, 30)
        w.start_agent()
        await w.ready()
        await until(lambda: w.limits(plain, "c").cards[0].flags == PACED)
        await until(lambda: w.limits(sharer, "c").cards[0].flags == PACED)
        assert w.limits(sharer, "c").cards[0].cores == 30
        assert w.limits(elsewhere, "c").cards[0].flags == 0
        w.delete(sharer)
        await until(lambda: w.limits(plain, "c").cards[0].flags == 0)


async def test_who_damages_its_region_is_paced_all_the_same_and_so_are_its_neighbours() -> None:
    async with world() as w:
        hostile, plain, sharer = await started(w, "hostile", "plain", "sharer")
        region = token_directory(w, hostile) / directory.REGION
        await w.stop_agent()
        promise(w, sharer, 30)
        with alive(region, 0), region.open("r+b") as file:
            file.write(bytes(4096))
            file.flush()
            w.start_agent()
            await w.ready()
            await until(lambda: all(w.limits(pod, "c").cards[0].flags == PACED for pod in (hostile, plain, sharer)))


async def test_a_page_that_cannot_be_written_costs_no_other_container_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        pods = await started(w, "one", "two", "three")
        broken, plain, sharer = sorted(pods, key=lambda pod: token_directory(w, pod).name)  # the first comes first
        folder = token_directory(w, broken)
        await w.stop_agent()
        promise(w, sharer, 30)
        real = directory.amend

        def refuse(where: Path, wanted: ContainerLimits, **how: Any) -> None:
            if where == folder:
                raise OSError(errno.EIO, "Input/output error")
            real(where, wanted, **how)

        monkeypatch.setattr(directory, "amend", refuse)
        w.start_agent()
        await w.ready()
        await until(lambda: all(w.limits(pod, "c").cards[0].flags == PACED for pod in (plain, sharer)))
        assert w.limits(broken, "c").cards[0].flags == 0
        monkeypatch.undo()
        await until(lambda: w.limits(broken, "c").cards[0].flags == PACED)


async def test_while_labels_cannot_be_read_only_new_containers_are_held_to_their_limits() -> None:
    async with world(agent=False) as w:
        w.server.merge(paths.node(NODE), {"metadata": {"labels": {OFF: "off"}}})
        w.start_agent()
        await w.ready()
        (pod,) = await started(w, "p")
        await w.stop_agent()
        w.server.inject(Fault(path="/api/v1/nodes/", times=10**6, status=500))
        w.server.merge(paths.node(NODE), {"metadata": {"labels": {OFF: None}}})
        w.start_agent()
        await w.ready()
        await asyncio.sleep(0.5)  # several rounds: each grant wakes one
        (another,) = await started(w, "another")
        assert w.limits(another, "c").flags == 0
        assert w.limits(pod, "c").flags == FLAG_OFF
        w.server.heal()
        await until(lambda: w.limits(pod, "c").flags == 0)
