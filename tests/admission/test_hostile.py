"""No review, whoever sends it, holds the event loop for long, and no answer or log line grows with it."""

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from fractile.errors import WireError
from fractile.wire.bounds import MOST_MEMBERS
from tests.admission.world import answered, webhook
from tests.hostile_pods import REVIEWED, SHAPES, just_read, review
from tests.processor import spent

pytestmark = pytest.mark.slow

BAR = 0.1  # seconds of a processor, of which nothing else runs in that event loop


def handled(answer: Callable[[bytes], bytes], body: bytes) -> None:
    with suppress(WireError):
        answer(body)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_no_review_takes_long_or_is_answered_at_length(
    shape: Callable[[int], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    served = webhook()
    for pod in (shape(REVIEWED), just_read(shape, MOST_MEMBERS)):
        for body in (review(pod), review(pod, kind="Deployment", group="apps")):
            for answer in (served.mutate, served.validate):
                assert spent(partial(handled, answer, body)) < BAR
                with suppress(WireError):
                    found = answer(body)
                    assert len(found) < 64 * 1024
                    refusal = answered(found).get("status", {}).get("message", "")
                    assert len(refusal) <= 1024
                    assert refusal.isprintable()
    assert all(len(line) < 2048 for line in caplog.messages)


@pytest.mark.parametrize("verb", ["mutate", "validate"])
@pytest.mark.parametrize(
    "field",
    [
        b'"userInfo":{"groups":["a"%b]}' % (b',"a"' * 1_600_000),
        b'"userInfo":{"groups":["a"%b]}' % (b',"a"' * 99_900),
        b'"name":"%b"' % (b"n" * 6_000_000),
        b'"options":%b%b' % (b"[" * 3_000_000, b"]" * 3_000_000),
    ],
    ids=["groups", "groups-just-read", "name", "depth"],
)
def test_nothing_around_the_object_takes_long(field: bytes, verb: str) -> None:
    body = review(just_read(SHAPES["a container with a long name"], 1_000))[:-2] + b"," + field + b"}}"
    answer = getattr(webhook(), verb)
    assert spent(lambda: handled(answer, body)) < BAR


def test_a_container_of_200_000_classes_is_not_read() -> None:
    pod = SHAPES["one container, classes"](REVIEWED)
    with pytest.raises(WireError, match="more than 50000 members"):
        webhook().mutate(review(pod))


def test_a_container_of_70_classes_is_refused_with_a_sentence() -> None:
    pod = SHAPES["one container, classes"](200 + 65 * 30)
    found = answered(webhook().mutate(review(pod)))
    assert found["allowed"] is False
    assert found["status"]["message"] == (
        "container c names 70 resources; a container that asks for GPUs may name at most 64, including those of the "
        "GPUs"
    )


def test_what_a_stranger_writes_is_printable_where_it_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    evil = b"\\u001b]0;pwn\\u0007\\nallowed"
    pod = b'{"spec":{"containers":[{"name":"%b","resources":{"limits":{"nvidia.com/gpu":"x"}}}]}}' % evil
    found = answered(webhook().validate(review(pod)))
    assert found["status"]["message"].startswith("container ?]0;pwn??allowed asks for nvidia.com/gpu")
    assert all(line.isprintable() for line in caplog.messages)
