"""What is checked before a container starts, in which order, and what is written then."""

import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from fractile.agent import prestart
from fractile.agent.departed import Departed
from fractile.agent.isolation import ISOLATION, Isolation
from fractile.agent.owner import Denied
from fractile.agent.precedence import Precedence
from fractile.agent.prestart import too_much
from fractile.agent.runtime_class import RuntimeClasses
from fractile.agent.slices import Slices
from fractile.kube import paths
from fractile.kube.events import EventRecorder
from fractile.kube.reflector import Gone
from fractile.model.placement import Charge, ContainerPlacement, Placement, Slice
from fractile.model.request import Role
from fractile.model.units import CardUUID, ContainerName, MiB, Percent, PodUID
from fractile.region import directory
from fractile.region.page import FLAG_OFF
from fractile.wire import placement
from fractile.wire.objects import Pod
from fractile.wire.resource_class import DEVICE_SLOT, GPU_SLOT
from tests.agent.start import Start, ids, start
from tests.agent.test_cgroup_tree import Machine
from tests.agent.world import CARDS, CORE, MEM, NODE, Asks, adapter, card, of_class, share
from tests.fakes.apiserver import Fault
from tests.region.writer import alive

A, B = CARDS
FOUR = ids(A, 4)
BAD_MOUNT: dict[str, Any] = {"volumeMounts": [{"name": "v", "mountPath": "/etc/ld.so.preload"}]}


@pytest.fixture
async def s() -> AsyncGenerator[Start]:
    async with start() as made:
        yield made


def four(s: Start, change: dict[str, Any] | None = None) -> tuple[Pod, str]:
    """A pod with 4 GiB of card A, as placed and as held; the token of its container. ``change``: fields of its
    container."""
    pod = s.bind(Asks("main", 4), on={"main": [A]})
    if change:
        alter(s, pod, containers=[s.world.server.get(path(pod))["spec"]["containers"][0] | change])
    return pod, s.holds(pod, "main", FOUR)


def alter(s: Start, pod: Pod, **spec: Any) -> None:
    s.world.server.merge(path(pod), {"spec": spec})


def moves(s: Start, pod: Pod, *, after: int) -> None:
    """The control plane puts the pod's container on card A when it has been waited for so often."""

    def move(count: int) -> None:
        if count == after:
            s.world.place(pod, {"main": [A]})

    s.asleep = move


def path(pod: Pod) -> str:
    return paths.pod(pod.metadata.namespace, pod.metadata.name)


# ── granted ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_limits_are_written_for_a_container_that_holds_what_its_placement_says(s: Start) -> None:
    pod, token = four(s)
    assert await s.check(FOUR) is None
    limits = s.limits(token)
    assert limits is not None
    assert (limits.pod_uid, limits.namespace, limits.pod, limits.container, limits.flags) == (
        pod.metadata.uid,
        "default",
        pod.metadata.name,
        "main",
        0,
    )
    assert s.allowed(token) == {A.uuid: 4096}
    assert s.slept == []


