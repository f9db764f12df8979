"""Shares by the terms in the limits pages, with the real library and arbiter: weights, limits, priorities, live
changes, gangs, and the figures shown in the container. Runs under the virtual clock; the judge is simgpu's accounts."""

import sys

from scene import Part, Terms, near, play, status_at, suite


def test_without_any_weight_all_are_equal() -> None:
    b = play({"a": Terms(), "b": Terms(), "c": Terms()}, [Part(c, "work") for c in "abc"])
    for c in "abc":
        near(b.share(c, 500, 3000), 33.3)


def test_weight_0_counts_as_1_beside_weights() -> None:
    b = play({"a": Terms(weight=0), "b": Terms(weight=3)}, [Part(c, "work") for c in "ab"])
    near(b.share("a", 500, 3000), 25)
    near(b.share("b", 500, 3000), 75)


def test_guarantees_of_300_percent_in_sum_are_shared_in_proportion() -> None:
    terms = {"a": Terms(cores=100), "b": Terms(cores=100), "c": Terms(cores=50), "d": Terms(cores=50)}
    b = play(terms, [Part(c, "work", "us=300") for c in terms])
    for c, t in terms.items():
        near(b.share(c, 500, 3000), t.cores / 3)


def test_a_limit_of_1_percent_holds_alone_and_beside_others() -> None:
    small = Terms(cores=1, limit=1)
    near(play({"a": small}, [Part("a", "work", "us=400")], 6000).share("a", 1000, 6000), 1, 0.4)
    b = play({"a": small, "b": Terms(cores=50)}, [Part("a", "work", "us=400"), Part("b", "work")], 6000)
    near(b.share("a", 1000, 6000), 1, 0.4)
    near(b.share("b", 1000, 6000), 99, 2)


def test_limits_and_weights_changed_live_hold_100_ms_later() -> None:
    change = "slice=ROOT/slices/a card=0 cores=20 limit=20"
    b = play({"a": Terms(cores=50)}, [Part("a", "work"), Part("a", "set", change, arrive=1000)])
    near(b.share("a", 500, 1000), 100)
    near(b.share("a", 1100, 2100), 20)
    change = "slice=ROOT/slices/a card=0 cores=80"
    parts = [Part("a", "work"), Part("b", "work"), Part("a", "set", change, arrive=1000)]
    b = play({"a": Terms(cores=20), "b": Terms(cores=20)}, parts)
    near(b.share("a", 500, 1000), 50, 3)
    near(b.share("a", 1100, 2100), 80, 3)


def test_a_limit_taken_away_live_is_gone_100_ms_later() -> None:
    change = "slice=ROOT/slices/a card=0 cores=10 limit=0"
    b = play({"a": Terms(cores=10, limit=10)}, [Part("a", "work"), Part("a", "set", change, arrive=1000)])
    near(b.share("a", 500, 1000), 10)
    near(b.share("a", 1100, 2100), 100)


def settles(b, container: str, at: int, due: float) -> int:
    """ms from `at` until the first instant from which the share over 200 ms is within 5 points of `due`."""
    return next(t - at for t in range(at, at + 1000, 10) if abs(b.share(container, t, t + 200) - due) <= 5)


def test_how_long_changed_terms_take_to_be_in_force() -> None:
    """Limits down and up, weights, and unchanged priority: in every case within 100 ms."""
    set_a, took = "slice=ROOT/slices/a card=0 ", {}
    for name, before, change, due in (
        ("limit 50 to 20", Terms(cores=50, limit=50), "cores=20 limit=20", 20),
        ("no limit to 10", Terms(cores=50), "cores=10 limit=10", 10),
        ("limit 10 to 80", Terms(cores=10, limit=10), "cores=80 limit=80", 80),
        ("limit 10 to none", Terms(cores=10, limit=10), "cores=10 limit=0", 100),
    ):
        parts = [Part("a", "work"), Part("a", "set", set_a + change, arrive=1000)]
        took[name] = settles(play({"a": before}, parts, sample=10), "a", 1000, due)
    parts = [Part("a", "work"), Part("b", "work"), Part("a", "set", set_a + "cores=80", arrive=1000)]
    b = play({"a": Terms(cores=20), "b": Terms(cores=80)}, parts, sample=10)
    took["weight 20 to 80 of 160"] = settles(b, "a", 1000, 50)
    print(took)
    assert max(took.values()) <= 100, took


