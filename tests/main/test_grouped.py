import click
from click.testing import CliRunner

from fractile.errors import SetupError
from fractile.main.grouped import grouped


def _pair(first: int, second: str) -> tuple[int, str]:
    if first < 0:
        raise SetupError("--first is negative; give 0 or more")
    return first, second


_OPTIONS = (
    click.option("--first", type=int, default=1, help="One."),
    click.option("--second", default="two", help="Two."),
)


@click.command
@click.option("--before", default="b")
@grouped("pair", _OPTIONS, _pair)
@click.option("--after", default="a")
def command(before: str, pair: tuple[int, str], after: str) -> None:
    click.echo(f"{before} {pair} {after}")


def test_options_that_belong_together_come_as_one_argument() -> None:
    assert CliRunner().invoke(command, ["--second", "x"]).output == "b (1, 'x') a\n"


def test_help_shows_them_in_the_order_of_the_decorators() -> None:
    shown = CliRunner().invoke(command, ["--help"]).output
    places = [shown.index(f"--{name}") for name in ("before", "first", "second", "after")]
    assert places == sorted(places)


def test_what_they_cannot_make_is_an_error_of_the_command() -> None:
    assert isinstance(CliRunner().invoke(command, ["--first", "-1"]).exception, SetupError)