async def test_the_neighbours_are_told_once_and_the_dialects_tools_by_an_annotation(s: Start) -> None:
    pod, _ = four(s)
    assert s.world.annotations(pod)["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "false"
    assert await s.check(FOUR) is None
    assert s.granted == 1
    await s.assigned.round()
    assert s.world.annotations(pod)["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true"


async def test_a_container_of_gpu_managers_world_is_made_ready_and_no_other(s: Start) -> None:
    pod = s.bind(share("main", 20, 8), on={"main": [A]})
    s.holds(pod, "main", ids(A, 20), CORE)
    assert await s.check(ids(A, 20), CORE) is None
    assert s.ready == [PodUID(pod.metadata.uid)]
    four(s)
    assert await s.check(FOUR) is None
    assert len(s.ready) == 1


async def test_nobody_need_be_told(s: Start) -> None:
    """As where neither traces nor gpu-manager's containers are asked for."""
    pod = s.bind(share("main", 20, 8), on={"main": [A]})
    token = s.holds(pod, "main", ids(A, 20), CORE)
    assert await s.prestart().check(CORE, ids(A, 20)) is None
    assert s.allowed(token) == {A.uuid: 2048}


async def test_the_step_of_a_granted_container_is_traced_with_its_time(s: Start) -> None:
    """Two looks of a quarter of a second, until the control plane has moved the placement to what kubelet chose."""
    pod = s.bind(Asks("main", 4), on={"main": [B]})
    s.holds(pod, "main", FOUR)
    moves(s, pod, after=2)
    before = time.time_ns()
    assert await s.check(FOUR) is None
    (step,) = s.steps
    assert (step.name, step.uid, step.pod) == ("prestart", pod.metadata.uid, f"default/{pod.metadata.name}")
    assert (step.error, step.attributes) == ("", {"fractile.resource": MEM, "fractile.ids": 4})
    assert before <= step.ended <= time.time_ns()
    assert step.ended - step.began == 500_000_000


async def test_the_step_of_a_denied_container_is_traced_with_the_reason(s: Start) -> None:
    four(s, BAD_MOUNT)
    denied = await s.check(FOUR)
    assert denied is not None
    assert [(step.error, step.ended - step.began) for step in s.steps] == [(denied.reason, 0)]


async def test_there_is_no_step_of_a_pod_that_is_not_known(s: Start) -> None:
    assert await s.check(FOUR) is not None
    assert s.steps == []


# ── who holds the ids ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_where_the_record_names_the_pod_kubelet_is_not_asked_for_its_list(s: Start) -> None:
    """Nobody serves the list here."""
    four(s)
    assert await s.check(FOUR) is None


async def test_where_the_record_says_nothing_and_kubelet_does_not_answer_the_container_waits(s: Start) -> None:
    denied = await s.check(FOUR)
    assert denied is not None
    assert denied.reason.startswith(f"kubelet's pod-resources API at {s.socket} does not answer")


async def test_where_the_record_cannot_be_read_the_list_says_who_starts(s: Start) -> None:
    pod, token = four(s)
    s.lose_checkpoint()
    s.list(pod, "main", FOUR)
    async with s.listing():
        assert await s.check(FOUR) is None
    assert s.allowed(token) == {A.uuid: 4096}


async def test_ids_that_nobody_holds_are_denied_with_the_reason_of_the_books(s: Start) -> None:
    four(s)
    async with s.listing():
        assert await s.check(ids(B, 4)) == Denied(
            "kubelet's books do not name a pod of the API server that holds these devices"
        )


# ── what keeps a container from starting ─────────────────────────────────────────────────────────────────────────────


async def test_a_denied_container_gets_no_limits_and_nobody_is_told(s: Start) -> None:
    _, token = four(s, BAD_MOUNT)
    denied = await s.check(FOUR)
    assert denied is not None
    assert "nothing may be mounted there" in denied.reason
    assert (s.limits(token), s.granted, s.ready) == (None, 0, [])


@pytest.mark.parametrize(
    ("handler", "mount", "said"),
    [
        pytest.param("runc", False, "", id="a runtime that loads the library"),
        pytest.param("kata", False, "has runtimeClassName secure", id="one that does not"),
        pytest.param("runc", True, "nothing may be mounted there", id="a mount over the library"),
    ],
)
async def test_the_runtime_must_load_the_library_and_the_mounts_leave_it_alone(
    s: Start, handler: str, mount: bool, said: str
) -> None:
    s.world.server.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "secure"}, "handler": handler})
    pod, token = four(s, BAD_MOUNT if mount else None)
    alter(s, pod, runtimeClassName="secure")
    denied = await s.prestart(runtimes=RuntimeClasses(s.client)).check(MEM, FOUR)
    assert said in denied.reason if denied is not None else not said
    assert bool(s.allowed(token)) is (not said)


async def test_without_a_placement_a_container_waits_for_one(s: Start) -> None:
    pod = s.bind(Asks("main", 4), on=None)
    s.holds(pod, "main", FOUR)
    assert await s.check(FOUR) == Denied(
        f"pod default/{pod.metadata.name} has no placement; bind it with a scheduler that asks Fractile's extender"
    )


async def test_the_placement_of_another_node_is_not_followed(s: Start) -> None:
    pod, token = four(s)
    there = s.world.annotations(pod)[placement.ANNOTATION].replace(f'"{NODE}"', f'"{"x" * 100}"')
    s.world.annotate(pod, {placement.ANNOTATION: there})
    assert await s.check(FOUR) == Denied(f"the placement of pod default/{pod.metadata.name} is for node {'x' * 80}")
    assert s.limits(token) is None


