"""When the light heads in a model's graph are not worth their share of a pass."""

from __future__ import annotations

from edgedec.runtime.decoding.acceptance_rates import Backoff

_RATE = 0.1  # at which a round changes what is known
_FIRST_GAIN = 0.25  # tokens of a round that they bring, taken for granted at first
_FIRST_REST, _LONGEST_REST = 16, 128  # rounds


class MtpBackoff:
    """Asks for what the heads say, but where little of it came true of late, in one request."""

    def __init__(self, share: float) -> None:
        """share: of a pass over one row that the heads take; 0 where there are none."""
        self._share = share
        self._gain = _FIRST_GAIN
        self._backoff = Backoff(_FIRST_REST, _LONGEST_REST)
        self.is_asking = share > 0

    def observe(self, gain: float, n_emitted: int) -> None:
        """Takes in a round of ``n_emitted`` tokens.

        gain: tokens that the heads had drafted, less what the rows of all their drafts cost.
        """
        if not self.is_asking:
            self.is_asking = self._share > 0 and self._backoff.is_over()
            return
        self._gain += _RATE * (gain - self._gain)
        if self._gain > _FIRST_GAIN:
            self._backoff.reset()
        # What a share of the time would have given without them.
        if self._gain < self._share * n_emitted:
            self._backoff.lost()
            self._gain, self.is_asking = _FIRST_GAIN, False
