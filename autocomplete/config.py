"""How suggestions while typing are made."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgedec.runtime.config.checks import check_count, check_number, check_type


@dataclass(frozen=True, kw_only=True)
class AutocompleteConfig:
    """How suggestions while typing are made.

    n_before, n_after: tokens of the document before and behind the cursor that the model reads.
    n_others: most tokens of other open documents, as far as the context has room; 0: they are not
        read.
    max_new_tokens: computed for one place, what is beyond the line on offer included.
    min_probability: that a line on offer is right, by the model: it ends before it is less. Of
        alternatives, the geometric mean of the latest 4 tokens'.
    is_block: offer all that was computed, not one line.
    max_idle_cpu: share of the time spent computing beyond a line on offer that is likely, 0 to 1.
    rests_on_battery: compute nothing beyond a line on offer while a battery is drained.
    method: how it is decoded; see `edgedec run --method`.

    Raises:
        ConfigError: A value makes no sense.
    """

    n_before: int = 1024
    n_after: int = 128
    n_others: int = 256
    max_new_tokens: int = 48
    min_probability: float = 0.3
    is_block: bool = False
    max_idle_cpu: float = 0.3
    rests_on_battery: bool = False
    method: str = "auto"

    def __post_init__(self) -> None:
        for name, least in (
            ("n_before", 16),
            ("n_after", 0),
            ("n_others", 0),
            ("max_new_tokens", 1),
        ):
            check_count(f"{name} of autocomplete", getattr(self, name), least, "tokens are meant")
        for name in ("min_probability", "max_idle_cpu"):
            check_number(f"{name} of autocomplete", getattr(self, name), 0, 1, "1 is all")
        for name in ("is_block", "rests_on_battery"):
            check_type(f"{name} of autocomplete", getattr(self, name), bool, "True or False")
        check_type("method of autocomplete", self.method, str, "a name such as 'auto'")

    @property
    def min_log_prob(self) -> float:
        """Logarithm of ``min_probability``. Units: nats."""
        return math.log(self.min_probability) if self.min_probability > 0 else -math.inf