async def test_a_placement_that_cannot_be_read_is_a_reason(s: Start) -> None:
    pod, _ = four(s)
    s.world.annotate(pod, {placement.ANNOTATION: "{"})
    denied = await s.check(FOUR)
    assert denied is not None
    assert "malformed" in denied.reason


async def test_another_number_of_ids_than_asked_for_is_never_right(s: Start) -> None:
    pod = s.bind(Asks("main", 4), on={"main": [A]})
    s.holds(pod, "main", ids(A, 3))
    assert await s.check(ids(A, 3)) == Denied(f"container main holds 3 {MEM}, it asks for 4")


async def test_a_container_whose_directory_is_not_known_gets_no_limits_anywhere(s: Start) -> None:
    pod = s.bind(Asks("main", 4), on={"main": [A]})
    token = s.holds(pod, "main", FOUR, mounted=False)
    denied = await s.check(FOUR)
    assert denied is not None
    assert denied.reason.startswith("the token directory of container main is unknown")
    assert (s.limits(token), s.granted) == (None, 0)


async def test_a_disk_that_refuses_the_limits_is_a_reason(s: Start) -> None:
    _, token = four(s)
    (s.journal.path(token) / directory.LIMITS / "in the way").mkdir(parents=True)
    denied = await s.check(FOUR)
    assert denied is not None
    assert directory.LIMITS in denied.reason
    assert s.granted == 0


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        pytest.param(Fault(method="GET", status=403), "injected by the test", id="refused"),
        pytest.param(Fault(method="GET", status=200, body=b"<html>"), "malformed", id="not an API server"),
        pytest.param(Fault(method="GET", drop="before", times=99), "no answer", id="no answer"),
    ],
)
async def test_an_api_server_that_does_not_answer_is_a_reason(s: Start, fault: Fault, said: str) -> None:
    four(s)
    s.world.server.inject(fault)
    denied = await s.check(FOUR)
    assert denied is not None
    assert said in denied.reason


# ── isolation ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("labels", "flags"), [({ISOLATION: "off"}, FLAG_OFF), ({}, 0)], ids=["switched off on the node", "on"]
)
async def test_a_container_is_told_whether_its_limits_are_enforced(
    s: Start, labels: dict[str, str], flags: int
) -> None:
    _, token = four(s)
    s.world.server.merge(paths.node(NODE), {"metadata": {"labels": labels}})
    assert await s.prestart(isolation=Isolation(s.client, node=NODE)).check(MEM, FOUR) is None
    limits = s.limits(token)
    assert limits is not None
    assert limits.flags == flags


async def test_limits_are_enforced_where_the_labels_cannot_be_read(s: Start) -> None:
    _, token = four(s)
    s.world.server.inject(Fault(method="GET", path=paths.node(NODE), status=403))
    assert await s.prestart(isolation=Isolation(s.client, node=NODE)).check(MEM, FOUR) is None
    limits = s.limits(token)
    assert limits is not None
    assert limits.flags == 0


# ── kubelet chose other cards ────────────────────────────────────────────────────────────────────────────────────────


def patches(s: Start) -> int:
    return sum(r.method == "PATCH" for r in s.world.server.requests)


def choice(s: Start, pod: Pod) -> dict[str, tuple[Role, list[tuple[str, int]]]]:
    """What is reported of each container: its role, and the card and MiB of each of its slices."""
    found = placement.decode(s.world.annotations(pod)[placement.CHOICE_ANNOTATION])
    assert found.node == NODE
    return {c.container: (c.role, [(x.card, x.memory) for x in c.slices]) for c in found.containers}


async def test_what_kubelet_chose_is_reported_and_granted_when_the_placement_says_so(s: Start) -> None:
    pod = s.bind(Asks("main", 4), on={"main": [B]})
    token = s.holds(pod, "main", FOUR)
    moves(s, pod, after=3)
    assert await s.check(FOUR) is None
    assert choice(s, pod) == {"main": (Role.APP, [(A.uuid, 4096)])}
    assert s.slept == [0.25] * 3
    assert s.allowed(token) == {A.uuid: 4096}


