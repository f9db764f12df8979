"""What the control plane says that it believes: all of the ledger, who waits, and the watches."""

import asyncio

import pytest

from fractile.debug.debug_state import LeadParts, believed
from fractile.debug.process_state import feed_state, process_state
from fractile.kube import paths
from fractile.kube.reflector import Reflector
from fractile.model.units import PodUID
from fractile.reconcile.assumed_pods import EXPIRY
from fractile.wire.fractile import placement
from fractile.wire.kubernetes.objects import Pod
from fractile.wire.output import debug_state
from fractile.wire.output.debug_state import ControlPlaneState, LeadState
from tests.builders import container, on_card
from tests.extender.test_bind import bind
from tests.main.plane import Plane, plane

LEAD = LeadState(lease="", identity="", leading=True, ready=True)


def seen(one: Plane, *feeds: Reflector[Pod]) -> ControlPlaneState:
    """What is on the wire."""
    known = LeadParts(
        ledger=one.ledger,
        waiting=one.waiting,
        nominations=one.nominations,
        feeds=list(feeds),
        expected=lambda: 2,
        quota_problem=lambda: "no YAML",
        options={"node-policy": "binpack"},
    )
    state = believed(known, lead=LEAD, process=process_state(uptime=1.0), time=10.0, now=one.clock())
    found = debug_state.decode(debug_state.encode(state))
    assert isinstance(found, ControlPlaneState)
    return found


async def test_a_pod_is_shown_waiting_then_assumed_then_bound_with_what_it_holds() -> None:
    async with plane() as one:
        pod = one.submit("p", container(memory=1000))
        (waiting,) = seen(one).waiting
        assert (waiting.name, waiting.refusal, waiting.gated) == ("p", "", False)
        await bind(one, pod, "n1")
        ledger = seen(one).ledger
        assert ledger is not None
        (hold,) = ledger.holds
        assert (hold.uid, hold.state, hold.doubted) == (pod.metadata.uid, "bound", False)
        assert placement.decode(bytes(hold.placement).decode()).node == "n1"
        (n1, n2) = ledger.nodes
        assert sorted(c.memory - c.free_memory for c in n1.cards) == [0, 1000]
        assert [c.idle for c in n2.cards] == [True, True]
        assert ledger.inconsistent == ()


async def test_an_assumption_that_is_due_to_be_asked_about_is_doubted() -> None:
    async with plane() as one:
        began = one.clock.now
        assert one.ledger.assume(PodUID("u"), on_card(0, 1000)) is None
        for age, doubted in ((EXPIRY - 1, False), (EXPIRY, True)):
            one.clock.now = began + age
            ledger = seen(one).ledger
            assert ledger is not None
            assert [(h.state, h.doubted) for h in ledger.holds] == [("assumed", doubted)]


async def test_a_watch_says_from_where_it_would_resume_and_how_old_its_last_word_is() -> None:
    async with plane() as one:
        clock = one.clock
        reflector = Reflector(one.client, paths.pods(), Pod, changed=lambda _: None, gone=lambda _: None, clock=clock)
        assert feed_state(reflector) == debug_state.FeedState(
            path="/api/v1/pods", synced=False, objects=0, version="", age=None
        )
        one.create("p")
        running = asyncio.create_task(reflector.run())
        await reflector.synced.wait()
        clock.now += 7
        shown = feed_state(reflector)
        assert (shown.synced, shown.objects, shown.age) == (True, 1, 7)
        assert shown.version == str(one.server.store.version)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_options_quota_and_hints_are_shown() -> None:
    async with plane() as one:
        state = seen(one)
        assert (state.options, state.quota_problem, state.expected) == ({"node-policy": "binpack"}, "no YAML", 2)
        assert state.process.tasks
