"""Containers that ask for the same are looked at once; nobody can tell from what is found."""

from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.dialects import nvidia, table, tencent
from fractile.dialects.dialect import Dialect
from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.model.units import MemoryUnit
from fractile.wire.kubernetes.objects import Container, ResourceRequirements
from tests.builders import container, pod

NAMES = st.sampled_from([*sorted(table.RESOURCES), "class.fractile.dev/v100", "class.fractile.dev/ib", "cpu"])
AMOUNTS: st.SearchStrategy[object] = st.sampled_from(
    ["0", "1", "2", "30", "100", "4096", "1Ki", "", "-1", "x", 0, 1, 1.0, True, None, [1]]
)
ASKED = st.none() | st.dictionaries(NAMES, AMOUNTS, max_size=4)
CONTAINERS = st.builds(
    Container,
    name=st.sampled_from(["main", "side"]),
    resources=st.builds(ResourceRequirements, limits=ASKED, requests=ASKED),
)
LOOKED_AT = {nvidia.USE_TYPE: ""}  # says nothing, but it is something that has to be looked at


@given(
    st.lists(CONTAINERS, max_size=3),
    st.lists(CONTAINERS, max_size=2),
    st.sampled_from(list(MemoryUnit)),
    st.sampled_from(["", "n1"]),
)
def test_what_is_remembered_is_what_a_look_would_find(
    apps: list[Container], init: list[Container], unit: MemoryUnit, node: str
) -> None:
    remembered = pod("p", *apps, init=init, node=node)
    looked_at = pod("p", *apps, init=init, node=node, annotations=LOOKED_AT)
    found = table.parse_pod(looked_at, unit)
    assert table.parse_pod(remembered, unit) == found
    assert table.parse_pod(remembered, unit) == found


@pytest.mark.parametrize("odd", [1, 1.0, True], ids=repr)
def test_amounts_that_are_equal_to_python_only_are_not_mixed_up(odd: object) -> None:
    def found(amount: object) -> object:
        return table.parse_pod(pod("p", container(limits={"aliyun.com/gpu-mem": amount})), MemoryUnit.MiB)

    before = found(odd)
    assert isinstance(found("1"), PodRequest)
    assert found(odd) == before
    assert isinstance(before, Refusal) is (odd is True)


def test_a_wish_of_one_pod_is_not_that_of_the_next() -> None:
    def limit(annotations: dict[str, str]) -> int:
        part = container(limits={tencent.CORE: "30", tencent.MEMORY: "4"})
        found = table.parse_pod(pod("p", part, annotations=annotations), MemoryUnit.MiB)
        assert isinstance(found, PodRequest)
        return found.containers[0].request.cores_limit

    assert [limit({}), limit({tencent.LIMIT: "50"}), limit({}), limit({tencent.LIMIT: "60"})] == [30, 50, 30, 60]


class Watched(Mapping[str, str]):
    """Annotations that know who looked at them."""

    def __init__(self) -> None:
        self.looked_at: set[str] = set()

    def __getitem__(self, key: str) -> str:
        self.looked_at.add(key)
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a dialect names the annotations that it looks at")

    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize("dialect", table.DIALECTS, ids=lambda d: d.name)
def test_a_family_looks_at_the_annotations_that_it_names_and_at_no_others(dialect: Dialect) -> None:
    watched = Watched()
    dialect.read(watched)
    assert watched.looked_at == dialect.wishes


@given(st.lists(CONTAINERS, min_size=1, max_size=1))
def test_one_request_alone_is_never_at_odds_with_itself(apps: list[Container]) -> None:
    found = table.parse_pod(pod("p", *apps), MemoryUnit.MiB)
    if isinstance(found, PodRequest) and len(found.containers) == 1:
        for dialect in table.DIALECTS:
            if found.containers[0].resource in dialect.resources:
                assert dialect.together(found.containers) is None