async def test_a_choice_that_is_not_confirmed_within_twenty_seconds_is_denied(s: Start) -> None:
    pod = s.bind(Asks("main", 4), on={"main": [B]})
    token = s.holds(pod, "main", FOUR)
    said = Denied(
        f"kubelet gave pod default/{pod.metadata.name} {A.uuid}, its placement names other cards, and the control "
        "plane has not confirmed the move within 20 s; it may have no room there, or not run"
    )
    assert await s.check(FOUR) == said
    assert s.slept == [0.25] * 80
    assert s.limits(token) is None
    assert patches(s) == 1
    assert await s.check(FOUR) == said  # kubelet asks again
    assert patches(s) == 1  # and what it chose is there already


async def test_several_cards_that_kubelet_chose_are_all_named(s: Start) -> None:
    third = card(2)
    async with start(cards=[A, B, third]) as s:
        pod = s.bind(Asks("a", 4), Asks("b", 4), on={"a": [third], "b": [third]})
        s.holds(pod, "a", FOUR)
        s.holds(pod, "b", ids(B, 4))
        denied = await s.check(FOUR)
        assert denied is not None
        assert f"{A.uuid}, {B.uuid}, its placement" in denied.reason


async def test_one_container_on_another_card_is_enough_to_wait(s: Start) -> None:
    asks = Asks("warm", 4, role=Role.INIT), Asks("side", 2, role=Role.SIDECAR), Asks("main", 4)
    pod = s.bind(*asks, on={"warm": [A], "side": [A], "main": [A]})
    s.holds(pod, "warm", FOUR)
    s.holds(pod, "side", ids(A, 2, 4))
    s.holds(pod, "main", ids(B, 4))
    assert await s.check(FOUR) is not None
    assert choice(s, pod) == {
        "warm": (Role.INIT, [(A.uuid, 4096)]),
        "side": (Role.SIDECAR, [(A.uuid, 2048)]),
        "main": (Role.APP, [(B.uuid, 4096)]),
    }


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "deleted and made again"])
async def test_a_pod_that_goes_while_its_move_is_waited_for_does_not_start(s: Start, again: bool) -> None:
    pod = s.bind(Asks("main", 4), on={"main": [B]}, name="web-0")
    s.holds(pod, "main", FOUR)

    def go(count: int) -> None:
        if count == 2:
            s.world.server.delete(path(pod))
            if again:
                s.world.bind(Asks("main", 4), on={"main": [A]}, name="web-0")

    s.asleep = go
    assert await s.check(FOUR) == Denied("pod default/web-0 is gone")
    assert len(s.slept) == 2


async def test_a_placement_that_goes_wrong_while_it_is_waited_for_is_a_reason(s: Start) -> None:
    pod = s.bind(Asks("main", 4), on={"main": [B]})
    s.holds(pod, "main", FOUR)

    def wrong(count: int) -> None:
        if count == 2:
            s.world.annotate(pod, {placement.ANNOTATION: None})

    s.asleep = wrong
    denied = await s.check(FOUR)
    assert denied is not None
    assert "has no placement" in denied.reason
    assert len(s.slept) == 2


async def test_an_init_container_of_which_nothing_is_known_is_taken_as_placed(s: Start) -> None:
    """Only the record knows init containers, and it cannot be read."""
    pod = s.bind(Asks("warm", 2, role=Role.INIT), Asks("main", 4), on={"warm": [B], "main": [A]})
    token = s.holds(pod, "main", FOUR)
    s.lose_checkpoint()
    s.list(pod, "main", FOUR)
    async with s.listing():
        assert await s.check(FOUR) is None
    assert s.allowed(token) == {A.uuid: 4096}


async def test_a_container_to_which_nobody_gives_anything_is_not_reported(s: Start) -> None:
    pod = s.bind(Asks("warm", 2, role=Role.INIT), Asks("main", 4), on=None)
    main = ContainerPlacement(ContainerName("main"), Role.APP, (Slice(B.uuid, MiB(4096)),))
    s.world.write_placement(pod, Placement(NODE, (main,)))
    s.holds(pod, "main", FOUR)
    s.lose_checkpoint()
    s.list(pod, "main", FOUR)
    async with s.listing():
        assert await s.check(FOUR) is not None
    assert choice(s, pod) == {"main": (Role.APP, [(A.uuid, 4096)])}


