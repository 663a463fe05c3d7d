"""Who hears of each acquire that somebody waited for, besides the cache's own journal: inside a gang, the gang."""

from collections.abc import Callable, Mapping
from typing import Any

Hearer = Callable[[Mapping[str, Any]], None]
hearers: list[Hearer] = []
"""Each gets the event that `accounting` notes; whoever adds itself must not raise."""
