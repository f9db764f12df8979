"""A page that anybody may ask for, as often as they like."""

from fractile.serving.paced import Paced


class _Made:
    """Pages of which each takes 20 ms."""

    def __init__(self) -> None:
        self.now = 0.0
        self.count = 0

    def make(self, form: bool) -> bytes:
        self.now += 0.02
        self.count += 1
        return f"{self.count} {form}".encode()


def test_who_asks_again_and_again_takes_a_tenth_of_the_time() -> None:
    made = _Made()
    paced = Paced(made.make, lambda: made.now)
    begun = made.now
    for _ in range(10_000):
        paced.page(False)
        made.now += 0.001
    assert made.count * 0.02 <= 0.11 * (made.now - begun)
    assert made.count > 20


def test_each_form_is_a_page_of_its_own() -> None:
    made = _Made()
    paced = Paced(made.make, lambda: made.now)
    assert paced.page(False) == b"1 False"
    assert paced.page(True) == b"2 True"
    assert paced.page(False) == b"1 False"