async def test_devices_of_a_container_beside_its_gpu_are_held_to_its_placement_too(s: Start) -> None:
    here, there = adapter(0), adapter(1)
    async with start(others=(here, there)) as s:
        both = of_class("main", devices=1)
        pod = s.bind(both, on={"main": [A, here.device]})
        s.holds(pod, "main", ids(A, 1), GPU_SLOT)
        s.holds(pod, "main", ids(here.device, 1), DEVICE_SLOT)
        assert await s.check(ids(A, 1), GPU_SLOT) is None
        assert await s.check(ids(here.device, 1), DEVICE_SLOT) is None
        other = s.bind(both, on={"main": [A, here.device]})
        s.holds(other, "main", ids(A, 1, 1), GPU_SLOT)
        s.holds(other, "main", ids(there.device, 1), DEVICE_SLOT)
        assert await s.check(ids(there.device, 1), DEVICE_SLOT) is not None
        assert choice(s, other) == {"main": (Role.APP, [(A.uuid, 2048), (there.uuid, 0)])}


# ── is there room ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_before_the_other_pods_of_the_node_are_known_nothing_starts(
    s: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prestart, "_SYNC", 0.05)
    four(s)
    watch = s.pods.follow()
    assert await s.check(FOUR) == Denied("the node's other pods are not known yet: the API server has not listed them")
    watch.synced.set()
    assert await s.check(FOUR) is None


async def test_a_card_that_is_not_on_the_node_is_given_to_nobody(s: Start) -> None:
    """Nothing is known of the init container but its placement, which names a card of before."""
    gone = card(7)
    pod = s.bind(Asks("warm", 2, role=Role.INIT), Asks("main", 4), on={"warm": [gone], "main": [A]})
    s.holds(pod, "main", FOUR)
    s.lose_checkpoint()
    s.list(pod, "main", FOUR)
    async with s.listing():
        assert await s.check(FOUR) == Denied(f"card {gone.uuid} of the placement does not answer on this node")


async def test_the_pods_of_the_node_share_a_card_to_its_last_mib_and_not_beyond(s: Start) -> None:
    first = s.bind(Asks("main", 12), on={"main": [A]})
    s.holds(first, "main", ids(A, 12))
    second = s.bind(Asks("main", 4), on={"main": [A]})
    s.holds(second, "main", ids(A, 4, 12))
    for held in (ids(A, 12), ids(A, 4, 12)):
        assert await s.check(held) is None
    third = s.bind(share("main", 1, 1), on={"main": [A]})
    token = s.holds(third, "main", ids(A, 1), CORE)
    assert await s.check(ids(A, 1), CORE) == Denied(
        f"card 0 ({A.uuid}) has 16384 MiB and the pods placed on it need 16640 MiB, 256 of them for pod "
        f"default/{third.metadata.name}"
    )
    assert s.limits(token) is None


async def test_each_card_of_a_pod_is_looked_at(s: Start) -> None:
    s.bind(Asks("main", 16), on={"main": [B]})
    pod = s.bind(Asks("a", 4), Asks("b", 4), on={"a": [A], "b": [B]})
    s.holds(pod, "a", FOUR)
    s.holds(pod, "b", ids(B, 4))
    denied = await s.check(FOUR)
    assert denied is not None
    assert denied.reason.startswith(f"card 1 ({B.uuid}) has 16384 MiB")


async def test_a_pod_that_no_watch_has_shown_counts_from_its_first_start(s: Start) -> None:
    """Its record names a pod that the view lacks, so kubelet's list is read."""
    unseen = s.world.bind(Asks("main", 16), on={"main": [A]})
    s.holds(unseen, "main", ids(A, 16))
    s.list(unseen, "main", ids(A, 16))
    async with s.listing():
        assert await s.check(ids(A, 16)) is None
    pod = s.bind(share("main", 1, 1), on={"main": [A]})
    s.holds(pod, "main", ids(A, 1), CORE)
    denied = await s.check(ids(A, 1), CORE)
    assert denied is not None
    assert "need 16640 MiB" in denied.reason


