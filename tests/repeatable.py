"""Settings with which Hypothesis tries the same examples in every run."""

from hypothesis import HealthCheck, settings

REPEATABLE = settings(derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
