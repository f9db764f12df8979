"""Pods that are known from single reads and answers, beside a watch and lists that are older or newer."""

import pytest

from fractile.model.quota import QuotaOwner
from fractile.model.units import PodUID
from fractile.wire.fractile import placement
from tests.builders import container, on_card, pod
from tests.watch.test_event_handlers import EIGHT, FULL, GOOD, UID, Fed


@pytest.fixture
def fed() -> Fed:
    return Fed()


def test_an_answer_that_comes_after_the_news_that_the_pod_is_gone_charges_nothing(fed: Fed) -> None:
    fed.handlers.changed(GOOD)
    fed.handlers.gone(UID)
    fed.handlers.looked(GOOD)
    fed.handlers.looked(pod("p"))
    assert fed.free() == [FULL, FULL]
    assert fed.waiting.find(UID) is None


def test_one_that_the_watch_shows_again_is_believed_again(fed: Fed) -> None:
    """etcd was restored from a backup: pods that were deleted are there."""
    fed.handlers.gone(UID)
    fed.handlers.changed(GOOD)
    assert fed.free() == [FULL - 8138, FULL]
    fed.handlers.looked(GOOD)
    assert fed.free() == [FULL - 8138, FULL]


def test_an_old_event_does_not_bring_back_a_pod_that_the_api_server_says_is_gone(fed: Fed) -> None:
    """A watch was silent while single reads showed the pod bound, and then gone; another got its card. Then the watch
    catches up."""
    fed.handlers.looked(GOOD)
    fed.handlers.deleted(UID)
    whole = {placement.ANNOTATION: placement.encode(on_card(0, FULL))}
    other = pod("other", container(memory=FULL), node="n1", annotations=whole)
    fed.handlers.written(PodUID(other.metadata.uid), on_card(0, FULL), QuotaOwner())
    fed.handlers.changed(GOOD)
    assert fed.free() == [0, FULL]
    assert not fed.ledger.conflicts()
    fed.handlers.gone(UID)
    assert fed.free() == [0, FULL]


def test_a_later_list_brings_it_back(fed: Fed) -> None:
    """etcd was restored from a backup."""
    fed.handlers.looked(GOOD)
    fed.handlers.deleted(UID)
    asked = fed.clock.now
    fed.handlers.changed(GOOD)
    fed.handlers.listed({UID}, asked)
    assert fed.free() == [FULL, FULL], "the list may be older than the answer"
    fed.clock.now += 1
    fed.handlers.changed(GOOD)
    fed.handlers.listed({UID}, fed.clock.now)
    assert fed.free() == [FULL - 8138, FULL]


def test_an_answer_to_a_binding_charges_a_pod_whose_hold_was_given_up_but_none_that_has_gone(fed: Fed) -> None:
    fed.handlers.written(UID, on_card(0, 8138), QuotaOwner())
    assert fed.free() == [FULL - 8138, FULL]
    fed.handlers.gone(UID)
    fed.handlers.written(UID, on_card(0, 8138), QuotaOwner())
    assert fed.free() == [FULL, FULL]


def test_what_was_written_counts_and_not_what_was_assumed_since(fed: Fed) -> None:
    assert fed.ledger.assume(UID, on_card(1, 8138)) is None
    fed.handlers.written(UID, on_card(0, 8138), QuotaOwner())
    assert fed.free() == [FULL - 8138, FULL]


def test_what_a_later_list_does_not_have_is_free_however_it_became_known(fed: Fed) -> None:
    fed.handlers.looked(GOOD)
    fed.handlers.looked(pod("waits"))
    whole = {placement.ANNOTATION: placement.encode(on_card(0, FULL))}
    fed.handlers.looked(pod("conflict", container(memory=FULL), node="n1", annotations=whole))
    assert len(fed.ledger.conflicts()) == 1
    fed.clock.now += 1
    fed.handlers.listed(set(), fed.clock.now)
    assert fed.free() == [FULL, FULL]
    assert len(fed.waiting) == len(fed.ledger.conflicts()) == 0
    assert fed.freed == ["n1"]


def test_what_is_in_the_list_stays(fed: Fed) -> None:
    fed.handlers.looked(GOOD)
    fed.handlers.looked(pod("waits"))
    fed.clock.now += 1
    fed.handlers.listed({UID, "uid-waits"}, fed.clock.now)
    assert fed.free() == [FULL - 8138, FULL]
    assert len(fed.waiting) == 1


def test_a_hold_that_is_younger_than_the_list_is_not_judged_by_it(fed: Fed) -> None:
    asked = fed.clock.now
    fed.clock.now += 1
    assert fed.ledger.assume(UID, EIGHT) is None
    fed.handlers.listed(set(), asked)
    assert fed.free() == [FULL - 8138, FULL]
