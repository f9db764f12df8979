"""The manifests in examples/ ask for what their comments say, and show what they promise."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from fractile.admission.mutate import mutate_pod
from fractile.dialects.table import parse_pod
from fractile.lab.machine import images
from fractile.ledger.classes import ClassIndex, resolve
from fractile.ledger.ledger import Ledger
from fractile.model.card import Card
from fractile.model.device_class import DeviceClass
from fractile.model.placement import Placement, charges
from fractile.model.refusal import Code, Refusal
from fractile.model.request import PodRequest
from fractile.model.units import CardUUID, MemoryUnit, MiB, NodeName, PodUID
from fractile.policy.cards.plan import plan
from fractile.wire.fractile import resource_class
from fractile.wire.kubernetes.objects import Pod

EXAMPLES = Path(__file__).parents[2] / "examples"
IMAGES = {images.BUSYBOX, images.CUDA}
NODES = (NodeName("node-1"), NodeName("node-2"))


def pods(file: str) -> Iterator[dict[str, Any]]:
    """The pods that the file's objects lead to, each with a UID."""
    for document in yaml.safe_load_all((EXAMPLES / file).read_text()):
        if document["kind"] == "ResourceClass":
            continue
        spec = document["spec"]
        template = spec["template"] if document["kind"] == "Deployment" else document
        for replica in range(spec.get("replicas", 1)):
            name = f"{document['metadata']['name']}-{replica}"
            yield {**template, "metadata": {"name": name, "namespace": "default", "uid": name}}


def classes(file: str, ledger: Ledger) -> ClassIndex:
    """The classes of the file."""
    index = ClassIndex(ledger)
    for document in yaml.safe_load_all((EXAMPLES / file).read_text()):
        if document["kind"] == "ResourceClass":
            found = resource_class.decode(msgspec.convert(document, resource_class.ResourceClass))
            assert isinstance(found, DeviceClass), found
            index.put(found)
    return index


def requests(file: str) -> list[PodRequest]:
    """What the pods ask for, as the webhook lets them in."""
    index = classes(file, Ledger(lambda: 0.0))
    asked = [parse_pod(msgspec.convert(admitted(pod, index), Pod), MemoryUnit.MiB) for pod in pods(file)]
    return [request for request in asked if isinstance(request, PodRequest)]


def admitted(pod: dict[str, Any], index: ClassIndex) -> dict[str, Any]:
    changed = mutate_pod(msgspec.convert(pod, Pod), index)
    assert not changed.refusal
    made = copy.deepcopy(pod)
    for step in changed.ops:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in step.path.split("/")[1:]]
        at: Any = made
        for part in way:
            at = at[int(part) if part.isdigit() else part]
        at[last] = step.value
    return made


@pytest.fixture
def ledger() -> Ledger:
    """The default local cluster: two nodes with two cards each."""
    ledger = Ledger(lambda: 0.0)
    for node in NODES:
        for index in (0, 1):
            ledger.put_card(node, Card(CardUUID(f"GPU-{node}-{index}"), index, "Tesla-V100", MiB(16276)))
    return ledger


def place(ledger: Ledger, request: PodRequest) -> Placement | list[Refusal]:
    """Put the pod on the first node that can take it, as the most used node comes first."""
    refusals: list[Refusal] = []
    for node in NODES:
        state = ledger.node(node)
        assert state is not None
        decided = plan(request, state)
        if isinstance(decided, Placement):
            assert ledger.assume(PodUID(request.uid), decided) is None
            return decided
        refusals.append(decided)
    return refusals


@pytest.mark.parametrize("file", sorted(p.name for p in EXAMPLES.glob("[0-9]*.yaml")))
def test_every_pod_asks_for_a_card_runs_on_a_local_cluster_and_ends_soon(file: str) -> None:
    found = list(pods(file))

    assert len(requests(file)) == len(found) > 0
    for pod in found:
        spec = pod["spec"]
        assert spec["terminationGracePeriodSeconds"] == 1
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            assert container["image"] in IMAGES
            assert container["imagePullPolicy"] == "Never"


