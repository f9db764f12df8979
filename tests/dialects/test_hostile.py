"""No pod that a tenant may write takes long to read: in webhook calls, watch events, verbs and agents alike."""

import gc
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest

from fractile.dialects import nvidia, table
from fractile.dialects.wishes import LONGEST
from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.model.units import MemoryUnit
from fractile.wire.kubernetes.objects import Pod
from tests.builders import container, pod
from tests.hostile_pods import SHAPES, STORED
from tests.processor import spent

pytestmark = pytest.mark.slow

BAR = 0.1  # seconds of a processor
GPU = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1"}


def parse(one: Pod) -> PodRequest | Refusal | None:
    return table.parse_pod(one, MemoryUnit.MiB)


@pytest.mark.parametrize("node", ["", "n1"], ids=["waiting", "bound"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_no_pod_that_can_be_stored_takes_long_to_read(shape: Callable[[int], bytes], node: str) -> None:
    one = msgspec.json.decode(shape(STORED), type=Pod)
    one = msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, node_name=node))
    assert spent(lambda: parse(one)) < BAR


@pytest.mark.parametrize("name", sorted(nvidia.NvidiaDialect.wishes))
def test_a_wish_that_is_too_long_is_refused_with_a_sentence_before_it_is_taken_apart(name: str) -> None:
    found = parse(pod("p", container(limits=GPU), annotations={name: "a," * LONGEST}))
    assert isinstance(found, Refusal)
    assert found.message == f"the annotation {name} has 24,576 characters; the most is 12,288"


def test_256_cards_can_be_named() -> None:
    uuids = ", ".join(f"GPU-{n:08}-0000-4000-8000-000000000000" for n in range(256))
    found = parse(pod("p", container(limits=GPU), annotations={nvidia.USE_UUID: uuids}))
    assert isinstance(found, PodRequest)
    assert len(found.containers[0].request.selector.cards) == 256


def test_a_wish_of_another_family_is_not_read() -> None:
    assert isinstance(parse(pod("p", container(memory=1), annotations={nvidia.USE_UUID: "a" * 99_999})), PodRequest)


def test_no_annotation_takes_the_cards_of_a_bound_pod_away() -> None:
    bound = pod("p", container(limits=GPU), node="n1", annotations={nvidia.USE_UUID: "a" * 99_999})
    found = parse(bound)
    assert isinstance(found, PodRequest)
    assert found == parse(pod("p", container(limits=GPU), node="n1"))


def test_wishes_are_read_once_for_all_containers() -> None:
    many = [container(f"c{n}", limits=GPU) for n in range(9)]
    found = parse(pod("p", *many, annotations={nvidia.USE_TYPE: "A100"}))
    assert isinstance(found, PodRequest)
    assert len({id(c.request.selector) for c in found.containers}) == 1


@pytest.mark.parametrize("where", ["limits", "requests"])
def test_a_container_with_gpus_may_name_64_resources(where: str) -> None:
    def asking(names: int, node: str = "") -> PodRequest | Refusal | None:
        amounts = GPU | {f"example.com/{n}": "1" for n in range(names - len(GPU))}
        limits, requests = (amounts if where == name else None for name in ("limits", "requests"))
        return parse(pod("p", container(limits=limits, requests=requests), node=node))

    assert isinstance(asking(64), PodRequest)
    refused = asking(65)
    assert isinstance(refused, Refusal)
    assert refused.message == (
        "container main names 65 resources; a container that asks for GPUs may name at most 64, including those of the "
        "GPUs"
    )
    assert isinstance(asking(65, node="n1"), PodRequest), "what others have there frees no card"


def test_a_container_without_gpus_may_name_what_it_likes() -> None:
    assert parse(pod("p", container(limits={f"example.com/{n}": "1" for n in range(999)}))) is None


def test_a_pod_may_ask_for_512_parts_in_all() -> None:
    def asking(count: int, node: str = "") -> PodRequest | Refusal | None:
        return parse(pod("p", container("a", count=256), container("b", count=count), node=node))

    assert isinstance(asking(256), PodRequest)
    refused = asking(257)
    assert isinstance(refused, Refusal)
    assert refused.message == "asks for 513 cards, parts of cards and devices in all; a pod may have 512"
    assert isinstance(asking(257, node="n1"), PodRequest), "what was given stays given"


def test_what_is_remembered_of_containers_is_small() -> None:
    amounts = {"aliyun.com/gpu-mem": "8138"}  # text, as the API server sends it: numbers are never remembered
    assert isinstance(parse(pod("p", container("other", limits=amounts))), PodRequest)
    tracemalloc.start()
    try:
        for letter in "abc":
            assert isinstance(parse(pod("p", container(letter * 1_000_000, limits=amounts))), PodRequest)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 100_000
