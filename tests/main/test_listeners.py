from fractile.main.listeners import Listeners


def test_all_are_told_in_the_order_in_which_they_were_added() -> None:
    told: list[tuple[str, int]] = []
    listeners: Listeners[int] = Listeners(lambda about: told.append(("first", about)))
    listeners(1)
    listeners.add(lambda about: told.append(("second", about)), lambda about: told.append(("third", about)))
    listeners(2)
    assert told == [("first", 1), ("first", 2), ("second", 2), ("third", 2)]