def waits(priority: int, hog: str) -> tuple[float, float]:
    """The p99 of the latency of requests of 1 ms, in ms, and the share of the best-effort container beside them."""
    terms = {"fast": Terms(cores=50, priority=priority), "hog": Terms(cores=50)}
    parts = [Part("fast", "service", "us=1000 rate=30"), Part("hog", "work", hog)]
    b = play(terms, parts, 8000)
    all_of_them = sorted(b.latencies["fast"])
    assert len(all_of_them) > 100
    return all_of_them[len(all_of_them) * 99 // 100] / 1000, b.share("hog", 500, 8000)


def test_a_container_of_high_priority_waits_for_the_kernels_in_flight_and_not_for_a_lease() -> None:
    without, _ = waits(0, "us=1000")
    p99, hog = waits(1, "us=1000")
    assert p99 < without and p99 <= 14, (p99, without)
    assert hog >= 95, hog


def test_two_gangs_on_two_cards_in_opposite_order_progress_at_their_shares() -> None:
    parts = [Part("a", "work", "cards=0:1 sync=1"), Part("b", "work", "cards=1:0 sync=1")]
    b = play({"a": Terms(cores=70), "b": Terms(cores=30)}, parts, 4000)
    for c, cores in (("a", 70), ("b", 30)):
        assert b.share(c, 1000, 4000) > 0.8 * cores, (c, b.share(c, 1000, 4000))
        both = b.kernels(c, 1000, 4000) * 0.1 / 3  # of 1 ms each, in percent of 3 s
        near(both - b.share(c, 1000, 4000), b.share(c, 1000, 4000), 1)
    ratio = b.share("a", 1000, 4000) / b.share("b", 1000, 4000)
    assert 2.0 <= ratio <= 2.7, ratio


def test_two_gangs_of_two_processes_each_progress_too() -> None:
    parts = [Part("a", "work", "cards=0:1 sync=1", processes=2), Part("b", "work", "cards=1:0 sync=1", processes=2)]
    b = play({"a": Terms(cores=50), "b": Terms(cores=50)}, parts, 4000)
    for c in "ab":
        near(b.share(c, 1000, 4000), 48, 6)


def test_a_gang_beside_one_on_each_card() -> None:
    parts = [Part("a", "work", "cards=0:1 sync=1"), Part("b", "work", "cards=0"), Part("c", "work", "cards=1")]
    b = play({c: Terms(cores=50) for c in "abc"}, parts, 4000)
    near(b.share("a", 1000, 4000), 47, 6)
    near(b.share("b", 1000, 4000), 48, 5)


def test_a_gang_beside_one_on_one_of_its_cards_leaves_it_its_share() -> None:
    parts = [Part("a", "work", "cards=0:1 sync=1"), Part("b", "work", "cards=0")]
    b = play({c: Terms(cores=50) for c in "ab"}, parts, 4000)
    near(b.share("a", 1000, 4000), 47, 5)
    near(b.share("b", 1000, 4000), 49, 5)


def test_a_launch_over_two_cards_is_limited_on_both() -> None:
    """The launch holds one card while it waits for the other, so it gets less than its limit, never more."""
    b = play({"a": Terms(cores=25, limit=25)}, [Part("a", "multi", "cards=0:1 sync=1 us=2000")], 4000)
    first, both = b.share("a", 1000, 4000), b.kernels("a", 1000, 4000) * 0.2 / 3
    assert 15 <= first <= 26, first
    near(both - first, first)


def test_launches_over_two_cards_listed_in_opposite_order_do_not_block_each_other() -> None:
    parts = [Part("a", "multi", "cards=0:1 sync=1 us=2000"), Part("b", "multi", "cards=1:0 sync=1 us=2000")]
    b = play({c: Terms(cores=50) for c in "ab"}, [*parts, status_at(4000, "a")], 4000)
    for c in "ab":
        near(b.share(c, 1000, 4000), 48, 5)
    assert b.events() == {}, b.events()


def test_nvml_in_a_container_shows_its_own_use() -> None:
    parts = [Part("a", "nvml", "out=ROOT/out/nvml"), Part("b", "work"), Part("c", "work", "us=50")]
    b = play({"a": Terms(cores=20), "b": Terms(cores=50), "c": Terms(cores=30)}, parts, 4000)
    rows = [[int(w) for w in line.split()] for line in b.written["nvml"].splitlines()]
    assert len(rows) >= 5
    for card, processes, by_process in rows[1:]:
        near(card, 20, 4)
        near(by_process, 20, 4)
        assert processes == 1


def test_nvml_in_a_container_that_is_not_paced_shows_what_the_driver_says_of_its_processes() -> None:
    parts = [Part("a", "nvml", "out=ROOT/out/nvml"), Part("a", "work"), Part("b", "work")]
    b = play({"a": Terms(flags=0), "b": Terms(flags=0)}, parts, 4000)
    rows = [[int(w) for w in line.split()] for line in b.written["nvml"].splitlines()]
    assert len(rows) >= 5
    for card, processes, by_process in rows[2:]:
        near(card, 66.7, 4)  # two of the three processes between which the driver shares the card
        near(by_process, card, 2)
        assert processes == 2


def test_waiting_and_throttled_time_are_told_apart() -> None:
    b = play({"a": Terms(cores=25, limit=25)}, [Part("a", "work", "sync=1"), status_at(4000, "a")], 4000)
    waited, throttled = (b.account("a", n) / 1e9 for n in ("waited_ns", "throttled_ns"))
    near(waited, 3.0, 0.3)
    near(throttled, waited, 0.2)
    near(layout_held(b, "a"), 1.0, 0.1)
    (seat,) = b.status()["cards"][0]["slices"]
    near(seat["throttledNs"] / 1e9, throttled, 0.2)
    near(seat["share"], 25)
    b = play({"a": Terms(cores=50), "b": Terms(cores=50)}, [Part("a", "work", "sync=1"), Part("b", "work")], 4000)
    near(b.account("a", "waited_ns") / 1e9, 2.0, 0.3)
    assert b.account("a", "throttled_ns") == 0
    b = play({c: Terms(cores=50, limit=50) for c in "ab"}, [Part(c, "work", "sync=1") for c in "ab"], 4000)
    near(b.account("a", "waited_ns") / 1e9, 2.0, 0.3)
    near(b.account("a", "throttled_ns") / 1e9, 0.0, 0.25)


def layout_held(b, container: str) -> float:
    """Seconds for which the container held its first card, from the region."""
    from scene import A, B, Path, layout

    at = layout.Container.there(Path(), [A, B])
    return layout.get(b.regions[container], "region_card", "held_ns", at.card(0)) / 1e9


def test_processes_that_hold_a_turn_together_count_it_once() -> None:
    parts = [Part("a", "work", "sync=1", processes=4), Part("b", "work")]
    b = play({"a": Terms(cores=50), "b": Terms(cores=50)}, [*parts, status_at(4000, "a")], 4000)
    seats = {s["slice"]: s for s in b.status()["cards"][0]["slices"]}
    near(layout_held(b, "a"), seats["a"]["heldNs"] / 1e9, 0.15)


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
