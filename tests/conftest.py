"""What holds for all tests: a property is true or not, however busy the machine is, so no example has a deadline.

Times have bars of their own (`tests/perf`), and every test has the timeout of pyproject.toml.
"""

import os

import pytest
from hypothesis import Phase, settings

settings.register_profile("fractile", deadline=None)
# A mutant is killed by the first example that fails; to look for a smaller one takes many times as long.
settings.register_profile("mutants", deadline=None, phases=(Phase.explicit, Phase.generate))
_MUTANTS = bool(os.environ.get("FRACTILE_MUTANTS"))  # set by tests/mutants
settings.register_profile("quick", deadline=None, max_examples=20)
_QUICK = bool(os.environ.get("FRACTILE_QUICK"))  # set by `make check`
settings.load_profile("mutants" if _MUTANTS else "quick" if _QUICK else "fractile")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Properties last: most mutants are killed by a test that takes a millisecond."""
    if _MUTANTS:
        items.sort(key=lambda item: item.get_closest_marker("hypothesis") is not None)
