"""Shares of a card's time between containers, by simgpu's accounts, with the real library and arbiter. Runs under the
virtual clock, so the load of the machine has no effect."""

import os
import sys
from pathlib import Path

import suite

NATIVE = Path(__file__).resolve().parents[2]
OUT = Path(os.environ.get("OUT", "build")).resolve()
sys.path.insert(0, str(NATIVE / "shares"))

from host import Books, Tenant, run  # noqa: E402

BEGIN, WINDOW = 1000, 4000


def books(*tenants: Tenant, window: int = WINDOW) -> Books:
    if not (OUT / "shares" / "conductor").exists():
        raise suite.Skip("make shares-quick builds the conductor")
    return run(OUT, list(tenants), "fractile", window, 100, patience=40)


def shares(*tenants: Tenant, window: int = WINDOW, begin: int = BEGIN) -> list[float]:
    b = books(*tenants, window=window)
    return [100 * b.share(i, begin, window) for i in range(len(tenants))]


def near(got: list[float], wanted: list[float], points: float = 2.5) -> None:
    assert all(abs(g - w) <= points for g, w in zip(got, wanted, strict=True)), f"{got}, not {wanted}"


def test_a_hard_limit_holds_for_short_and_long_kernels_alone() -> None:
    for us in (20, 1000, 30000):
        near(shares(Tenant(f"loop=async kernels={us}", cores=50, limit=50)), [50])


def test_a_hard_limit_below_the_smallest_lease_holds() -> None:
    near(shares(Tenant("loop=async kernels=500", cores=2, limit=2)), [2])


def test_copies_within_the_card_are_limited_like_kernels() -> None:
    for mib in (1, 16, 256):
        near(shares(Tenant(f"loop=copies copy={mib}", cores=10, limit=10)), [10], points=1)


def test_containers_that_only_copy_or_only_compute_share_by_weight() -> None:
    near(shares(Tenant("loop=copies copy=64", cores=30), Tenant("loop=async kernels=500", cores=70)), [30, 70])


def test_a_kernel_then_sync_loop_is_limited_like_any_other() -> None:
    got = shares(Tenant("loop=sync kernels=1000", cores=30, limit=30))
    near(got, [29])


def test_a_soft_limit_uses_an_idle_card() -> None:
    got = shares(Tenant("loop=async kernels=1000", cores=20))
    assert got[0] >= 97, got


def test_two_containers_share_by_weight_whatever_their_kernels() -> None:
    for first, second in ((1000, 1000), (50, 5000), (10, 100)):
        got = shares(Tenant(f"loop=async kernels={first}", cores=70), Tenant(f"loop=async kernels={second}", cores=30))
        near(got, [70, 30])


def test_kernels_of_two_hundred_milliseconds_are_paid_for() -> None:
    got = shares(Tenant("loop=sync kernels=200000", cores=50), Tenant("loop=async kernels=1000", cores=50), window=8000)
    near(got, [50, 50], points=5)


def test_guarantees_above_a_hundred_in_sum_are_shared_in_proportion() -> None:
    got = shares(*(Tenant("loop=async kernels=300", cores=c) for c in (90, 90, 60)))
    near(got, [37.5, 37.5, 25])


def test_a_container_of_many_processes_has_one_share() -> None:
    got = shares(Tenant("loop=async kernels=1000", cores=50, processes=4), Tenant("loop=async kernels=1000", cores=50))
    near(got, [50, 50], points=4)


def test_a_container_that_comes_and_goes_gets_its_share_at_once() -> None:
    b = books(
        Tenant("loop=async kernels=1000", cores=50),
        Tenant("loop=async kernels=1000", cores=50, arrive=1000, depart=2500),
    )
    near([100 * b.share(0, 1200, 2500), 100 * b.share(1, 1200, 2500)], [50, 50], points=3)
    assert b.share(0, 2700, WINDOW) >= 0.97


def test_graphs_and_bursts_over_streams_are_shared_too() -> None:
    got = shares(
        Tenant("loop=graph n=8 kernels=100", cores=60), Tenant("loop=burst n=8 streams=4 kernels=400", cores=40)
    )
    assert sum(got) >= 90 and abs(got[0] - 60) <= 5, got


def work(*tenants: Tenant, window: int = WINDOW) -> list[float]:
    """Percent of the kernels that the same program runs alone without a limit. Of streams, time tells little."""
    got = books(*tenants, window=window)
    out: list[float] = []
    for i, t in enumerate(tenants):
        alone = run(OUT, [Tenant(t.work)], "none", window, 100, patience=40)
        out.append(100 * got.work(i, 0, window, True) / alone.work(0, 0, window, True))
    return out


def test_kernels_side_by_side_in_several_streams_stay_side_by_side() -> None:
    near(work(Tenant("loop=async streams=8 kernels=5000:108", cores=50, limit=50)), [50])
    near(work(Tenant("loop=burst n=16 streams=4 kernels=50000:8", cores=50)), [100])


def test_streams_that_fill_the_card_one_by_one_get_no_more_than_their_share() -> None:
    got = shares(
        Tenant("loop=async streams=8 kernels=2000:4096", cores=50), Tenant("loop=async kernels=1000", cores=50)
    )
    near(got, [50, 50])


def test_one_function_with_very_different_lengths_keeps_its_limit() -> None:
    load = "loop=async pick=random seed=12 kernels=1000:108,5:432,200000:432 hidden=1"
    near(shares(Tenant(load, cores=10, limit=10), window=10000, begin=0), [10], points=2)


def test_a_container_that_waits_for_a_kernel_longer_than_predicted_is_not_taken_for_idle() -> None:
    got = shares(
        Tenant("loop=async pick=random seed=9 kernels=20:1024,10000:1000000 hidden=1", cores=50),
        Tenant("loop=async pick=random seed=8 kernels=5:1024,1000:8,200000:432", cores=50),
        window=10000,
        begin=0,
    )
    near(got, [50, 50])


def test_a_first_kernel_of_half_a_second_is_paid_for() -> None:
    got = shares(
        Tenant("loop=sync kernels=50:64", cores=70),
        Tenant("loop=async kernels=500000:1024", cores=30),
        window=10000,
        begin=0,
    )
    # For the first quarter of a second they have the card together, which is charged in equal parts. The one that waits
    # for each of its kernels of 50 us leaves most of its slices early.
    assert abs(got[1] - 30) <= 6, got


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
