"""What holds for all tests: a property is true or not, however busy the machine is, so no example has a deadline.

Times have bars of their own (`tests/perf`), and every test has the timeout of pyproject.toml.
"""

from hypothesis import settings

settings.register_profile("fractile", deadline=None)
settings.load_profile("fractile")
