"""The arbiter as a process: the next container is told ahead when its turn begins, and again if that is sooner."""

import sys
import time

from hostile_test import DONE, ENDING, GRANT, RECALL, WANT, Client, Node, suite, two

BEGINS = 7
MS = 1_000_000


def one_holds_and_another_waits(node: Node) -> tuple[Client, int, Client]:
    """The client that has the turn, its lease, and the client that is next."""
    first, second = node.client("one"), node.client("two")
    first.waits = 1
    lease = first.granted()
    second.say(WANT)
    first.wait_for(RECALL)
    first.say(DONE, more=1, lease=lease)
    return second, second.wait_for(GRANT)[2], first


def told_ahead(holder: Client, lease: int, waits: Client) -> tuple[int, int] | None:
    """The turn, and when it begins; None: the machine was stalled, and it began at once."""
    holder.say(ENDING, lease=lease, length=3 * MS)
    heard = waits.hear()
    return (heard[2], heard[3]) if heard and heard[0] == BEGINS else None


def is_told_ahead() -> bool:
    with two() as node:
        holder, lease, waits = one_holds_and_another_waits(node)
        said = time.monotonic_ns()
        if not (told := told_ahead(holder, lease, waits)):
            return False
        turn, begins = told
        now = time.monotonic_ns()
        assert said + 3 * MS <= begins <= now + 3 * MS, (begins - said, now - said)
        _, _, granted, length = waits.wait_for(GRANT)
        assert granted == turn
        assert length >= 4 * MS, length  # the wait is not part of the turn
        return True


def test_the_next_container_is_told_before_its_turn_when_that_begins() -> None:
    if not any(is_told_ahead() for _ in range(20)):
        raise suite.Skip("the machine was never awake in time")


def ends_early() -> bool:
    """False: the machine was stalled for all the time available."""
    with two() as node:
        holder, lease, waits = one_holds_and_another_waits(node)
        if not (told := told_ahead(holder, lease, waits)):
            return False
        turn, begins = told
        waits.wait_for(GRANT)
        holder.say(DONE, more=0, lease=lease)
        if time.monotonic_ns() > begins - MS // 2:
            return False
        _, _, of, sooner = waits.wait_for(BEGINS)
        assert of == turn
        assert sooner < begins
        return True


def test_when_the_turn_before_is_over_early_the_next_is_told_to_begin() -> None:
    if not any(ends_early() for _ in range(20)):
        raise suite.Skip("the machine was never awake for half a millisecond")


def test_a_turn_that_is_not_passed_on_begins_with_its_grant() -> None:
    with two() as node:
        holder, lease, waits = one_holds_and_another_waits(node)
        holder.wait_for(RECALL)
        holder.say(DONE, more=0, lease=lease)
        heard = waits.hear()
        assert heard, "nothing was said"
        assert heard[0] == GRANT


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
