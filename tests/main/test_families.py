"""The options about families of names, which control plane and agents share."""

import click
import pytest
from click.testing import CliRunner

from fractile.dialects import table
from fractile.main.agent import command as agent
from fractile.main.control_plane import command as control_plane
from fractile.main.families import family_options


def parsed(*args: str) -> tuple[frozenset[str], int] | str:
    made: list[tuple[frozenset[str], int]] = []

    @click.command()
    @family_options
    def command(dialects: frozenset[str], slots: int) -> None:
        made.append((dialects, slots))

    done = CliRunner().invoke(command, args)
    return made[0] if made else done.output


def test_all_families_are_served_unless_said_otherwise() -> None:
    assert parsed() == (table.NAMES, 10)
    assert parsed("--dialects", "aliyun, tencent", "--slots-per-card", "4") == (frozenset({"aliyun", "tencent"}), 4)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--dialects", "aliyun,hami"), "hami is not a family of names; choose among aliyun, class, nvidia, tencent"),
        (("--dialects", ","), "nothing is not a family of names"),
        (("--slots-per-card", "0"), "0 is not in the range"),
        (("--slots-per-card", "1025"), "1025 is not in the range"),
    ],
)
def test_what_makes_no_sense_is_refused(args: tuple[str, str], said: str) -> None:
    refused = parsed(*args)
    assert isinstance(refused, str)
    assert said in " ".join(refused.split())


@pytest.mark.parametrize("command", [agent, control_plane], ids=["agent", "control plane"])
def test_both_programs_have_them(command: click.Command) -> None:
    assert {"dialects", "slots"} <= {p.name for p in command.params}
