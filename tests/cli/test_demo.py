"""What `fractile demo` prints at its end."""

from pathlib import Path

from fractile.cli.demo import how_to_go_on

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_readme_shows_what_the_demonstrations_print_at_their_end() -> None:
    printed = how_to_go_on("fractile", Path("/var/lib/fractile/clusters/fractile/admin.kubeconfig"))

    assert f"{printed}\nAll demonstrations did what they say" in README


def test_another_cluster_is_named_in_every_command() -> None:
    commands = [line for line in how_to_go_on("two", Path("/k")).splitlines() if line.startswith("   fractile ")]

    assert len(commands) == 3
    assert [line for line in commands if " --name two" not in line] == []
