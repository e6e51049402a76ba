"""The contract of grammars and schemas: which tokens may come next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Allowed = npt.NDArray[np.bool_]


class TokenMask(Protocol):
    """Says which tokens may follow an output. One output at a time.

    Only tokens that were allowed are accepted, or asked about as part of a path; how the state
    of several paths is kept is the mask's own business.
    """

    def begin(self, prompt: Sequence[int]) -> None:
        """A new output starts after ``prompt``."""

    def row_after(self, tokens: Sequence[int]) -> Allowed | None:
        """Returns the tokens allowed after the accepted ones and ``tokens``; None allows all.

        Shapes: [V] bool.
        """

    def accept(self, token: int) -> None:
        """Records ``token`` as emitted; a stop token may be the last."""

    @property
    def is_free(self) -> bool:
        """From here on all is allowed, to the end: no row of logits is needed for it."""

    @property
    def is_finished(self) -> bool:
        """Nothing may follow the accepted tokens, so the output ends."""

    def forced(self) -> Sequence[int]:
        """Returns tokens that spell what has to follow the accepted ones, as far as that is known.

        The same text may be spelt by other tokens, too.
        """
