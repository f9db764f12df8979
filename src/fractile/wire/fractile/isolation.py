"""``fractile.dev/isolation-state`` on a pod: the limits of its GPUs are not enforced, and why. Written by agents only.

fractile.dev/isolation-state: "off: its node has the label fractile.dev/isolation=off"
"""

STATE = "fractile.dev/isolation-state"

_OFF = "off: "


def encode(reason: str) -> str:
    """The value for a pod whose limits are not enforced; other pods have no such annotation."""
    return _OFF + reason


def reason(value: str) -> str:
    """Why it is off, from any form of the annotation."""
    return value.removeprefix(_OFF)
