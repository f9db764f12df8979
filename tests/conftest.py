"""What holds for all tests: a property is true or not, however busy the machine is, so no example has a deadline.

Times have bars of their own (`tests/perf`), and every test has the timeout of pyproject.toml.
"""

import os

from hypothesis import Phase, settings

settings.register_profile("fractile", deadline=None)
# A mutant is killed by the first example that fails; to look for a smaller one takes many times as long.
settings.register_profile("mutants", deadline=None, phases=(Phase.explicit, Phase.generate))
settings.load_profile("mutants" if os.environ.get("FRACTILE_MUTANTS") else "fractile")
