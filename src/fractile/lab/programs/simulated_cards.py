"""``fractile simulated-cards``: writes the file from which simgpu makes the cards of a node without GPUs
(docs/develop/simgpu.md)."""

from pathlib import Path

import click

from fractile.lab.cluster.node import cards_file
from fractile.lab.cluster.spec import from_options

NAME = "cards.json"


@click.command("simulated-cards")
@click.option("--node-name", required=True, help="Name of the node; the cards' UUIDs are derived from it.")
@click.option("--cards", required=True, metavar="CARDS", help="The cards, such as '2x Tesla-V100 16276MiB'.")
@click.option("--directory", type=click.Path(path_type=Path), required=True, help="The node's folder for simgpu.")
def command(node_name: str, cards: str, directory: Path) -> None:
    """Write DIRECTORY/cards.json, unless it exists: cards that pods hold must not change."""
    (node,) = from_options(node_name, nodes=1, cards=cards).nodes
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / NAME
    if file.exists():
        click.echo(f"{file} exists already")
        return
    temporary = file.with_suffix(".new")
    temporary.write_text(cards_file(node))
    temporary.chmod(0o644)  # containers of any user read it
    temporary.replace(file)
    click.echo(f"{file}: {len(node.cards)} cards")
