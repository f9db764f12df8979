"""The options for the number of nodes that the filter names (docs/operate/scheduler-config.md)."""

import click

from fractile.extender.filter import BEST
from fractile.extender.naming import Naming
from fractile.extender.score import MAX_SCORE
from fractile.main.grouped import grouped


def leads_of(texts: tuple[str, ...]) -> dict[str, int]:
    """``PROFILE=STEPS`` as numbers. Raises click.BadParameter for other texts."""
    leads: dict[str, int] = {}
    for text in texts:
        profile, _, steps = text.rpartition("=")
        if not (profile and steps.isascii() and steps.isdigit() and int(steps[:4]) <= MAX_SCORE):
            raise click.BadParameter(f"{text!r} is not PROFILE=STEPS with 0 to {MAX_SCORE} steps; 0 means never")
        leads[profile] = int(steps)
    return leads


def _leads(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> dict[str, int]:
    return leads_of(texts)


_OPTIONS = (
    click.option(
        "--name-nodes",
        type=click.IntRange(1, BEST),
        default=BEST,
        show_default=True,
        help="Most nodes that the filter names when more fit. With 1, kube-scheduler's own preferences count only for "
        "pods that have preferences themselves.",
    ),
    click.option(
        "--clear-lead",
        "leads",
        multiple=True,
        metavar="PROFILE=STEPS",
        callback=_leads,
        help="For pods of this kube-scheduler profile, a node that is better than all others by this many steps of "
        "Fractile's scores is the only one named: default-scheduler=2 where the profile has the default weights and "
        "Fractile's is 100. May be repeated.",
    ),
)


def _naming(name_nodes: int, leads: dict[str, int]) -> Naming:
    return Naming(name_nodes, leads)


options = grouped("naming", _OPTIONS, _naming)
