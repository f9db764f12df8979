"""What `fractile demo` prints at its end."""

from pathlib import Path

from fractile.cli.demo import how_to_go_on, in_the_way

TOUR = (Path(__file__).parents[2] / "docs" / "start" / "tour.md").read_text()


def test_the_tour_shows_what_the_demonstrations_print_at_their_end() -> None:
    printed = how_to_go_on("fractile", Path("/var/lib/fractile/clusters/fractile/admin.kubeconfig"))

    assert f"{printed}\nAll demonstrations succeeded" in TOUR


def test_another_cluster_is_named_in_every_command() -> None:
    commands = [line for line in how_to_go_on("two", Path("/k")).splitlines() if line.startswith("   fractile ")]

    assert len(commands) == 3
    assert [line for line in commands if " --name two" not in line] == []


def test_pods_that_hold_cards_are_named_before_the_first_step_with_what_to_do() -> None:
    held = [f"default/p{i} (512 MiB of card 0 of n1)" for i in range(7)]

    assert in_the_way("two", held) == (
        f"Pods of other namespaces hold parts of cards: {', '.join(held[:5])} and 2 more. Demonstrations that need "
        "those cards may fail. To delete such a pod: fractile kubectl --name two delete pod POD -n NAMESPACE"
    )
    assert f": {held[0]}. " in in_the_way("fractile", held[:1])
