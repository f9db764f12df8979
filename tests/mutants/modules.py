"""Which modules are mutated, and the tests that must notice: each module's own, no others."""

import msgspec


class Modules(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    sources: tuple[str, ...]  # glob patterns below the repository's root
    tests: tuple[str, ...]  # files or folders for pytest


MODULES = (
    Modules(
        name="ledger",
        sources=("src/fractile/ledger/*.py",),
        tests=("tests/ledger", "tests/property/test_ledger.py", "tests/property/test_usage.py"),
    ),
    Modules(
        name="cards",
        sources=("src/fractile/policy/cards.py",),
        tests=("tests/policy/test_cards.py", "tests/policy/test_topology.py", "tests/property/test_policy.py"),
    ),
    Modules(
        name="bind",
        sources=("src/fractile/extender/bind.py",),
        tests=(
            "tests/extender/test_bind.py",
            "tests/extender/test_bind_choice.py",
            "tests/extender/test_bind_quota.py",
        ),
    ),
    Modules(
        name="prestart",
        sources=("src/fractile/agent/prestart.py",),
        tests=(
            "tests/agent/test_prestart.py",
            "tests/agent/test_prestart_choice.py",
            "tests/agent/test_prestart_room.py",
        ),
    ),
    Modules(
        name="owner",
        sources=("src/fractile/agent/owner.py", "src/fractile/agent/owners.py"),
        tests=("tests/agent/test_owner.py", "tests/agent/test_owner_listed.py", "tests/agent/test_owners.py"),
    ),
    Modules(
        name="doubt",
        sources=("src/fractile/control/doubt.py",),
        tests=("tests/control/test_doubt.py",),
    ),
)
