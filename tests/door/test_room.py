"""What a caller of whom nothing is known may hold, and who goes for the next one."""

from random import Random

import pytest

from fractile.door.room import Contested, RoomClaim


class Claims:
    """Claims by name; ``dropped`` in the order in which they went."""

    def __init__(self, size: int) -> None:
        self.room = Contested(size)
        self.dropped: list[str] = []
        self.made: dict[str, RoomClaim] = {}

    def claim(self, name: str, peer: str, size: int) -> bool:
        made = self.room.claim(peer, size, lambda: self.dropped.append(name))
        if made is not None:
            self.made[name] = made
        return made is not None


def test_what_fits_is_held_until_it_is_given_back_once() -> None:
    claims = Claims(10)
    assert claims.claim("a", "p", 4)
    assert claims.claim("b", "q", 6)
    assert (claims.room.held, claims.dropped) == (10, [])
    for _ in range(2):
        claims.room.give(claims.made["a"])
        assert claims.room.held == 6


def test_more_than_there_is_at_all_is_refused_and_drops_nobody() -> None:
    claims = Claims(10)
    assert claims.claim("a", "p", 10)
    assert not claims.claim("b", "q", 11)
    assert (claims.room.held, claims.dropped) == (10, [])


def test_the_oldest_claim_of_the_peer_that_holds_most_goes_first() -> None:
    claims = Claims(10)
    for name, peer, size in (("honest", "api", 3), ("h1", "pod", 2), ("h2", "pod", 4)):
        assert claims.claim(name, peer, size)
    assert claims.claim("next", "api", 2)
    assert claims.dropped == ["h1"]
    assert claims.claim("large", "other", 6)
    assert claims.dropped == ["h1", "honest", "h2"], "api held 5, then pod 4 of what was left"


def test_of_one_peer_the_one_that_has_waited_longest_goes() -> None:
    """Who sends what was announced is done before its turn comes, even behind the address of an attacker."""
    claims = Claims(3)
    for name in ("a", "b", "c", "d"):
        assert claims.claim(name, "nat", 1)
    assert claims.dropped == ["a"]


def test_a_claim_that_grows_beyond_all_others_goes_itself() -> None:
    claims = Claims(10)
    assert claims.claim("small", "api", 2)
    assert claims.claim("grows", "pod", 0)
    assert claims.room.grow(claims.made["grows"], 8)
    assert claims.room.grow(claims.made["grows"], 5), "it has more already"
    assert not claims.room.grow(claims.made["grows"], 9)
    assert (claims.room.held, claims.dropped) == (2, ["grows"])
    assert not claims.room.grow(claims.made["grows"], 1)
    assert claims.room.held == 2


@pytest.mark.parametrize("seed", range(20))
def test_never_more_is_held_than_there_is_and_nothing_stays(seed: int) -> None:
    rng, claims = Random(seed), Claims(100)
    for step in range(500):
        claims.claim(f"{step}", rng.choice("abc"), rng.randrange(110))
        one = rng.choice(list(claims.made.values()) or [RoomClaim("x", 0, print)])
        if rng.random() < 0.5:
            claims.room.grow(one, rng.randrange(120))
        else:
            claims.room.give(one)
        assert 0 <= claims.room.held <= 100
    for one in claims.made.values():
        claims.room.give(one)
    assert claims.room.held == 0
