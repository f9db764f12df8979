"""Choose between compiled arithmetic and numpy. The figures are the same."""

import importlib
import importlib.util
from collections.abc import Callable

import msgspec

from fractile.policy.nodes import fragmentation
from fractile.policy.nodes.policies.table import find
from fractile.policy.nodes.policy import Policy
from fractile.sim.fill import Fragments


class Kernel(msgspec.Struct, frozen=True):
    policy: Callable[[str], Policy]
    fragments: Fragments


def available() -> bool:
    """Whether numba is installed: the wheel's extra ``fast``."""
    return importlib.util.find_spec("numba") is not None


def kernel_of(*, compiled: bool) -> Kernel:
    """The kernel to use. Importing the compiled one takes a second, and half a minute the first time on a machine."""
    if not compiled:
        return Kernel(_known, fragmentation.fragments)
    module = importlib.import_module("fractile.policy.nodes.policies.compiled")
    return Kernel(lambda name: module.compiled(name, _known(name)), module.fragments)


def _known(name: str) -> Policy:
    policy = find(name)
    assert policy is not None  # the command line was checked
    return policy
