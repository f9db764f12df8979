"""Fewer collections while a program builds what it keeps."""

import gc

import pytest

from fractile.main.collector import seldom


class Loop:
    def __init__(self) -> None:
        self.me = self


def test_what_is_built_meanwhile_is_collected_once_and_never_walked_again() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        with seldom():
            assert gc.get_threshold() > before
            runs = sum(s["collections"] for s in gc.get_stats())
            kept = [[i] for i in range(20_000)]
            assert sum(s["collections"] for s in gc.get_stats()) == runs
        assert gc.get_threshold() == before
        assert gc.get_freeze_count() >= frozen + len(kept)
    finally:
        gc.unfreeze()


def test_garbage_of_a_long_wait_does_not_pile_up() -> None:
    try:
        with seldom():
            for _ in range(200_000):
                Loop()
            assert sum(isinstance(o, Loop) for o in gc.get_objects()) <= 50_000
    finally:
        gc.unfreeze()


def test_a_start_that_is_cancelled_leaves_the_collector_as_it_was() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with pytest.raises(RuntimeError), seldom():
        raise RuntimeError
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, frozen)
