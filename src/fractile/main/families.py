"""The options about families of resource names, shared by control plane and agents.

They are separate because both programs must get the same values, as with --memory-unit.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from fractile.dialects import table
from fractile.dialects.nvidia import SLOTS

Command = TypeVar("Command", bound=Callable[..., Any])

_MOST = 1024  # slots of a card: far more containers than a node runs


def _names(_context: click.Context, _parameter: click.Parameter, text: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    unknown = sorted(names - table.NAMES)
    if unknown or not names:
        known = ", ".join(sorted(table.NAMES))
        raise click.BadParameter(f"{' and '.join(unknown) or 'nothing'} is not a family of names; choose among {known}")
    return names


_OPTIONS = (
    click.option(
        "--dialects",
        default=",".join(dialect.name for dialect in table.DIALECTS),
        show_default=True,
        metavar="NAME,...",
        callback=_names,
        help="Families of resource names to serve; must be the same on the control plane and all agents.",
    ),
    click.option(
        "--slots-per-card",
        "slots",
        type=click.IntRange(1, _MOST),
        default=SLOTS,
        show_default=True,
        help="How many containers a card serves through nvidia.com/gpu; must be the same on the control plane and all "
        "agents.",
    ),
)


def family_options(command: Command) -> Command:
    """Add the options ``dialects`` and ``slots``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