def test_three_small_pods_share_one_card(ledger: Ledger) -> None:
    placements = [place(ledger, request) for request in requests("1-packed.yaml")]

    cards = {s.card for p in placements if isinstance(p, Placement) for c in p.containers for s in c.slices}
    assert len(placements) == 3
    assert len(cards) == 1


def test_the_large_pod_waits_although_the_sum_of_each_node_would_do(ledger: Ledger) -> None:
    holders = requests("2a-holders.yaml")
    (large,) = requests("2b-too-large.yaml")
    for holder in holders:
        assert isinstance(place(ledger, holder), Placement)

    refused = place(ledger, large)

    assert isinstance(refused, list)
    assert [r.code for r in refused] == [Code.NO_ROOM, Code.NO_ROOM]
    assert refused[0].message == (
        "10000 MiB requested on one card, the most free on one is 7276 MiB (card 0; 14552 MiB free on 2 cards together)"
    )
    ledger.release(PodUID(holders[0].uid))
    assert isinstance(place(ledger, large), Placement)


def test_a_whole_card_and_a_part_are_on_different_cards(ledger: Ledger) -> None:
    whole, part = (place(ledger, request) for request in requests("3-whole-card.yaml"))

    assert isinstance(whole, Placement)
    assert isinstance(part, Placement)
    assert {c.card for c in charges(whole)}.isdisjoint(c.card for c in charges(part))


def test_two_containers_share_a_card_that_has_room_for_both(ledger: Ledger) -> None:
    (request,) = requests("4-several-containers.yaml")

    placement = place(ledger, request)

    assert isinstance(placement, Placement)
    assert [(c.memory) for c in charges(placement)] == [8000]


def test_parts_by_cores_share_a_card_and_a_hundred_is_a_card_of_its_own(ledger: Ledger) -> None:
    half, third, card = (place(ledger, request) for request in requests("7-gpu-manager.yaml"))

    assert isinstance(half, Placement)
    assert isinstance(third, Placement)
    assert isinstance(card, Placement)
    ((a,), (b,), (c,)) = charges(half), charges(third), charges(card)
    assert a.card == b.card != c.card
    assert [(x.memory, x.cores) for x in (a, b, c)] == [(7680, 50), (4096, 30), (16276, 100)]


def test_hamis_pods_share_cards_by_amounts_and_without_one_a_card_is_its_own(ledger: Ledger) -> None:
    placed = [place(ledger, request) for request in requests("8-hami.yaml")]

    assert all(isinstance(p, Placement) for p in placed)
    small, half, two, card = (charges(p) for p in placed if isinstance(p, Placement))
    assert [(c.memory, c.cores, c.slots) for c in (*small, *half)] == [(3000, 30, 1), (8138, 50, 1)]
    assert small[0].card == half[0].card
    assert [(c.memory, c.cores) for c in two] == [(2000, 0)] * 2
    assert [(c.memory, c.cores) for c in card] == [(16276, 100)]
    assert card[0].card not in {c.card for c in (*small, *half, *two)}


def test_a_pod_of_each_family_is_on_one_card(ledger: Ledger) -> None:
    placed = [place(ledger, request) for request in requests("9-families.yaml")]

    held = [c for p in placed if isinstance(p, Placement) for c in charges(p)]
    assert [(c.memory, c.cores, c.slots) for c in held] == [(4000, 0, 0), (4096, 30, 0), (3000, 40, 1)]
    assert len({c.card for c in held}) == 1


def test_quarters_by_class_share_a_card_and_a_whole_one_is_its_own(ledger: Ledger) -> None:
    index = classes("10-classes.yaml", ledger)
    asked = [resolve(request, index) for request in requests("10-classes.yaml")]

    placed = [place(ledger, request) for request in asked if isinstance(request, PodRequest)]

    held = [c for p in placed if isinstance(p, Placement) for c in charges(p)]
    assert [(c.memory, c.cores) for c in held] == [(3072, 25)] * 3 + [(16276, 100)]
    assert len({c.card for c in held[:3]}) == 1
    assert held[3].card != held[0].card


def test_an_init_container_is_not_added_to_what_starts_after_it(ledger: Ledger) -> None:
    (request,) = requests("5-init-and-sidecar.yaml")

    placement = place(ledger, request)

    assert isinstance(placement, Placement)
    assert [c.memory for c in charges(placement)] == [3000]
