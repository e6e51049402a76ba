"""Counter-based random numbers: a value depends on (seed, position, token id) and nothing else.

A sampled token is then a function of the logits row and the seed, so every decoding method
that shows the sampler the same rows emits the same text, whatever it drafts in between.
"""

from __future__ import annotations

import threading
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint32]
Bools = npt.NDArray[np.bool_]
Float64 = npt.NDArray[np.float64]

MAX_GUMBEL = 36.8
"""No value is larger: the largest uniform is ``1 - 2**-53``, whose Gumbel value is 36.74."""

_WORD = (1 << 64) - 1
_MAX_COARSE = (1 << 32) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_of_thread = threading.local()
_SPREAD = np.uint32(0x9E3779B1)


class Noise:
    """The random numbers of one seed: Gumbel noise for draws, uniforms for what else is random.

    A Gumbel value is made of 52 random bits: 32 coarse ones, enough to refute most tokens of a
    large vocabulary, and 20 fine ones that only the few contenders are asked for.

    Source: keys by splitmix64 (Steele, Lea and Flood, 2014); ids mixed by lowbias32 (Wellons,
    hash-prospector, public domain) with the second half of the key added between its rounds.
    """

    def __init__(self, seed: int) -> None:
        self._key = _mix((seed & _WORD) + _GOLDEN)

    def gumbel(self, position: int, ids: Ids) -> Float64:
        """Returns one standard Gumbel value per token id.

        Shapes: ids [N] int64 -> [N] float64, all finite.
        """
        words = ids.astype(np.uint32)
        key = self._key_of(position)
        return gumbel_of(_hash(words, key), _hash(words, _mix(key + _GOLDEN)) >> np.uint32(12))

    def may_reach(self, position: int, ids: Ids, gumbel: Float64) -> Bools:
        """Returns which of ``ids`` may have a value of ``gumbel`` or more.

        Every id with such a value is among them, and where ``gumbel`` is large, few others are.

        Shapes: ids [N], gumbel [N] float64 -> [N] bool.
        """
        coarse = _hash(ids.astype(np.uint32), self._key_of(position))
        return np.asarray(np.invert(coarse, out=coarse) <= _rest_below(gumbel))

    def that_may_reach(self, position: int, n_ids: int, gumbel: float) -> Ids:
        """Returns, in rising order, ids below ``n_ids`` that may have ``gumbel`` or more.

        As `may_reach` of all ids in less than half of its time.
        """
        rest = min(float(_rest_below(np.float64(gumbel))), _MAX_COARSE)
        least = (_MAX_COARSE - int(rest)) >> 16 << 16  # the last step leaves the upper half alone
        words = _half_hash(_spread_ids(n_ids), self._key_of(position), _scratch(n_ids))
        return np.flatnonzero(words >= np.uint32(least))

    def uniform(self, position: int, purpose: int) -> float:
        """Returns a number above 0 and below 1, independent of every Gumbel value.

        purpose: tells apart the numbers that one position asks for.
        """
        bits = _mix(_mix(~self._key_of(position)) + purpose * _GOLDEN)
        return ((bits >> 12) + 0.5) * 2.0**-52

    def _key_of(self, position: int) -> int:
        return _mix(self._key ^ _mix(position * _GOLDEN + 1))


def gumbel_of(coarse: Bits, fine: Bits) -> Float64:
    """Returns ``-log(-log(u))`` of the uniforms that 32 coarse and 20 fine bits stand for."""
    # Half a step keeps u off 0 and 1; 52 bits and the half are exact in float64.
    uniform = (coarse * 2.0**20 + fine + 0.5) * 2.0**-52
    return np.asarray(-np.log(-np.log(uniform)))


def _rest_below(gumbel: Float64 | float) -> Float64:
    """Returns bounds over what is missing to 2**32 - 1 in coarse bits of values from ``gumbel`` up.

    A value of g or more is one of a uniform u with ``-log u <= exp(-g)``, and ``1 - u`` is less.
    """
    return np.asarray(np.exp(-gumbel) * (2.0**32 * (1 + 1e-9)))


@lru_cache(maxsize=4)
def _spread_ids(n_ids: int) -> Bits:
    """Returns the ids below ``n_ids`` as `_half_hash` takes them, for many hashes."""
    words = np.arange(n_ids, dtype=np.uint32) * _SPREAD
    words.flags.writeable = False
    return words


def _scratch(n_ids: int) -> Bits:
    """Returns memory [2, n_ids] for this thread's next hash: new pages cost as much as hashing."""
    scratch: Bits | None = getattr(_of_thread, "scratch", None)
    if scratch is None or scratch.shape[1] != n_ids:
        scratch = _of_thread.scratch = np.empty((2, n_ids), np.uint32)
    return scratch


def _hash(words: Bits, key: int) -> Bits:
    """Returns 32 random bits for each word under a key of 64."""
    x = _half_hash(words * _SPREAD, key, np.empty((2, *words.shape), np.uint32))
    x ^= x >> np.uint32(16)
    return x


def _half_hash(spread: Bits, key: int, scratch: Bits) -> Bits:
    """Returns `_hash` of words, which were multiplied before, with right bits in the upper half.

    Shapes: spread [..], scratch [2, ..], which is written to; the result is its first half.
    """
    x: Bits = scratch[0]
    shifted: Bits = scratch[1]
    np.add(spread, np.uint32(key & 0xFFFFFFFF), out=x)
    np.right_shift(x, np.uint32(16), out=shifted)
    x ^= shifted
    x *= np.uint32(0x21F0AAAD)
    x += np.uint32(key >> 32)
    for factor in (0xD35A2D97, 0x2C1B3C6D):
        np.right_shift(x, np.uint32(15), out=shifted)
        x ^= shifted
        x *= np.uint32(factor)
    return x


def _mix(x: int) -> int:
    """Returns splitmix64's output for the state ``x``."""
    x &= _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)
