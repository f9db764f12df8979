"""Pass related options of the command line to the command as one argument."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

Command = TypeVar("Command", bound=Callable[..., Any])


def grouped(
    name: str, options: Sequence[Callable[..., Any]], make: Callable[..., object]
) -> Callable[[Command], Command]:
    """A decorator that adds ``options`` and passes their values, combined by ``make``, as the command's argument
    ``name``. The parameters of ``make`` have the names of the options' values; its exceptions are shown like all
    others."""
    taken = tuple(inspect.signature(make).parameters)

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def gathered(*arguments: Any, **given: Any) -> Any:
            made = make(**{each: given.pop(each) for each in taken})
            return command(*arguments, **{name: made}, **given)

        for option in reversed(options):
            gathered = option(gathered)
        return cast("Command", gathered)

    return add
