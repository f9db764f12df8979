"""Several control planes as processes: their ports, their command lines, and what a cluster may become."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from fractile.errors import SetupError
from fractile.lab.cluster import component, plan, replicas, state
from fractile.lab.cluster.component import Component
from fractile.lab.cluster.spec import from_options
from fractile.lab.cluster.state import ClusterState
from fractile.lab.layout import ClusterLayout, layout
from fractile.lab.machine.replica_proxy import ReplicaFront
from fractile.lab.programs.replica_proxy import front_of


@pytest.fixture
def place(tmp_path: Path) -> ClusterLayout:
    return layout(tmp_path, "a")


@pytest.fixture
def one(place: ClusterLayout) -> ClusterState:
    return state.first(place, from_options("a"), hollow="asked for", fractile=True, programs="/bin")


def planned(place: ClusterLayout, wanted: ClusterState) -> tuple[Component, ...]:
    return plan.make(place, wanted, now=datetime.now(UTC)).control_planes


def option(component: Component, name: str) -> list[str]:
    return [a.partition("=")[2] for a in component.argv if a.startswith(f"--{name}=")]


def test_one_control_plane_has_no_lease_to_wait_for(place: ClusterLayout, one: ClusterState) -> None:
    (alone,) = planned(place, one)
    assert (alone.name, option(alone, "lease")) == ("control-plane", [""])
    assert replicas.names(one) == ["control-plane"]


def test_several_share_the_lease_behind_the_ports_that_others_know(place: ClusterLayout, one: ClusterState) -> None:
    three = replicas.decide(place, one, 3)
    *found, proxy = planned(place, three)
    assert [c.name for c in (*found, proxy)] == replicas.names(three)
    assert [option(c, "lease") for c in found] == [[], [], []]  # the default
    listen = [int(option(c, "listen")[0].rpartition(":")[2]) for c in found]
    webhook = [int(option(c, "webhook")[0].rpartition(":")[2]) for c in found]
    ports = (one.ports.control_plane, one.ports.webhook)
    assert len({*listen, *webhook, *msgspec.structs.astuple(one.ports)}) == 6 + 7
    wanted = ReplicaFront(ports, tuple(zip(listen, webhook, strict=True)))
    assert front_of(option(proxy, "ports")[0], tuple(option(proxy, "replica"))) == wanted


def test_what_is_kept_says_how_many_there_are_and_their_ports_stay(place: ClusterLayout, one: ClusterState) -> None:
    three = replicas.decide(place, one, 3)
    state.save(place, three)
    assert state.load(place) == three
    assert replicas.decide(place, three, 2).replicas == three.replicas[:2]
    assert replicas.decide(place, three, 4).replicas[:3] == three.replicas
    assert replicas.decide(place, three, 1) == one


def test_ports_of_replicas_are_not_given_to_another_cluster(
    tmp_path: Path, place: ClusterLayout, one: ClusterState
) -> None:
    three = replicas.decide(place, one, 3)
    state.save(layout(tmp_path, "other-name-for-a"), three)
    again = state.first(place, from_options("a"), hollow="asked for", fractile=True, programs="/bin")
    assert not state.taken_ports(place) & set(msgspec.structs.astuple(again.ports))
    assert {p for r in three.replicas for p in msgspec.structs.astuple(r)} <= state.taken_ports(place)


def test_all_that_any_number_of_them_may_leave_running_is_known_by_name(
    place: ClusterLayout, one: ClusterState
) -> None:
    every = {
        name for count in range(1, replicas.MOST + 1) for name in replicas.names(replicas.decide(place, one, count))
    }
    assert every == set(replicas.NAMES)


def test_what_is_not_wanted_is_stopped_and_the_rest_runs_on_until_something_changes(
    place: ClusterLayout, one: ClusterState
) -> None:
    two = replicas.decide(place, one, 2)

    def run(*some: str) -> None:
        for name in some:
            component.start(place, Component(name, ("sleep", "300")))

    def running() -> set[str]:
        return {name for name in replicas.NAMES if component.running(place, Component(name, ())) is not None}

    try:
        run("control-plane", *replicas.names(two))
        replicas.stop_unwanted(place, two, two)  # one process is left from before
        assert running() == set(replicas.names(two))
        replicas.stop_unwanted(place, None, two)
        assert running() == set(replicas.names(two))
        replicas.stop_unwanted(place, two, msgspec.structs.replace(two, policy="fgd-plus"))
        assert running() == set()
        run("control-plane")
        replicas.stop_unwanted(place, one, two)
        assert running() == set()
    finally:
        for name in replicas.NAMES:
            component.stop(place, name, grace=0)


@pytest.mark.parametrize("count", [-1, 0, replicas.MOST + 1])
def test_a_number_that_makes_no_sense_is_refused(place: ClusterLayout, one: ClusterState, count: int) -> None:
    with pytest.raises(SetupError, match=f"--replicas {count} is not possible; give 1 to 5"):
        replicas.decide(place, one, count)


def test_the_chart_has_its_own_number(place: ClusterLayout, one: ClusterState) -> None:
    with pytest.raises(SetupError, match="with --chart there are two"):
        replicas.decide(place, msgspec.structs.replace(one, image="fractile.dev/fractile:1"), 2)


def test_a_cluster_that_an_earlier_version_began_without_a_webhook_keeps_one(
    place: ClusterLayout, one: ClusterState
) -> None:
    old = msgspec.structs.replace(one, ports=msgspec.structs.replace(one.ports, webhook=0))
    with pytest.raises(SetupError, match="take it down first"):
        replicas.decide(place, old, 2)
    assert replicas.decide(place, old, 1) == old
