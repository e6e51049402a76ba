"""Judge decoding: a drafted token is kept if a probe finds it right, whatever the target would say.

The probe reads the target model's hidden state at the token itself. The text is approximate.

Source: judge decoding (Bachmann et al., 2025), whose head is trained on answers that people marked;
    here people's texts are what is right.
"""

from __future__ import annotations

from edgedec.runtime.decoding.switching.rollback import Forgives, surprise
from edgedec.runtime.drafting.probe import Probe
from edgedec.runtime.sequences.rows import Rows


def make(probe: Probe, delta: float) -> Forgives:
    """Returns a rule that keeps tokens which are right with a probability above ``delta``.

    Its rows have the hidden states that the probe reads.
    """

    def is_right(rows: Rows, index: int, token: int) -> bool:
        return probe.chance(rows, index + 1, -surprise(rows, index, token)) > delta

    return is_right
