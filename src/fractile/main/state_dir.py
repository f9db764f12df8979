"""The option --state-dir of the agent and of the programs that look for it there. It imports next to nothing, since
``fractile alive`` runs every half minute."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

STATE_DIR = Path("/var/lib/fractile")

Command = TypeVar("Command", bound=Callable[..., Any])


def state_dir_option(help: str) -> Callable[[Command], Command]:
    """``help``: what the directory is to the program."""
    return click.option("--state-dir", type=click.Path(path_type=Path), default=STATE_DIR, show_default=True, help=help)
