"""Which modules are mutated, and the tests that must notice: each module's own, no others."""

import msgspec


class Modules(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # of several that belong together: GROUP/PART
    sources: tuple[str, ...]  # glob patterns below the repository's root
    tests: tuple[str, ...]  # files or folders for pytest


def _of_ledger(module: str, *also: str) -> Modules:
    """A module of the ledger against the file of tests that has its name, and others."""
    tests = tuple(f"tests/ledger/test_{name}.py" for name in (module, *also))
    return Modules(name=f"ledger/{module}", sources=(f"src/fractile/ledger/{module}.py",), tests=tests)


def heads() -> tuple[str, ...]:
    """The names of the groups."""
    return tuple(dict.fromkeys(group.name.partition("/")[0] for group in MODULES))


MODULES = (
    _of_ledger("arrays", "card_arrays", "views"),
    _of_ledger("bounds"),
    _of_ledger("classes"),
    _of_ledger("digest"),
    _of_ledger("held"),
    _of_ledger("layers"),
    _of_ledger("ledger", "views", "rules", "precedence"),
    _of_ledger("live"),
    _of_ledger("node_rules"),
    _of_ledger("node_totals"),
    _of_ledger("precedence"),
    _of_ledger("scan", "needs"),
    _of_ledger("usage"),
    _of_ledger("wishes"),
    Modules(
        name="cards",
        sources=(
            "src/fractile/policy/cards/choice.py",
            "src/fractile/policy/cards/distance.py",
            "src/fractile/policy/cards/kinds.py",
        ),
        tests=(
            "tests/policy/cards/test_choice.py",
            "tests/policy/cards/test_distance.py",
            "tests/policy/cards/test_topology.py",
        ),
    ),
    Modules(
        name="bind",
        sources=("src/fractile/extender/bind.py",),
        tests=(
            "tests/extender/test_bind.py",
            "tests/extender/test_bind_choice.py",
            "tests/extender/test_bind_late.py",
            "tests/extender/test_bind_quota.py",
            "tests/extender/test_bind_wakes.py",
        ),
    ),
    Modules(
        name="prestart",
        sources=("src/fractile/agent/deviceplugin/prestart.py",),
        tests=(
            "tests/agent/deviceplugin/test_prestart.py",
            "tests/agent/deviceplugin/test_prestart_choice.py",
            "tests/agent/deviceplugin/test_prestart_room.py",
        ),
    ),
    Modules(
        name="owner",
        sources=("src/fractile/agent/kubelet/owner.py", "src/fractile/agent/node/owners.py"),
        tests=(
            "tests/agent/kubelet/test_owner.py",
            "tests/agent/kubelet/test_owner_listed.py",
            "tests/agent/node/test_owners.py",
        ),
    ),
    Modules(
        name="assumed",
        sources=("src/fractile/reconcile/assumed_pods.py",),
        tests=("tests/reconcile/test_assumed_pods.py",),
    ),
)