def charge(memory: int = 0, cores: int = 0, *, coreless: bool = False, shares: int = 0) -> Charge:
    return Charge(CardUUID(A.uuid), MiB(memory), Percent(cores), coreless, shares=shares)


@pytest.mark.parametrize(
    ("others", "mine", "said"),
    [
        pytest.param([charge(8192, 50)], charge(8192, 50), "", id="all of it"),
        pytest.param([charge(0, 99)], charge(1, 0, coreless=True), "", id="one percent is left for the coreless"),
        pytest.param(
            [charge(8192)],
            charge(8193),
            f"card 0 ({A.uuid}) has 16384 MiB and the pods placed on it need 16385 MiB, 8193 of them for pod ns/p",
            id="a MiB too much",
        ),
        pytest.param(
            [charge(1, 60)],
            charge(1, 41),
            f"the pods on card 0 ({A.uuid}) need 101 % of its cores, 41 of them for pod ns/p; all of it can be "
            "promised only where everybody has a share",
            id="a percent too much",
        ),
        pytest.param(
            [charge(1, 100)],
            charge(1, 0, coreless=True),
            f"the pods on card 0 ({A.uuid}) need 100 % of its cores, 0 of them for pod ns/p; all of it can be "
            "promised only where everybody has a share",
            id="nothing is left for the coreless",
        ),
    ],
)
def test_a_card_is_full_when_its_memory_or_its_cores_are_promised(
    others: list[Charge], mine: Charge, said: str
) -> None:
    assert too_much(A, [*others, mine], mine, "ns/p") == (Denied(said) if said else None)


@pytest.mark.parametrize("shares", [1, 2])
def test_a_device_is_full_when_its_shares_are_promised(shares: int) -> None:
    device = adapter(0, shares=3).device
    mine = charge(shares=shares)
    denied = too_much(device, [charge(shares=2), mine], mine, "ns/p")
    assert denied == (
        Denied(f"infiniband {device.uuid} has 3 share(s) and the pods placed on it need 4, 2 of them for pod ns/p")
        if shares == 2
        else None
    )


# ── who came first ───────────────────────────────────────────────────────────────────────────────────────────────────


def precedence(s: Start) -> Precedence:
    """As the agent's wiring makes it, on a machine without processes."""
    departed = Departed(
        Slices(s.journal), s.pods, EventRecorder(s.client, "test"), cgroups=Machine(s.world.root).tree()
    )
    return Precedence(s.pods, departed)


async def test_a_pod_that_was_granted_its_part_first_starts_again_whatever_came_later(s: Start) -> None:
    first = s.bind(Asks("main", 10), on={"main": [A]})
    s.holds(first, "main", ids(A, 10))
    careful = s.prestart(precedence=precedence(s))
    assert await careful.check(MEM, ids(A, 10)) is None
    later = s.bind(Asks("main", 12), on={"main": [A]})  # an unlucky write
    s.holds(later, "main", ids(A, 12, 4))
    assert await careful.check(MEM, ids(A, 10)) is None
    denied = await careful.check(MEM, ids(A, 12, 4))
    assert denied is not None
    assert "need 22528 MiB, 12288 of them for pod" in denied.reason
    assert await s.check(ids(A, 10)) is not None  # by sums alone


async def test_what_is_held_by_a_deleted_pod_is_named(s: Start) -> None:
    old = s.bind(Asks("main", 10), on={"main": [A]}, name="old")
    token = s.holds(old, "main", ids(A, 10))
    careful = s.prestart(precedence=precedence(s))
    assert await careful.check(MEM, ids(A, 10)) is None
    s.world.server.delete(path(old))
    s.pods.gone(Gone("default", "old", old.metadata.uid))
    new = s.bind(Asks("main", 12), on={"main": [A]}, name="new")
    s.holds(new, "main", ids(A, 12))
    with alive(s.journal.path(token) / directory.REGION, 0):
        assert await careful.check(MEM, ids(A, 12)) == Denied(
            f"card 0 ({A.uuid}) has 16384 MiB and the pods placed on it need 22528 MiB, 12288 of them for pod "
            "default/new; processes of default/old, deleted already, still hold a part of it"
        )
    assert await careful.check(MEM, ids(A, 12)) is None
