"""Shapes of nodes that may be added: those of the cluster, or as written by the user."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from fractile.errors import WireError
from fractile.sim.snapshot.build import generic_cards
from fractile.sim.snapshot.cluster_snapshot import Machine
from fractile.sim.snapshot.demand import mebibytes, milli
from fractile.wire.output.plan import NodeShape

KEYS = ("cpu", "memory", "gpus", "model", "card_memory")
_MOST = 4  # shapes of the cluster that are compared when none is named
_MOST_GPUS = 64


def shape_of(text: str, machines: Sequence[Machine]) -> tuple[str, Machine]:
    """Parse a node's name, a card model, or cpu=..,memory=..[,gpus=..,model=..,card_memory=..]. WireError otherwise."""
    if "=" in text:
        return text, _written(text, machines)
    named = next((m for m in machines if m.name == text), None)
    if named is not None:
        return text, fresh(named)
    alike = [m for m in machines if m.cards and m.model == text]
    if not alike:
        models = ", ".join(sorted({m.model for m in machines if m.cards})[:20]) or "none"
        raise WireError(f"--shape {text!r} is neither a node nor a model of GPU (known: {models}); or write {_form()}")
    return text, fresh(_commonest(alike)[0])


def shapes_in(machines: Sequence[Machine]) -> list[tuple[str, Machine]]:
    """The commonest shapes with GPUs; if there are none, the commonest of all."""
    gpus = [m for m in machines if m.cards] or list(machines)
    return [(name_of(m), fresh(m)) for m in _commonest(gpus)[:_MOST]]


def name_of(machine: Machine) -> str:
    """The shape's name: "8x T4 with 96 CPUs and 384 GiB"."""
    cards = f"{len(machine.cards)}x {machine.model} with " if machine.cards else ""
    return f"{cards}{machine.cpu / 1000:g} CPUs and {machine.memory / 1024:.4g} GiB"


def fresh(machine: Machine) -> Machine:
    """A new node of the kind: with the same labels except its name, healthy, and open to all pods."""
    cards = generic_cards("new", len(machine.cards), model=machine.model, memory=0)
    cards = tuple(
        msgspec.structs.replace(new, model=old.model, memory=old.memory, properties=old.properties)
        for new, old in zip(cards, machine.cards, strict=True)
    )
    return msgspec.structs.replace(machine, name="new", cards=cards, taints=(), cordoned=False, withheld=())


def copies(machine: Machine, number: int) -> tuple[Machine, ...]:
    """``number`` copies, with names."""
    return tuple(msgspec.structs.replace(machine, name=f"new-{i}") for i in range(number))


def described(name: str, machine: Machine) -> NodeShape:
    """The shape as it is reported."""
    cards = machine.cards
    return NodeShape(name, machine.cpu, machine.memory, len(cards), machine.model, cards[0].memory if cards else 0)


def _commonest(machines: Sequence[Machine]) -> list[Machine]:
    """One node of each kind, the commonest kind first; among equals, in order of appearance."""
    counted = Counter((m.cpu, m.memory, m.model, len(m.cards)) for m in machines)
    first: dict[object, Machine] = {}
    for m in machines:
        first.setdefault((m.cpu, m.memory, m.model, len(m.cards)), m)
    return [first[kind] for kind, _ in counted.most_common()]


def _written(text: str, machines: Sequence[Machine]) -> Machine:
    given: dict[str, str] = {}
    for pair in text.split(","):
        key, sign, value = (part.strip() for part in pair.partition("="))
        if key not in KEYS or not sign or not value or key in given:
            raise WireError(f"--shape {text!r}: {pair.strip()!r} is not understood; write {_form()}")
        given[key] = value
    for needed in ("cpu", "memory"):
        if needed not in given:
            raise WireError(f"--shape {text!r} does not say {needed}; write {_form()}")
    gpus = given.get("gpus", "0")
    if not (gpus.isascii() and gpus.isdigit() and int(gpus) <= _MOST_GPUS):
        raise WireError(f"--shape {text!r}: gpus is {gpus!r}; write a number from 0 to {_MOST_GPUS}")
    model = given.get("model", "")
    if int(gpus) and not model:
        raise WireError(f"--shape {text!r} does not say the model of its GPUs; write {_form()}")
    return _built(text, given, gpus=int(gpus), model=model, machines=machines)


def _built(text: str, given: dict[str, str], *, gpus: int, model: str, machines: Sequence[Machine]) -> Machine:
    """The node of a written shape. If no card memory is given, it is that of the cluster's cards of the model."""
    known = next((c.memory for m in machines for c in m.cards if c.model == model), 0)
    try:
        cpu, memory = milli(given["cpu"], "cpu"), mebibytes(given["memory"], "memory")
        card = mebibytes(given["card_memory"], "card_memory") if "card_memory" in given else known
    except WireError as e:
        raise WireError(f"--shape {text!r}: {e}") from None
    if not (cpu and memory):
        raise WireError(f"--shape {text!r}: a node needs CPU and memory")
    slots = max((m.slots for m in machines), default=0)
    return Machine("new", cpu, memory, generic_cards("new", gpus, model=model, memory=card), slots=slots)


def _form() -> str:
    return "cpu=64,memory=256Gi,gpus=8,model=A100[,card_memory=80Gi]"
