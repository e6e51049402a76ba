"""Counter-based random numbers: a value depends on (seed, position, token id) and nothing else.

A sampled token is then a function of the logits row and the seed, so every decoding method
that shows the sampler the same rows emits the same text, whatever it drafts in between.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint64]
Float64 = npt.NDArray[np.float64]

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_UNIT = 2.0**-52

MAX_GUMBEL = 36.8
"""No value is larger: the largest uniform is ``1 - 2**-53``, whose Gumbel value is 36.74."""


class Noise:
    """Gumbel noise for the draws of one seed.

    Source: splitmix64 (Steele, Lea and Flood, 2014), its counter being the token id and its
    key the mixed seed and position.
    """

    def __init__(self, seed: int) -> None:
        self._key = _mix_int((seed & _WORD) + _GOLDEN)

    def bits(self, position: int, ids: Ids) -> Bits:
        """Returns 52 random bits per token id.

        Shapes: ids [N] int64 -> [N] uint64.
        """
        key = _mix_int(self._key ^ _mix_int(position * _GOLDEN + 1))
        x = ids.astype(np.uint64)
        shifted = np.empty_like(x)
        x *= np.uint64(_GOLDEN)
        x += np.uint64(key)
        for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
            np.right_shift(x, np.uint64(shift), out=shifted)
            x ^= shifted
            x *= np.uint64(factor)
        np.right_shift(x, np.uint64(31), out=shifted)
        x ^= shifted
        x >>= np.uint64(12)
        return x

    def gumbel(self, position: int, ids: Ids) -> Float64:
        """Returns one standard Gumbel value per token id.

        Shapes: ids [N] int64 -> [N] float64, all finite.
        """
        return gumbel_of(self.bits(position, ids))


def gumbel_of(bits: Bits) -> Float64:
    """Returns ``-log(-log(u))`` of the uniforms that 52 random bits stand for."""
    # Half a step keeps u off 0 and 1; with 52 bits the sum is exact.
    uniform = (bits.astype(np.float64) + 0.5) * _UNIT
    return -np.log(-np.log(uniform))


def bits_above(gumbel: float) -> int:
    """Returns a bound under the bits of every Gumbel value above ``gumbel``."""
    uniform = np.exp(-np.exp(-gumbel))
    return max(0, int(uniform / _UNIT) - 2)


def _mix_int(x: int) -> int:
    x &= _WORD
    x = ((x ^ (x >> 30)) * _MIX_1) & _WORD
    x = ((x ^ (x >> 27)) * _MIX_2) & _WORD
    return x ^ (x >> 31)
