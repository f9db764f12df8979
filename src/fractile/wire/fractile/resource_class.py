"""``ResourceClass`` objects (CRD fractile.dev/v1alpha1, cluster-scoped), and the names by which containers ask for one.

The API server checks them with the CRD's rules (deploy/manifests/11-resourceclass.yaml). ``decode`` repeats the checks,
since an object may be older than a rule, and returns what is wrong as a value, which becomes the class's status.
"""

import re

import msgspec

from fractile.model.card import GPU
from fractile.model.device_class import DeviceClass, Operator, PropertyRequirement
from fractile.model.units import MiB, Percent
from fractile.wire.fractile.extended_resource import API_VERSION
from fractile.wire.kubernetes.objects import KubeStruct, ObjectMeta
from fractile.wire.measure import measure

KIND = "ResourceClass"
PLURAL = "resourceclasses"

RESOURCE_PREFIX = "class.fractile.dev/"  # plus a class's name: the resource that counts its units
GPU_SLOT = "fractile.dev/gpu"  # added by the webhook for a class of GPUs; alone: whole GPUs of any kind
DEVICE_SLOT = "fractile.dev/device"  # the same for a class of any other devices

INVALID = "Invalid"  # status.reason of an invalid class

MOST_REQUIREMENTS = 32
MOST_VALUES = 64
MOST_COUNT = 64
_MIB = 2**20
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")  # of an object, and the name part of a resource
_TYPE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_KEY = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LONGEST = 253


class MatchExpression(KubeStruct, frozen=True):
    key: str = ""
    operator: str = ""
    values: list[str | int] | None = None


class DeviceSelector(KubeStruct, frozen=True):
    match_labels: dict[str, str | int] | None = None
    match_expressions: list[MatchExpression] | None = None


class ResourceClassSpec(KubeStruct, frozen=True):
    device_type: str = GPU
    selector: DeviceSelector | None = None
    memory: str | int = ""
    cores: int = 0
    count: int = 1


class DeviceCounts(KubeStruct, frozen=True):
    """Devices of the class; ``free`` ones are healthy and completely unused."""

    total: int = 0
    free: int = 0
    unhealthy: int = 0


class UnitCounts(KubeStruct, frozen=True):
    """Units of the class in the cluster: if none were held, and those that still fit now."""

    total: int = 0
    free: int = 0


class ResourceClassStatus(KubeStruct, frozen=True):
    devices: DeviceCounts = DeviceCounts()
    units: UnitCounts = UnitCounts()
    reason: str = ""  # one word; "" when all is well
    message: str = ""
    observed_generation: int = 0
    last_transition_time: str = ""  # of the reason


class ClassMeta(ObjectMeta, frozen=True):
    generation: int = 0


class ResourceClass(KubeStruct, frozen=True, kw_only=True):
    api_version: str = API_VERSION
    kind: str = KIND
    metadata: ClassMeta = ClassMeta()
    spec: ResourceClassSpec = ResourceClassSpec()
    status: ResourceClassStatus = ResourceClassStatus()


class Invalid(msgspec.Struct, frozen=True):
    """Why an object is not a valid class: one sentence without a final stop."""

    message: str
    reason: str = INVALID


class _Wrong(Exception):
    """Carries the sentence of ``Invalid``."""


def resource_name(name: str) -> str:
    """The resource by which containers ask for units of the class."""
    return f"{RESOURCE_PREFIX}{name}"


def class_of(resource: str) -> str | None:
    """The class whose units the resource counts; None when it is another resource."""
    return resource.removeprefix(RESOURCE_PREFIX) if resource.startswith(RESOURCE_PREFIX) else None


