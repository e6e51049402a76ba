"""When a completion that nobody asked for should end: where the model is likely to be wrong.

After a wrong token hardly any continuation is wanted, so text up to a doubtful token is worth
more than a longer one. Source: the stop decision of "When Neural Code Completion Models Size up
the Situation" (arXiv 2401.09964); there a trained classifier takes it, here two thresholds do.
"""

from __future__ import annotations

import math
from collections import deque

from edgedec.models.errors import ConfigError
from edgedec.runtime.decoding.switching.policy import Signal


class StopRule:
    """Watches a completion token by token. It holds no model."""

    def __init__(
        self,
        max_entropy: float = math.inf,
        min_log_prob: float = -math.inf,
        window: int = 4,
    ) -> None:
        """Takes what still counts as sure; by the defaults everything does.

        Args:
            max_entropy: Of a token's distribution. Units: bits.
            min_log_prob: Mean over the latest ``window`` tokens of the likeliest token's
                log-probability. Units: nats.

        Raises:
            ConfigError: A number makes no sense.
        """
        if math.isnan(max_entropy) or math.isnan(min_log_prob) or window < 1:
            raise ConfigError(
                f"stop rule has max_entropy {max_entropy}, min_log_prob {min_log_prob} and window "
                f"{window}, expected numbers and at least 1 token"
            )
        self._max_entropy = max_entropy
        self._min_log_prob = min_log_prob
        self._log_probs: deque[float] = deque(maxlen=window)

    def begin(self) -> None:
        """A new completion starts."""
        self._log_probs.clear()

    def should_stop(self, signal: Signal) -> bool:
        """Returns whether to end before the token that ``signal`` is about."""
        self._log_probs.append(math.log(signal.top_prob) if signal.top_prob > 0 else -math.inf)
        return signal.entropy > self._max_entropy or self.mean_log_prob < self._min_log_prob

    @property
    def mean_log_prob(self) -> float:
        """Mean over the latest tokens of the likeliest token's log-probability. Units: nats."""
        return math.fsum(self._log_probs) / max(1, len(self._log_probs))
