"""The agent's options about the health of cards."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from fractile.policy.health import HealthRules

F = TypeVar("F", bound=Callable[..., object])

_MINUTE = 60.0
_MINUTES = click.FloatRange(min=0.0, max=7 * 24 * 60.0)
_DEFAULT = HealthRules()


class _Xids(click.ParamType[frozenset[int]]):
    name = "numbers"

    def convert(
        self, value: "str | frozenset[int]", param: click.Parameter | None, ctx: click.Context | None
    ) -> frozenset[int]:
        if isinstance(value, frozenset):
            return value
        words = [word.strip() for word in value.split(",") if word.strip()]
        if not all(word.isdecimal() and len(word) <= 6 for word in words):
            self.fail(f"{value!r} is not a list of XIDs such as 61,74", param, ctx)
        return frozenset(map(int, words))


class _Log(click.ParamType[Path | None]):
    name = "path"

    def convert(
        self, value: str | Path | None, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path | None:
        return Path(value) if value else None


def health_options(command: F) -> F:
    """Add the options whose values ``health_rules`` takes."""
    for option in reversed(
        (
            click.option(
                "--ignore-xids",
                type=_Xids(),
                default="",
                envvar="FRACTILE_IGNORE_XIDS",
                help="XIDs, separated by commas, after which a card stays in service.",
            ),
            click.option(
                "--sick-xids",
                type=_Xids(),
                default="",
                envvar="FRACTILE_SICK_XIDS",
                help="XIDs that take a card out of service until it is reset or --reset-minutes have passed.",
            ),
            click.option(
                "--passing-minutes",
                type=_MINUTES,
                default=_DEFAULT.passes / _MINUTE,
                show_default=True,
                envvar="FRACTILE_PASSING_MINUTES",
                help="How long a card stays out of service after an error that passes without a reset.",
            ),
            click.option(
                "--reset-minutes",
                type=_MINUTES,
                default=_DEFAULT.reset / _MINUTE,
                show_default=True,
                envvar="FRACTILE_RESET_MINUTES",
                help="How long a card stays out of service after an error that needs a reset, if no reset is seen.",
            ),
            click.option(
                "--cooling-minutes",
                type=_MINUTES,
                default=_DEFAULT.cool / _MINUTE,
                show_default=True,
                envvar="FRACTILE_COOLING_MINUTES",
                help="How long an overheated card must have been cool before it returns to service.",
            ),
            click.option(
                "--kernel-log",
                type=_Log(),
                default="/dev/kmsg",
                show_default=True,
                envvar="FRACTILE_KERNEL_LOG",
                help="Kernel log in which the driver names the process behind an XID, so that only its pod gets the "
                'event; "": none.',
            ),
        )
    ):
        command = option(command)
    return command


def health_rules(
    *,
    ignore_xids: frozenset[int],
    sick_xids: frozenset[int],
    passing_minutes: float,
    reset_minutes: float,
    cooling_minutes: float,
) -> HealthRules:
    return msgspec.structs.replace(
        _DEFAULT,
        ignored_xids=ignore_xids,
        added_xids=sick_xids,
        passes=passing_minutes * _MINUTE,
        reset=reset_minutes * _MINUTE,
        cool=cooling_minutes * _MINUTE,
    )
