"""``sharing.yaml``, version 1: how cards may be cut, for a cluster, its pools and its models of cards.

    version: 1
    default: {maxSlices: 4, fractions: [1/4, 1/2, 1]}
    pools:
      training: {fractions: [1]}
    models:
      Tesla T4: {maxSlices: 2}

People write it by hand, so every error names the file, the line and the remedy. docs/operate/sharing.md describes it.
"""

from collections.abc import Iterator
from fractions import Fraction

import yaml

from fractile.errors import WireError
from fractile.model.sharing import ClusterSharing, Partial

POOL_LABEL = "fractile.dev/pool"  # label of a Node
VERSION = 1
MOST_SLICES = 1000
_MOST_NAMES = 1000
_MOST_FRACTIONS = 16
_MOST_CHARACTERS = 2**20  # as a ConfigMap


class _Wrong(Exception):
    """An error at a place in the file."""

    def __init__(self, node: yaml.Node, problem: str) -> None:
        super().__init__(problem)
        self.line = node.start_mark.line + 1


def decode(text: str, source: str) -> ClusterSharing:
    """Decode the rules; WireError, with the line, when the file is invalid."""
    try:
        if len(text) > _MOST_CHARACTERS:
            raise WireError(f"{source}: it is larger than 1 MiB; remove everything that is not a rule")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        return ClusterSharing() if root is None else _sharing(root)
    except yaml.MarkedYAMLError as e:
        line = e.problem_mark.line + 1 if e.problem_mark else 1
        raise WireError(f"{source}: line {line}: {e.problem or 'cannot be read'}; correct the YAML") from None
    except yaml.YAMLError:
        raise WireError(f"{source}: it is not YAML; see docs/operate/sharing.md for its form") from None
    except RecursionError:
        raise WireError(f"{source}: it is nested too deep; see docs/operate/sharing.md for its form") from None
    except _Wrong as e:
        raise WireError(f"{source}: line {e.line}: {e}") from None


def _sharing(root: yaml.Node) -> ClusterSharing:
    fields = dict(_fields(root, ("version", "default", "pools", "models")))
    version = fields.get("version")
    if version is None or _text(version, "version") != str(VERSION):
        raise _Wrong(version or root, f"version is missing or wrong; it must be {VERSION}")
    return ClusterSharing(
        default=_partial(fields["default"]) if "default" in fields else Partial(),
        pools=tuple(_named(fields.get("pools"))),
        models=tuple(_named(fields.get("models"))),
    )


def _named(node: yaml.Node | None) -> Iterator[tuple[str, Partial]]:
    if node is None:
        return
    for n, (name, rule) in enumerate(_fields(node, ())):
        if not name or n == _MOST_NAMES:
            raise _Wrong(rule, "a name must not be empty" if not name else f"there are more than {_MOST_NAMES} names")
        yield name, _partial(rule)


def _partial(node: yaml.Node) -> Partial:
    fields = dict(_fields(node, ("maxSlices", "fractions")))
    return Partial(
        max_slices=_slices(fields["maxSlices"]) if "maxSlices" in fields else None,
        fractions=_fractions(fields["fractions"]) if "fractions" in fields else None,
    )


def _slices(node: yaml.Node) -> int:
    text = _text(node, "maxSlices")
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and int(text) <= MOST_SLICES):
        raise _Wrong(node, f"maxSlices is {text[:20]!r}; write a number up to {MOST_SLICES}, 0 for as many as fit")
    return int(text)


def _fractions(node: yaml.Node) -> tuple[Fraction, ...]:
    if not isinstance(node, yaml.SequenceNode):
        raise _Wrong(node, "fractions must be a list, such as [1/4, 1/2, 1]; [] allows every size")
    if len(node.value) > _MOST_FRACTIONS:
        raise _Wrong(node, f"there are more than {_MOST_FRACTIONS} fractions")
    found = sorted({_fraction(item) for item in node.value})
    return tuple(found)


def _fraction(node: yaml.Node) -> Fraction:
    text = _text(node, "a fraction").replace(" ", "")
    over, slash, under = text.partition("/")
    numbers = (over, under) if slash else (over, "1")
    if not all(n.isascii() and n.isdigit() and len(n) <= 4 and int(n) for n in numbers):
        raise _Wrong(node, f"{text[:20]!r} is not a fraction; write for instance 1/4")
    found = Fraction(int(numbers[0]), int(numbers[1]))
    if found > 1:
        raise _Wrong(node, f"{text[:20]} is more than a card; write 1 for a whole card")
    return found


def _fields(node: yaml.Node, known: tuple[str, ...]) -> Iterator[tuple[str, yaml.Node]]:
    """Name and value of each field; ``known``: the allowed names, empty for any."""
    if not isinstance(node, yaml.MappingNode):
        raise _Wrong(node, f"here must be fields: {', '.join(known) or 'a name and its rules'}")
    seen: set[str] = set()
    for key, value in node.value:
        name = _text(key, "a name")
        if known and name not in known:
            raise _Wrong(key, f"{name[:40]!r} is not a known field; the fields are {', '.join(known)}")
        if name in seen:
            raise _Wrong(key, f"{name[:40]!r} appears twice; remove one")
        seen.add(name)
        yield name, value


def _text(node: yaml.Node, what: str) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise _Wrong(node, f"{what} must be a single value")
    return str(node.value)
