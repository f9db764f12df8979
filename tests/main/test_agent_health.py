"""The agent's options about the health of cards."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fractile.main.agent_health import health_options, health_rules
from fractile.policy.health import HealthRules

logs: list[Path | None] = []  # what --kernel-log said, in each call of ``parsed``


def parsed(*args: str, **environ: str) -> HealthRules | str:
    """The rules that the options make, or what is wrong with them."""
    made: list[HealthRules] = []

    @click.command()
    @health_options
    def command(
        ignore_xids: frozenset[int],
        sick_xids: frozenset[int],
        passing_minutes: float,
        reset_minutes: float,
        cooling_minutes: float,
        kernel_log: Path | None,
    ) -> None:
        logs.append(kernel_log)
        made.append(
            health_rules(
                ignore_xids=ignore_xids,
                sick_xids=sick_xids,
                passing_minutes=passing_minutes,
                reset_minutes=reset_minutes,
                cooling_minutes=cooling_minutes,
            )
        )

    done = CliRunner().invoke(command, args, env=environ)
    return made[0] if made else done.output


def test_without_options_the_rules_are_the_defaults() -> None:
    assert parsed() == HealthRules()


def test_options_say_numbers_and_minutes() -> None:
    assert parsed(
        "--ignore-xids=61, 74,",
        "--sick-xids=31",
        "--passing-minutes=0.5",
        "--reset-minutes=60",
        "--cooling-minutes=1",
    ) == HealthRules(ignored_xids=frozenset({61, 74}), added_xids=frozenset({31}), passes=30.0, reset=3600.0, cool=60.0)


def test_the_environment_says_the_same_for_a_daemonset() -> None:
    assert parsed(FRACTILE_IGNORE_XIDS="79", FRACTILE_SICK_XIDS="13,31", FRACTILE_RESET_MINUTES="5") == HealthRules(
        ignored_xids=frozenset({79}), added_xids=frozenset({13, 31}), reset=300.0
    )


def test_the_kernels_log_is_read_unless_somebody_says_otherwise() -> None:
    for args in ((), ("--kernel-log=",), ("--kernel-log=/run/log",)):
        assert isinstance(parsed(*args), HealthRules)
    assert logs[-3:] == [Path("/dev/kmsg"), None, Path("/run/log")]


@pytest.mark.parametrize(
    "option",
    ["--ignore-xids=all", "--ignore-xids=-1", "--sick-xids=1;2", "--sick-xids=12345678", "--reset-minutes=-1"],
)
def test_nonsense_is_refused_at_start(option: str) -> None:
    assert "Invalid value" in str(parsed(option))
