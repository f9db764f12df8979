"""Who holds these ids, by kubelet's list of pods beside its checkpoint."""

from collections.abc import AsyncGenerator, Mapping, Set

import pytest

from fractile.agent.kubelet.kubelet_state import KubeletState, ListedPod
from fractile.agent.kubelet.owner import Denied, Owned, owner
from fractile.agent.node.pods import NodePods
from fractile.kube import paths
from fractile.model.request import Role
from fractile.model.units import ContainerName
from fractile.wire.foreign.kubelet_checkpoint import Recorded
from fractile.wire.kubernetes.objects import Pod
from tests.agent.kubelet.test_owner import IDS, MORE, delete, make_anew, recorded, view
from tests.agent.world import CARDS, COUNT, MEM, Asks, World

NOBODY = Denied("kubelet's records name no pod of the API server that holds these devices")


@pytest.fixture
async def seen() -> AsyncGenerator[tuple[World, NodePods, Pod]]:
    """A pod with the init container ``warm``, and ``main`` and ``side``; the node's view knows it."""
    async with view() as made:
        yield made


def listed(pod: Pod, *, namespace: str = "", name: str = "", **held: Mapping[str, Set[str]]) -> ListedPod:
    """An entry of kubelet's list: what each container holds, by resource."""
    by_container = {ContainerName(container): dict(ids) for container, ids in held.items()}
    return ListedPod(namespace or pod.metadata.namespace, name or pod.metadata.name, by_container)


async def found(pods: NodePods, listed: list[ListedPod], *entries: Recorded) -> Owned | Denied:
    return await owner(MEM, IDS, KubeletState(tuple(listed), entries), pods)


def held(owned: Owned | Denied) -> dict[str, Set[str]]:
    assert isinstance(owned, Owned), owned
    return {f"{container} {resource}": ids for (container, resource), ids in owned.held.items()}


def gets(w: World) -> list[str]:
    return [r.path for r in w.server.requests if r.method == "GET"]


async def test_the_list_says_what_apps_hold_and_the_record_what_init_containers_hold(
    seen: tuple[World, NodePods, Pod],
) -> None:
    w, pods, pod = seen
    w.annotate(pod, {"new": "since the watch"})
    entry = listed(pod, warm={}, main={MEM: IDS}, side={MEM: MORE})
    owned = await found(pods, [entry], recorded(pod, "warm", MORE), recorded(pod, "main"))
    assert held(owned) == {f"warm {MEM}": MORE, f"main {MEM}": IDS, f"side {MEM}": MORE}
    assert isinstance(owned, Owned)
    assert owned.uid == pod.metadata.uid
    assert (owned.pod.metadata.annotations or {})["new"]  # as the API server has it now
    main, side = (c for c in owned.request.containers if c.role is Role.APP)
    assert (owned.ids(main), owned.ids(side)) == (IDS, MORE)


async def test_without_the_record_the_list_is_enough_for_apps(seen: tuple[World, NodePods, Pod]) -> None:
    _, pods, pod = seen
    owned = await owner(MEM, IDS, KubeletState((listed(pod, main={MEM: IDS}),), None), pods)
    assert held(owned) == {f"main {MEM}": IDS}


async def test_containers_of_other_pods_and_of_other_resources_do_not_count(seen: tuple[World, NodePods, Pod]) -> None:
    _, pods, pod = seen
    others = [
        listed(pod, namespace="other", main={MEM: MORE}, side={MEM: MORE}),
        listed(pod, name="other", main={MEM: MORE}, side={MEM: MORE}),
    ]
    mine = listed(pod, main={COUNT: MORE, MEM: IDS}, side={COUNT: MORE})
    assert held(await found(pods, [*others, mine])) == {f"main {MEM}": IDS}


async def test_books_that_name_nobody_are_said_to(seen: tuple[World, NodePods, Pod]) -> None:
    w, pods, pod = seen
    assert await found(pods, []) == NOBODY
    assert await found(pods, [listed(pod, main={MEM: MORE}, side={COUNT: IDS}), listed(pod, name="unseen")]) == NOBODY
    assert gets(w) == []  # there is no pod to ask for


