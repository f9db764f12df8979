"""`fractile limits`: what one container may use and what its processes use, read from two files without a cluster."""

from pathlib import Path

import click

from fractile.cli.text import limits as limits_text
from fractile.errors import SetupError
from fractile.region import directory
from fractile.region.page import FLAG_LOST, FLAG_OFF, CardLimits, ContainerLimits
from fractile.region.usage import RegionUsage, SliceCardUsage, SliceProcess, Unreadable, lost, usage
from fractile.wire.output import slice_use
from fractile.wire.output.slice_use import CardUse, HeldOnCard, ProcessUse, SliceUse


@click.command("limits")
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path), default=Path(directory.MOUNT))
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="json: the fields of docs/reference/cli.md, in bytes.",
)
def command(folder: Path, output: str) -> None:
    """Show what the container of DIR may use of its cards, and what its processes use.

    DIR is a token directory on the node, /var/lib/fractile/slices/TOKEN. Inside a container DIR is not needed: the
    default is /etc/fractile.
    """
    limits = _limits(folder)
    region = folder / directory.REGION
    if limits.flags & FLAG_LOST:
        found = lost(limits)
    else:
        found = usage(region, cards=len(limits.cards), generation=limits.generation)
    use = report(limits, found, region=region)
    click.echo(slice_use.encode(use) if output == "json" else limits_text.table(use), nl=output == "json")


def report(limits: ContainerLimits, found: RegionUsage | Unreadable, *, region: Path) -> SliceUse:
    """Combine the two files. For an unreadable region, the report has only the reason."""
    unknown = isinstance(found, Unreadable)
    cards: tuple[SliceCardUsage | None, ...] = (None,) * len(limits.cards) if unknown else found.cards
    return SliceUse(
        pod_uid=limits.pod_uid,
        namespace=limits.namespace,
        pod=limits.pod,
        container=limits.container,
        enforced=not limits.flags & FLAG_OFF,
        cards=tuple(_card(limit, used) for limit, used in zip(limits.cards, cards, strict=True)),
        processes=() if unknown else tuple(_process(process, limits) for process in found.processes),
        problem=_problem(found, region) if unknown else "",
    )


def _problem(found: Unreadable, region: Path) -> str:
    said = f"{region} cannot be used: {found.reason}"
    folder = region.parents[1]
    if not found.empty or folder == Path(directory.MOUNT):
        return said
    return (
        f"{said}, unless the agent has mounted a file over it in its own mount namespace; to look there: nsenter -t "
        f"PID-OF-AGENT -m fractile limits {folder}"
    )


def _limits(folder: Path) -> ContainerLimits:
    if not folder.is_dir():
        raise SetupError(f"there is no such directory: {folder}")
    found = directory.read(folder)
    if found is None:
        raise SetupError(f"{folder} holds no limits: nothing has been granted to it, or it is not a token directory")
    return found


def _card(limit: CardLimits, used: SliceCardUsage | None) -> CardUse:
    return CardUse(
        uuid=limit.uuid,
        memory_bytes=limit.memory,
        context_bytes=limit.context,
        unaccounted_bytes=limit.unaccounted,
        cores=limit.cores,
        cores_limit=limit.cores_limit,
        weight=limit.weight,
        used_bytes=used.used if used else None,
        peak_bytes=used.peak if used else None,
        shared_bytes=used.shared if used else None,
        refusals=used.refusals if used else None,
    )


def _process(process: SliceProcess, limits: ContainerLimits) -> ProcessUse:
    held = tuple(
        HeldOnCard(uuid=limits.cards[h.card].uuid, bytes=h.bytes, contexts=h.contexts, gpu_ns=h.gpu_ns)
        for h in process.held
    )
    return ProcessUse(pid=process.pid, command=process.command, cards=held)
