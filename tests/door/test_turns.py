"""Whose handshake begins next when more connections come than may begin."""

from fractile.door.turns import WaitingLine
from tests.door.test_places import Played


def waiting(*peers: str) -> tuple[WaitingLine[Played], list[Played]]:
    turns, made = WaitingLine[Played](), [Played(peer) for peer in peers]
    for one in made:
        turns.wait(one)
    return turns, made


def test_a_flood_of_one_peer_keeps_another_peer_from_its_turn_for_one_handshake_only() -> None:
    turns, (alone,) = waiting("scheduler")
    begun: list[str] = []
    for _ in range(3):  # a hundred come, and one handshake may begin
        for _ in range(100):
            turns.wait(Played("flood"))
        begun.append(turns.next().peer)
    assert alone.peer in begun[:2]


def test_of_one_peer_the_youngest_comes_first() -> None:
    turns, (a, b, c) = waiting("x", "x", "x")
    assert [turns.next(), turns.next(), turns.next()] == [c, b, a]
    assert not turns


def test_who_has_left_waits_no_more() -> None:
    turns, (a, b) = waiting("x", "y")
    turns.leave(a)
    turns.leave(a)
    turns.leave(Played("z"))
    assert (len(turns), turns.next()) == (1, b)
    assert not turns
