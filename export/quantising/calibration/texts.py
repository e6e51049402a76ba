"""The texts a model is calibrated on, and those it is measured on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgedec.export.checkpoints.checkpoint import Published
from edgedec.export.checkpoints.published import plain_tokenizer
from edgedec.models.errors import ConfigError
from edgedec.system.files import read_text

Ids = npt.NDArray[np.int64]

LENGTH = 512
"""Tokens of a text."""
N_TEXTS = 16
"""Texts to calibrate on; one more is held out."""


@dataclass(frozen=True)
class CalibrationTexts:
    """Token ids: of texts to calibrate on, and of one that is only measured."""

    texts: tuple[Ids, ...]
    held_out: Ids

    @property
    def n_tokens(self) -> int:
        """Tokens to calibrate on."""
        return sum(map(len, self.texts))


def read_texts(path: Path, published: Published, length: int = LENGTH) -> CalibrationTexts:
    """Returns pieces of the text file ``path``, evenly spaced; the last one is held out.

    Raises:
        ConfigError: it cannot be read, or is too short.
    """
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"cannot calibrate on {path}: {reason}; name a text file") from None
    special = published.special
    opening = list(special.opening_ids)
    n_body = length - len(opening)
    tokenizer = plain_tokenizer(published.tokenizer_json())
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    n_pieces = min(len(ids) // n_body, N_TEXTS + 1)
    if n_pieces < 2:
        raise ConfigError(
            f"{path} has {len(ids)} tokens, expected at least {2 * n_body} to calibrate on, better "
            f"{(N_TEXTS + 1) * n_body}: name a longer text"
        )
    starts = np.linspace(0, len(ids) - n_body, n_pieces).astype(int)
    pieces = [np.array(opening + ids[start : start + n_body]) for start in starts]
    return CalibrationTexts(tuple(pieces[:-1]), pieces[-1])
