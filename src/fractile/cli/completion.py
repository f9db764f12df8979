"""`fractile completion`: prints the completion script of a shell."""

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the tab completion script of a shell.

    bash: put `eval "$(fractile completion bash)"` into ~/.bashrc; zsh likewise into ~/.zshrc; fish: write the script to
    ~/.config/fish/completions/fractile.fish.
    """
    found = get_completion_class(shell)
    assert found is not None  # click.Choice admits only shells that click knows
    click.echo(found(ctx.find_root().command, {}, "fractile", "_FRACTILE_COMPLETE").source())
