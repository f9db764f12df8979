"""An error that one object brings out ends nothing, and is told."""

import pytest

from fractile.errors import NotLeading
from fractile.reconcile.faults import Faults
from fractile.wire.kubernetes.objects import ObjectMeta, Pod
from tests.builders import pod


def broken(_: Pod) -> None:
    raise RecursionError("too deep")


def meta(about: Pod) -> ObjectMeta:
    return about.metadata


def test_a_callback_that_fails_keeps_nobody_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    faults, told = Faults(), list[str]()
    changed = faults.each("pods", meta, broken, lambda about: told.append(about.metadata.name))
    changed(pod("odd"))
    changed(pod("fine"))
    assert told == ["odd", "fine"]
    assert faults.counts == {"pods": 2}
    assert "default/odd" in caplog.text
    assert "too deep" in caplog.text


@pytest.mark.parametrize("error", [MemoryError(), NotLeading("another leads"), KeyboardInterrupt()], ids=repr)
def test_what_is_not_about_one_object_goes_through(error: BaseException) -> None:
    faults = Faults()
    with pytest.raises(type(error)), faults.apart("pods", "default", "p"):
        raise error
    assert not faults.counts
