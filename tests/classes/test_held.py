"""Units that pods hold, as Kubernetes counts a pod's requests."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fractile.classes.held import HeldUnits, units_asked
from fractile.model.units import NodeName, PodUID
from fractile.wire.kubernetes.objects import Container, Pod, PodSpec
from tests.builders import container, pod


def asks(name: str = "main", *, sidecar: bool = False, **units: object) -> Container:
    return container(name, sidecar=sidecar, limits={f"class.fractile.dev/{k}": v for k, v in units.items()})


@pytest.mark.parametrize(
    ("made", "units"),
    [
        pytest.param(pod("p", asks(a=1), asks(a=2, b=1)), {"a": 3, "b": 1}, id="containers are summed"),
        pytest.param(pod("p", asks(a=1), init=[asks(a=5)]), {"a": 5}, id="an init container alone may be the most"),
        pytest.param(
            pod("p", asks(a=1), init=[asks(a=2, sidecar=True), asks(a=4)]),
            {"a": 6},
            id="a sidecar runs beside the next",
        ),
        pytest.param(pod("p", asks(a=1), init=[asks(a=2), asks(a=1, sidecar=True)]), {"a": 2}, id="and beside all"),
        pytest.param(pod("p", container(memory=8138)), {}, id="no class"),
        pytest.param(pod("p", asks(a=0)), {}, id="zero"),
        pytest.param(pod("p", asks(a="x", b="2")), {"b": 2}, id="not a number"),
        pytest.param(Pod(spec=PodSpec()), {}, id="no containers"),
    ],
)
def test_a_pod_asks_for_its_peak(made: Pod, units: dict[str, int]) -> None:
    assert units_asked(made) == units


def test_requests_count_where_there_are_no_limits() -> None:
    made = pod("p", container(requests={"class.fractile.dev/a": "2"}))
    assert units_asked(made) == {"a": 2}


def test_a_bound_pod_counts_on_its_node_until_it_ends() -> None:
    held, n1 = HeldUnits(), NodeName("n1")
    assert held.changed(pod("p", asks(a=2))) is None
    assert held.changed(pod("p", asks(a=2), node="n1")) == n1
    assert held.changed(pod("p", asks(a=2), node="n1", phase="Running")) is None
    assert held.changed(pod("q", asks(a=1), node="n1")) == n1
    assert held.on(n1) == {"a": 3}
    assert held.changed(pod("p", asks(a=2), node="n1", phase="Failed")) == n1
    assert held.on(n1) == {"a": 1}
    assert held.gone(PodUID("uid-p")) is None
    assert held.gone(PodUID("uid-q")) == n1
    assert held.on(n1) == {}


PODS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["", "n1", "n2"]), st.booleans(), st.integers(0, 3)))


@given(PODS)
def test_sums_are_those_of_the_pods_that_are_bound(steps: list[tuple[int, str, bool, int]]) -> None:
    held = HeldUnits()
    last: dict[int, tuple[str, int]] = {}
    for number, node, finished, units in steps:
        if number in last and last[number][0]:  # neither its node nor its containers change any more
            node, units = last[number]
        made: Any = pod(f"p{number}", asks(a=units), node=node, phase="Succeeded" if finished else "Running")
        held.changed(structs.replace(made))
        last[number] = (node, units)
        if finished:
            last.pop(number)
    for node in ("n1", "n2"):
        assert held.on(NodeName(node)).get("a", 0) == sum(u for n, u in last.values() if n == node)
