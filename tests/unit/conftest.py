"""Hypothesis for the unit tests: the same examples in every run, so that a red test is red for everybody.

``pytest --hypothesis-profile=search`` looks at new and more examples instead.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

_SLOW_MACHINE = [HealthCheck.too_slow]

settings.register_profile(
    "fixed", derandomize=True, database=None, deadline=None, max_examples=80, suppress_health_check=_SLOW_MACHINE
)
settings.register_profile(
    "search", database=None, deadline=None, max_examples=2000, suppress_health_check=_SLOW_MACHINE
)
settings.load_profile("fixed")
