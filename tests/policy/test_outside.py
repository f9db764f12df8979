"""What is said of use outside the ledger."""

import pytest

from fractile.policy.outside import announced, announcement, evicted, left_by, sentence, staying, stays, what_evicted
from fractile.wire.output.node_usage import KINDS, Kind, Outside


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_sentence_with_card_and_amount(kind: Kind) -> None:
    said = sentence(Outside(kind=kind, card="GPU-a", since=1.0, pid=7, command="miner", bytes=300 << 20), "n3")
    assert "GPU-a" in said
    assert "300 MiB" in said


def test_a_pod_that_was_not_given_the_card_is_told_both_ways_out() -> None:
    said = sentence(Outside(kind="no-slice", card="GPU-a", since=1.0, pid=7, bytes=1), "n3")
    assert said.endswith(
        "which this pod was not given; request a GPU resource or, if it needs no GPU, set NVIDIA_VISIBLE_DEVICES to "
        "none in the pod (images may set it to all)"
    )


@pytest.mark.parametrize("message", [announcement(0.0), "; the pod is evicted"], ids=["now", "an agent of before"])
def test_an_announcement_that_the_time_is_up_is_understood(message: str) -> None:
    assert announced(f"what was seen{message}") == ("what was seen", 0.0)


def test_what_an_evicted_pod_did_is_told_in_the_past() -> None:
    told = what_evicted(evicted(Outside(kind="no-slice", card="GPU-a", since=1.0, pid=7, bytes=1), "n3"))
    assert told.startswith("process (pid 7 on node n3) used 1 MiB of card GPU-a, which this pod was not given")


def test_who_covers_the_library_is_told_what_not_to_do() -> None:
    said = sentence(Outside(kind="no-library", card="GPU-a", since=1.0, pid=7, bytes=1, unseen="/a"), "n3")
    assert said.endswith("; do not cover that path: neither by a mount, nor through a link, nor by chroot")


def test_who_does_not_load_the_library_is_told_both_ways_to_lose_it() -> None:
    said = sentence(Outside(kind="no-library", card="GPU-a", since=1.0, pid=7, bytes=1), "n3")
    assert said.endswith(
        "has not loaded; start programs with the image's own loader and without LD_AUDIT, and leave that loader and "
        "/etc/ld.so.preload alone"
    )


@pytest.mark.parametrize(
    ("unseen", "says"), [("/etc/ld.so.preload", "since at /etc/ld.so.preload"), ("", "has not loaded")]
)
def test_who_goes_without_the_library_is_told_whether_it_does_not_see_or_not_load_it(unseen: str, says: str) -> None:
    assert says in sentence(Outside(kind="no-library", card="GPU-a", since=1.0, pid=7, bytes=1, unseen=unseen), "n3")


@pytest.mark.parametrize(
    ("command", "container", "says"),
    [
        ("ld", "main", "process ld in container main (pid 15343 on node n3) uses"),
        ("ld", "", "process ld (pid 15343 on node n3) uses"),
        ("", "", "process (pid 15343 on node n3) uses"),
    ],
)
def test_the_pid_is_said_to_be_the_nodes(command: str, container: str, says: str) -> None:
    found = Outside(kind="no-slice", card="GPU-a", since=1.0, pid=15343, command=command, container=container)
    assert sentence(found, "n3").startswith(says)


@pytest.mark.parametrize("grace", [0.0, 60.0, 86_400.0])
def test_what_the_event_announces_is_read_back(grace: float) -> None:
    assert announced("it uses a card" + announcement(grace)) == ("it uses a card", grace)


@pytest.mark.parametrize("message", ["", "it uses a card", "it uses a card; the pod stays: it is static"])
def test_other_messages_announce_nothing(message: str) -> None:
    assert announced(message) is None


@pytest.mark.parametrize("why", ["it is static", left_by("warn", "no-slice", "is static", 60.0)])
def test_why_a_pod_stays_is_read_back(why: str) -> None:
    assert stays("it uses a card" + staying(why)) == ("it uses a card", why)


@pytest.mark.parametrize("message", ["", "it uses a card", "it uses a card" + announcement(60)])
def test_other_messages_say_of_no_pod_that_it_stays(message: str) -> None:
    assert stays(message) is None
