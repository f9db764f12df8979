"""The texts of --help: words that all commands share, and options that are called the same everywhere."""

import importlib
import re
from collections.abc import Iterator

import click
import pytest

from fractile.main.cli import COMMANDS

OPTIONS_OF_AUTHORITIES = re.compile(r"^--(tls-|client-|webhook-)?ca$")


def options() -> Iterator[tuple[str, click.Option]]:
    for command in sorted(COMMANDS.keys() - {"kubectl"}):
        for parameter in importlib.import_module(COMMANDS[command][0]).command.params:
            if isinstance(parameter, click.Option):
                yield command, parameter


def shown(command: str) -> str:
    """Its help on one line."""
    found = importlib.import_module(COMMANDS[command][0]).command
    return " ".join(found.get_help(click.Context(found, info_name=command)).split())


def test_the_name_of_a_cluster_is_called_so_everywhere() -> None:
    names = {command: option.metavar for command, option in options() if "--name" in option.opts}

    assert {"up", "down", "demo", "debug-state", "inspect", "why"} <= names.keys()
    assert set(names.values()) == {"CLUSTER"}


def test_every_option_that_takes_a_ca_calls_it_that() -> None:
    found = {
        f"{command} {option.opts[0]}": option.help or ""
        for command, option in options()
        if any(map(OPTIONS_OF_AUTHORITIES.match, option.opts))
    }

    assert {"top --ca", "control-plane --client-ca", "control-plane --webhook-ca", "debug-state --ca"} <= found.keys()
    assert [option for option, said in found.items() if "certificate authority (CA)" not in said] == []


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("control-plane", "A client with the token in this file may read /debug/state"),
        ("down", "except the last part of each log."),
        ("top", "a PEM file of the certificate authority (CA) that signed their certificates"),
    ],
)
def test_the_help_says(command: str, sentence: str) -> None:
    assert sentence in shown(command)