async def test_a_pod_that_the_api_server_does_not_have_holds_nothing(seen: tuple[World, NodePods, Pod]) -> None:
    w, pods, pod = seen
    delete(w, pod)
    assert await found(pods, [listed(pod, main={MEM: IDS})], recorded(pod, "main")) == NOBODY


async def test_the_devices_of_an_earlier_pod_of_the_name_are_not_given_to_the_later(
    seen: tuple[World, NodePods, Pod],
) -> None:
    w, pods, pod = seen
    make_anew(w, pod)
    entry = listed(pod, main={MEM: IDS})
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    assert await found(pods, [entry], recorded(pod, "main")) == Denied(
        f"the devices belong to an earlier pod of the name {name}"
    )
    later = await found(pods, [entry], recorded(w.pod(pod), "main"))
    assert isinstance(later, Owned)
    assert later.uid != pod.metadata.uid


async def test_a_pod_whose_request_cannot_be_read_is_named(seen: tuple[World, NodePods, Pod]) -> None:
    w, pods, pod = seen
    odd = {"name": "main", "resources": {"limits": {MEM: "0.5"}}}
    w.server.create(paths.pods("default"), {"metadata": {"name": "odd"}, "spec": {"containers": [odd]}})
    assert await found(pods, [listed(pod, name="odd", main={MEM: IDS})]) == Denied(
        f"pod default/odd makes no valid request for {MEM}"
    )


async def test_books_that_do_not_fit_the_pod_as_it_is_now_are_doubted(seen: tuple[World, NodePods, Pod]) -> None:
    """The list names a container that the pod does not have."""
    _, pods, pod = seen
    entry = listed(pod, main={MEM: MORE}, stranger={MEM: IDS})
    assert await found(pods, [entry]) == Denied(
        f"kubelet's records changed while pod {pod.metadata.namespace}/{pod.metadata.name} was looked up"
    )


# ── init containers: the list does not show what they hold ───────────────────────────────────────────────────────────


async def test_the_pod_of_an_init_container_is_found_in_the_nodes_view(seen: tuple[World, NodePods, Pod]) -> None:
    w, pods, pod = seen
    pods.changed(w.bind(Asks("main", 3), on={"main": [CARDS[0]]}))
    owned = await found(pods, [listed(pod, main={}, side={})], recorded(pod, "warm"))
    assert held(owned) == {f"warm {MEM}": IDS}
    assert gets(w) == [paths.pod(pod.metadata.namespace, pod.metadata.name)]


async def test_the_pod_of_an_init_container_that_no_watch_has_shown_is_found_among_those_listed(
    seen: tuple[World, NodePods, Pod],
) -> None:
    w, pods, pod = seen
    ghost = listed(pod, name="ghost")
    late = w.bind(Asks("warm", 3, role=Role.INIT), Asks("main", 1), on={"warm": [CARDS[0]], "main": [CARDS[0]]})
    another = w.bind(Asks("main", 3), on={"main": [CARDS[0]]})
    owned = await found(pods, [listed(pod), ghost, listed(another), listed(late)], recorded(late, "warm"))
    assert held(owned) == {f"warm {MEM}": IDS}
    asked = [paths.pod("default", one) for one in ("ghost", another.metadata.name, late.metadata.name)]
    assert gets(w) == asked  # the view knows the first one of the list


async def test_an_init_container_of_a_pod_that_nobody_knows_has_no_owner(seen: tuple[World, NodePods, Pod]) -> None:
    w, pods, pod = seen
    another = w.bind(Asks("warm", 3, role=Role.INIT), Asks("main", 3), on={"warm": [CARDS[0]], "main": [CARDS[0]]})
    gone = w.bind(Asks("warm", 3, role=Role.INIT), Asks("main", 3), on={"warm": [CARDS[0]], "main": [CARDS[0]]})
    delete(w, gone)
    assert await found(pods, [listed(pod), listed(another), listed(gone)], recorded(gone, "warm")) == NOBODY
