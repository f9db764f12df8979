"""Which functions read what others wrote, and how they are called.

Whatever is public in these packages and modules and takes bytes, text, plain JSON or a struct of the API as its first
argument is a decoder, unless ``NONE_OF_THEM`` says why it is not. A decoder may return or raise what it declares, and
nothing else.
"""

import importlib
import inspect
import pkgutil
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from fractile.errors import WireError
from fractile.model.units import MemoryUnit, NodeName

PACKAGES = ("fractile.wire", "fractile.region")
MODULES = (
    "fractile.agent.node.cgroup",
    "fractile.agent.gpumanager.claim",
    "fractile.dialects.table",
    "fractile.kube.transport",
    "fractile.model.interconnect",
    "fractile.nvml.library",
    "fractile.nvml.models",
)
AMOUNTS = Mapping[str, Any] | None
FORMS = (bytes, str, str | bytes, object, msgspec.Raw, bytes | msgspec.Raw, Mapping[str, str], AMOUNTS)

NONE_OF_THEM = {
    "dialects.table.container_answer": "takes the name of a resource that the agent itself registered",
    "dialects.table.kind": "takes the name of a resource that the agent itself registered",
    "dialects.table.ids_wanted": "takes the name of a resource that the agent itself registered",
    "dialects.table.torn": "takes the name of a resource that the agent itself registered",
    "wire.kubernetes.admission.allowed": "encodes",
    "wire.kubernetes.admission.refused": "encodes",
    "wire.kubernetes.extender.encode_error": "encodes",
    "wire.kubernetes.extender.encode_scores": "encodes",
    "wire.kubernetes.extender.names_of": "takes what decode_args has checked (tests/extender)",
    "wire.fractile.isolation.encode": "encodes",
    "region.plain.put_aside": "renames what lies in the way; it reads nothing (tests/region)",
    "region.sums.on_card": "takes a region whose size shared and usage have checked (tests/region)",
    "region.sums.in_account": "the same",
    "region.sums.of_slot": "the same",
    "region.sums.of_the_dead": "the same",
    "model.interconnect.links": "takes words that Interconnect's own decoders have checked",
    "wire.foreign.static_pod_lines.check": "takes a text that static_pod has read",
    "wire.foreign.static_pod_lines.appended": "changes the text that static_pod has read",
    "wire.foreign.static_pod_lines.removed": "changes the text that static_pod has read",
    "wire.files.quota_file.encode": "encodes",
    "wire.fractile.resource_class.resource_name": "makes a name of one of ours",
}
_ENCODERS = ("encode", "written")

_ARGUMENTS: dict[str, Any] = {
    "source": "file",
    "node": NodeName("n1"),
    "path": ("spec", "template"),
    "unit": MemoryUnit.MiB,
}
"""What a decoder gets beside the first argument, by name; any other text is "x"."""

_MSGSPEC = "Raises msgspec's errors"


class Decoder(NamedTuple):
    name: str  # module.function, without "fractile."
    call: Callable[[Any], object]
    form: Any  # of the first argument
    declared: tuple[type[Exception], ...]


def decoders() -> list[Decoder]:
    """All of them that we can call, in the order of their names."""
    return sorted((d for d in _found() if not isinstance(d, str)), key=lambda d: d.name)


def uncallable() -> list[str]:
    """What they want beside the first argument that nobody has told us: it should be empty."""
    return [d for d in _found() if isinstance(d, str)]


def _found() -> Iterator[Decoder | str]:
    for module in _modules():
        yield from _in(module)


def _modules() -> Iterator[str]:
    for package in PACKAGES:
        found = importlib.import_module(package)
        yield from (m.name for m in pkgutil.walk_packages(found.__path__, f"{package}."))
    yield from MODULES


def _in(name: str) -> Iterator[Decoder | str]:
    module = importlib.import_module(name)
    for called, function in vars(module).items():
        if called.startswith("_") or inspect.isclass(function) or getattr(function, "__module__", "") != name:
            continue
        if not callable(function) or not (parameters := list(inspect.signature(function).parameters.values())):
            continue
        full = f"{name.removeprefix('fractile.')}.{called}"
        form = typing.get_type_hints(inspect.unwrap(function)).get(parameters[0].name)
        if full in NONE_OF_THEM or called in _ENCODERS or not _from_outside(form):
            continue
        call = _bound(function, parameters[1:])
        yield call if isinstance(call, str) else Decoder(full, call, form, _declared(function))


def _from_outside(form: Any) -> bool:
    return form in FORMS or (inspect.isclass(form) and issubclass(form, msgspec.Struct) and _of_the_api(form))


def _of_the_api(form: type[msgspec.Struct]) -> bool:
    """Objects that others write: they have metadata."""
    return "metadata" in form.__struct_fields__


def _bound(function: Callable[..., object], others: list[inspect.Parameter]) -> Callable[[Any], object] | str:
    wanted = [p for p in others if p.default is inspect.Parameter.empty and p.kind is not p.VAR_KEYWORD]
    hints = typing.get_type_hints(inspect.unwrap(function))
    if unknown := [p.name for p in wanted if p.name not in _ARGUMENTS and hints.get(p.name) is not str]:
        return f"{function.__module__}.{function.__name__} takes {', '.join(unknown)}"
    positional = [_ARGUMENTS.get(p.name, "x") for p in wanted if p.kind is not p.KEYWORD_ONLY]
    named = {p.name: _ARGUMENTS.get(p.name, "x") for p in wanted if p.kind is p.KEYWORD_ONLY}
    return lambda first: function(first, *positional, **named)


def _declared(function: Callable[..., object]) -> tuple[type[Exception], ...]:
    if _MSGSPEC in (inspect.getdoc(function) or ""):
        return (WireError, msgspec.MsgspecError, UnicodeError, RecursionError)
    return (WireError,)
