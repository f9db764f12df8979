"""Work that runs outside of turns is charged to its container: while it is reported to run, while the process is
silent, and after a connection was closed during a turn."""

import os
import signal
import sys
import time
from pathlib import Path

from hostile_test import DONE, A, B, Client, Node, two

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interposer"))

import suite

HOLDS_BACK, RUNS = 2, 4
EACH = 0.05  # s: between two reports
SILENT = 2.0  # s: after that the container pays
LOST = 10.0  # s: after that a process that closed its connection has become another program
LATE = 0.15  # s: a machine may be busy


def charged(node: Node, slice_: str = "one", card: int = 0) -> float:
    """Seconds charged."""
    return next(s["heldNs"] for s in node.status()["cards"][card]["slices"] if s["slice"] == slice_) / 1e9


def says(client: Client, what: int, card: int = 0) -> None:
    client.waits = 1 | what
    client.say(DONE, card)


def goes_on_saying(what: int, seconds: float, *clients: Client) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for client in clients:
            says(client, what)
        time.sleep(EACH)


def near(found: float, wanted: float) -> None:
    assert wanted - LATE <= found <= wanted + LATE, (found, wanted)


def test_what_is_said_to_run_is_charged_the_time_until_it_is_said_to_be_over() -> None:
    with two() as node:
        one = node.client("one")
        goes_on_saying(RUNS, 1, one)
        says(one, 0)
        near(charged(node), 1)
        time.sleep(0.5)
        near(charged(node), 1)
        assert charged(node, "two") == 0


def test_two_processes_of_a_container_are_charged_once() -> None:
    with two() as node:
        clients = [node.client("one") for _ in range(3)]
        goes_on_saying(RUNS, 1, *clients)
        for client in clients:
            says(client, 0)
        near(charged(node), 1)


def test_its_own_turn_is_not_charged_twice() -> None:
    with two() as node:
        one, other = node.client("one"), node.client("one")
        lease = one.granted()
        before = charged(node)
        goes_on_saying(RUNS, 1, other)
        near(charged(node) - before, 1)
        one.say(DONE, lease=lease)


def test_a_process_that_holds_work_back_pays_nothing_while_it_is_heard_of() -> None:
    with two() as node:
        one = node.client("one")
        goes_on_saying(HOLDS_BACK, 2, one)
        assert charged(node) == 0
        says(one, 0)
        time.sleep(SILENT + 0.5)
        assert charged(node) == 0


def test_from_its_last_message_a_process_that_holds_work_back_pays_when_it_falls_silent() -> None:
    with two() as node:
        one, other = node.client("one"), node.client("one")
        goes_on_saying(HOLDS_BACK, 0.5, one, other)
        assert charged(node) == 0
        time.sleep(SILENT + 0.5)
        near(charged(node), SILENT + 0.5)
        goes_on_saying(HOLDS_BACK, 0.5, one, other)
        near(charged(node), SILENT + 0.5)


def test_a_pause_of_the_arbiter_is_not_a_silence_of_processes() -> None:
    with two() as node:
        one = node.client("one")
        goes_on_saying(HOLDS_BACK, 0.5, one)
        node.process.send_signal(signal.SIGSTOP)
        goes_on_saying(HOLDS_BACK, SILENT + 0.5, one)
        node.process.send_signal(signal.SIGCONT)
        goes_on_saying(HOLDS_BACK, 0.5, one)
        assert charged(node) < LATE


def in_a_process(node: Node, what: int, lives: float) -> int:
    """A process that reports `what`, closes its connection, and ends `lives` seconds later; returns its id."""
    child = os.fork()
    if child:
        return child
    client = node.client("one")
    if what:
        says(client, what)
    else:
        client.granted()
    client.socket.close()
    time.sleep(lives)
    os._exit(0)


def test_a_connection_that_is_closed_in_a_turn_or_with_work_held_back_is_paid_for_until_the_process_ends() -> None:
    for what in (0, HOLDS_BACK, RUNS):
        with two() as node:
            os.waitpid(in_a_process(node, what, lives=1), 0)
            near(charged(node), 1)
            time.sleep(0.5)
            near(charged(node), 1)


def test_or_until_the_process_comes_back() -> None:
    with two() as node:
        one = node.client("one")
        one.granted()
        one.socket.close()
        time.sleep(0.5)
        again = node.client("one")
        time.sleep(0.5)
        near(charged(node), 1)  # a silent connection may belong to any process
        says(again, 0)
        time.sleep(0.5)
        near(charged(node), 1)
        again.socket.close()


def test_others_have_the_card_meanwhile() -> None:
    with two() as node:
        one, other = node.client("one"), node.client("two")
        one.granted()
        one.socket.close()
        other.granted(patience=0.5)


def test_a_process_that_has_nothing_on_the_card_may_close_its_connection() -> None:
    with two() as node:
        one = node.client("one")
        one.say(DONE, lease=one.granted())
        time.sleep(0.1)
        before = charged(node)
        one.socket.close()
        time.sleep(0.5)
        assert charged(node) == before


def test_a_process_that_does_not_come_back_has_become_another_program_and_pays_no_longer() -> None:
    with two() as node:
        one = node.client("one")
        one.granted()
        one.socket.close()
        time.sleep(LOST + 1)
        found = charged(node)
        near(found, LOST)
        time.sleep(0.5)
        assert charged(node) == found


def test_each_card_has_a_connection_of_its_own() -> None:
    with Node(one=f"{A}=1GiB {B}=1GiB") as node:
        one = node.client("one")
        says(one, RUNS, card=0)
        says(one, RUNS, card=1)
        assert one.closed()


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