def decode(resource: ResourceClass) -> DeviceClass | Invalid:
    """The class that the object describes, or what is wrong with it."""
    spec = resource.spec
    try:
        return DeviceClass(
            name=_matching(_NAME, resource.metadata.name, "the name"),
            device_type=_matching(_TYPE, spec.device_type, "spec.deviceType"),
            requirements=_requirements(spec.selector or DeviceSelector()),
            memory=_memory(spec),
            cores=_cores(spec),
            count=_number(spec.count, "spec.count", most=MOST_COUNT),
        )
    except _Wrong as e:
        return Invalid(str(e))


def _requirements(selector: DeviceSelector) -> tuple[PropertyRequirement, ...]:
    labels = sorted((selector.match_labels or {}).items())
    expressions = selector.match_expressions or []
    if len(labels) > MOST_REQUIREMENTS or len(expressions) > MOST_REQUIREMENTS:
        raise _Wrong(f"spec.selector has more than {MOST_REQUIREMENTS} conditions of one kind")
    return (
        *(PropertyRequirement(_key(key), Operator.IN, (_value(value, key),)) for key, value in labels),
        *(_requirement(e) for e in expressions),
    )


def _requirement(expression: MatchExpression) -> PropertyRequirement:
    key = _key(expression.key)
    try:
        operator = Operator(expression.operator)
    except ValueError:
        known = ", ".join(Operator)
        raise _Wrong(f"the operator {expression.operator[:40]!r} of {key} is unknown; there are {known}") from None
    values = tuple(_value(v, key) for v in expression.values or ())
    if operator in (Operator.EXISTS, Operator.DOES_NOT_EXIST):
        if values:
            raise _Wrong(f"{operator} of {key} takes no values")
    elif not operator.ordered:
        if not 1 <= len(values) <= MOST_VALUES:
            raise _Wrong(f"{operator} of {key} takes 1 to {MOST_VALUES} values, not {len(values)}")
    elif len(values) != 1:
        raise _Wrong(f"{operator} of {key} takes one value, not {len(values)}")
    elif measure(values[0]) is None:
        raise _Wrong(f"{operator} of {key} needs a quantity such as 10GiB or 1.5GHz, not {values[0][:40]!r}")
    return PropertyRequirement(key, operator, values)


def _key(text: str) -> str:
    return _matching(_KEY, text, "a key of spec.selector")


def _value(written: str | int, key: str) -> str:
    text = str(written) if isinstance(written, str) or abs(written) < 2**63 else ""
    if not 1 <= len(text) <= _LONGEST:
        raise _Wrong(f"a value of {key} must have 1 to {_LONGEST} characters")
    return text


def _memory(spec: ResourceClassSpec) -> MiB:
    """The memory, rounded up to MiB, so that a request for 4GB gets no less."""
    if spec.memory == "":
        return MiB(0)
    size = measure(_value(spec.memory, "spec.memory"))
    if size is None or size.unit not in ("", "B") or size.value < _MIB:
        raise _Wrong(f"spec.memory must be a quantity of at least 1Mi, such as 4Gi, not {str(spec.memory)[:40]!r}")
    _of_gpus(spec, "spec.memory")
    return MiB(-int(-size.value // _MIB))


def _cores(spec: ResourceClassSpec) -> Percent:
    if spec.cores:
        _of_gpus(spec, "spec.cores")
    return Percent(_number(spec.cores, "spec.cores", least=0, most=100))


def _of_gpus(spec: ResourceClassSpec, field: str) -> None:
    if spec.device_type != GPU:
        raise _Wrong(f"{field} is only for deviceType {GPU}; devices of other types state how many pods share them")


def _number(value: int, field: str, *, least: int = 1, most: int) -> int:
    if not least <= value <= most:
        raise _Wrong(f"{field} must be {least} to {most}")
    return value


def _matching(form: re.Pattern[str], text: str, what: str) -> str:
    if form.fullmatch(text) is None:
        raise _Wrong(f"{what} is {text[:80]!r}; it must consist of at most 63 letters, digits, '-' and '.'")
    return text


decoder = msgspec.json.Decoder(ResourceClass)
