"""Options of the command line that belong together come to the command as one argument."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

Command = TypeVar("Command", bound=Callable[..., Any])


def grouped(
    name: str, options: Sequence[Callable[..., Any]], make: Callable[..., object]
) -> Callable[[Command], Command]:
    """A decorator: adds ``options``, and the command gets ``make`` of their values as its argument ``name``. The
    parameters of ``make`` are named as the options' values are; what it raises is shown as every error is."""
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
