"""A class for every model in the cluster, named by a template, so that models can be requested without a manifest.

A class is ours while it carries the digest of the spec that we wrote; changing the spec makes it the user's.
Models to which the template gives the same name ("Tesla V100", "tesla  v100") share one class. A name that a user's
class has is left alone. Pure: takes the models and the classes, returns what is to be done.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from string import Formatter

import msgspec

from fractile.classes.book import BookedClass
from fractile.errors import SetupError
from fractile.model.card import GPU, Card
from fractile.model.device_class import DeviceClass, Operator, PropertyRequirement
from fractile.wire.fractile.resource_class import MOST_VALUES, DeviceSelector, MatchExpression, ResourceClassSpec

FIELDS = ("vendor", "model", "type")
_LONGEST = 63  # characters of a class's name
_DIGEST = 8
_NVIDIA = "NVIDIA"  # the only cards that are detected without a device file
_STRANGE = re.compile(r"[^a-z0-9-]+")


class WantedClass(msgspec.Struct, frozen=True, order=True):
    """A default class as it should be."""

    name: str
    device_type: str
    models: tuple[str, ...]

    def spec(self) -> ResourceClassSpec:
        expression = MatchExpression(key="model", operator=Operator.IN.value, values=list(self.models))
        selector = DeviceSelector(match_expressions=[expression])
        return ResourceClassSpec(device_type=self.device_type, selector=selector)

    @property
    def meaning(self) -> DeviceClass:
        return DeviceClass(self.name, self.device_type, (PropertyRequirement("model", Operator.IN, self.models),))


def checked(template: str) -> str:
    """The template. Raises SetupError when it cannot produce names."""
    try:
        fields = {field for _, field, _, _ in Formatter().parse(template) if field is not None}
    except ValueError as e:
        raise SetupError(f"--default-classes {template!r} is not a template: {e}") from None
    if "model" not in fields or not fields <= set(FIELDS):
        known = ", ".join(f"{{{f}}}" for f in FIELDS)
        raise SetupError(f"--default-classes {template!r} must contain {{model}}, and no other fields than {known}")
    return template


def wanted(template: str, cards: Iterable[Card]) -> dict[str, WantedClass]:
    """The default classes of these devices by name; one card of each kind is enough."""
    models: dict[tuple[str, str], set[str]] = {}
    for card in cards:
        if card.model and (name := name_of(template, card)):
            models.setdefault((name, card.type), set()).add(card.model)
    found: dict[str, WantedClass] = {}
    # GPUs come first: a device of another type whose class would have the same name gets its type added.
    for (name, device_type), named in sorted(models.items(), key=lambda item: (item[0][1] != GPU, item[0])):
        own = name if name not in found else _fitting(f"{name}.{device_type}")
        found.setdefault(own, WantedClass(own, device_type, tuple(sorted(named))[:MOST_VALUES]))
    return found


def name_of(template: str, card: Card) -> str:
    """The name that the template makes for the card; "" if nothing usable is left of it."""
    vendor = card.properties.get("vendor") or (_NVIDIA if card.type == GPU else "")
    model = card.model
    if vendor and model.lower().startswith(f"{vendor.lower()} "):
        model = model[len(vendor) + 1 :]
    return _fitting(template.format(vendor=vendor, model=model, type=card.type))


def missing(wishes: Mapping[str, WantedClass], classes: Mapping[str, BookedClass]) -> list[WantedClass]:
    """Default classes that do not exist yet."""
    return [wish for name, wish in sorted(wishes.items()) if name not in classes]


def outdated(wishes: Mapping[str, WantedClass], classes: Mapping[str, BookedClass]) -> list[WantedClass]:
    """Our classes whose models are no longer the present ones."""
    return [
        wish
        for name, wish in sorted(wishes.items())
        if (entry := classes.get(name)) is not None and entry.ours and entry.meaning != wish.meaning
    ]


def stale(wishes: Mapping[str, WantedClass], classes: Mapping[str, BookedClass]) -> list[str]:
    """Our classes whose last device is gone."""
    return sorted(name for name, entry in classes.items() if entry.ours and name not in wishes)


def _fitting(text: str) -> str:
    """Words of letters, digits and hyphens with dots between them, 63 characters at most; a longer one ends with a
    digest of the whole, so that different names stay different."""
    words = (word.strip("-") for word in _STRANGE.sub(".", text.lower()).split("."))
    name = ".".join(word for word in words if word)
    if len(name) <= _LONGEST:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
    return f"{name[: _LONGEST - _DIGEST - 1].rstrip('-.')}-{digest}"
