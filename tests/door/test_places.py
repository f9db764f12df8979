"""Who is dropped when too many are connected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.door.places import ConnectionPlace, PlaceLimits, Places, peer_of

RULES = PlaceLimits(strangers=4, known=2, each=3)


class Played(ConnectionPlace):
    """Notes that it was dropped."""

    def drop(self) -> None:
        raise AssertionError("places return who has to go; they drop nobody")


def came(places: Places, *peers: str) -> list[Played]:
    made = [Played(peer) for peer in peers]
    for one in made:
        assert places.come(one) == []
    return made


def test_the_youngest_is_never_the_one_that_goes() -> None:
    places = Places(RULES)
    a, b, c = came(places, "x", "x", "x")
    late = Played("x")
    assert places.come(late) == [a]
    assert places.strangers == 3
    assert places.come(Played("x")) == [b]
    assert places.come(Played("x")) == [c]
    assert places.come(Played("x")) == [late]


def test_the_peer_with_most_connections_pays_for_a_new_one_of_another() -> None:
    places = Places(RULES)
    alone, *many = came(places, "scheduler", "flood", "flood", "flood")
    assert places.come(Played("other")) == [many[0]]
    assert alone in places.all()


def test_an_address_of_a_known_caller_comes_last_even_if_it_has_most() -> None:
    places = Places(RULES)
    (known,) = came(places, "scheduler")
    assert places.introduce(known) == []
    came(places, "scheduler", "scheduler", "scheduler")
    (stranger,) = came(places, "flood")
    assert places.come(Played("flood")) == [stranger]
    assert places.is_home("scheduler")
    assert not places.is_home("flood")


def test_a_whole_request_makes_a_connection_the_youngest() -> None:
    places = Places(RULES)
    a, b, _ = came(places, "x", "x", "x")
    places.touch(a)
    assert places.come(Played("x")) == [b]


def test_known_callers_take_no_place_of_strangers_and_have_a_limit_of_their_own() -> None:
    places = Places(RULES)
    first, second, third = came(places, "s", "s", "s")
    assert places.introduce(first) == []
    assert places.introduce(second) == []
    assert places.strangers == 1
    places.touch(first)
    assert places.introduce(third) == [second]
    assert (places.known, places.strangers) == (2, 0)


def test_who_has_left_has_no_place_and_may_leave_again() -> None:
    places = Places(RULES)
    (one,) = came(places, "x")
    for _ in range(2):
        places.leave(one)
    places.touch(one)
    assert places.introduce(one) == []
    assert places.all() == []
    assert places.oldest() is None


@given(st.lists(st.tuples(st.sampled_from("comlt"), st.integers(0, 5), st.integers(0, 30)), max_size=200))
def test_limits_hold_and_nobody_is_lost_or_counted_twice(steps: list[tuple[str, int, int]]) -> None:
    places, here = Places(RULES), list[Played]()
    for what, peer, index in steps:
        gone: list[ConnectionPlace] = []
        if what == "c":
            here.append(Played(f"peer-{peer}"))
            gone = places.come(here[-1])
            assert here[-1] not in gone
        elif here:
            one = here[index % len(here)]
            if what == "m":
                gone = places.introduce(one)
            elif what == "t":
                places.touch(one)
            elif what == "l":
                places.leave(one)
                here.remove(one)
        here = [one for one in here if one not in gone]
        assert set(places.all()) == set(here)
        assert places.strangers == sum(not one.is_known for one in here) <= RULES.strangers
        assert places.known == sum(one.is_known for one in here) <= RULES.known


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        (("10.0.0.1", 5), "10.0.0.1"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1"),
        (("2001:db8:1:2:3:4:5:6", 5, 0, 0), "2001:db8:1:2::"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::"),
        ("", ""),
    ],
)
def test_one_machine_is_one_peer(address: object, peer: str) -> None:
    assert peer_of(address) == peer


MANY = PlaceLimits(strangers=512, known=0, each=512)


def test_of_many_addresses_those_that_never_sent_a_whole_request_go_first() -> None:
    places = Places(MANY)
    server = came(places, *["api-server"] * 24)
    for one in server[:16]:
        places.touch(one)
    gone: list[ConnectionPlace] = []
    for number in range(1400):
        gone += places.come(Played(f"tenant-{number % 700}"))
    assert len(gone) == 1400 + 24 - 512
    assert set(server) <= set(places.all()), "those that it has just opened stay as well"


def test_an_address_that_nobody_knows_yet_is_not_the_one_with_most_because_it_opens_a_few() -> None:
    places = Places(MANY)
    came(places, *(f"tenant-{n}" for n in range(512)))
    server = [Played("api-server") for _ in range(8)]
    for one in server:
        places.come(one)
    for number in range(500):
        places.come(Played(f"late-{number}"))
    assert set(server) <= set(places.all())


def test_newcomers_have_room_when_all_others_have_sent_requests() -> None:
    places = Places(MANY)
    for one in came(places, *(f"tenant-{n}" for n in range(512))):
        places.touch(one)
    server = Played("api-server")
    places.come(server)
    for number in range(127):
        places.come(Played(f"late-{number}"))
    assert server in places.all()


def test_a_whole_request_does_not_let_one_address_have_all_places() -> None:
    places = Places(MANY)
    alone, *flood = came(places, "alone", *["flood"] * 511)
    places.touch(flood[0])
    assert places.come(Played("other")) == [flood[1]]
    assert alone in places.all()


def test_the_newcomer_stays_among_addresses_of_known_callers() -> None:
    places = Places(RULES)
    first = came(places, "a", "b")
    for one in first:
        places.introduce(one)
    (oldest, *_) = came(places, "a", "a", "b", "b")
    assert places.come(Played("stranger")) == [oldest]
