"""The option --state-dir of the agent and of programs that read its files. This module imports very little, since
``fractile alive`` runs every half minute."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

STATE_DIR = Path("/var/lib/fractile")

Command = TypeVar("Command", bound=Callable[..., Any])


def state_dir_option(help: str) -> Callable[[Command], Command]:
    """``help``: the meaning of the directory for the program."""
    return click.option("--state-dir", type=click.Path(path_type=Path), default=STATE_DIR, show_default=True, help=help)
