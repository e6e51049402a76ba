"""From a logits row to a token, in pure functions that plain and speculative decoding share.

The order of the steps is part of the interface: what a grammar forbids goes first, then the order
that `SamplingConfig` states. The draw is
Gumbel-max with the counter-based noise of `runtime.sampling.noise`: the token is the argmax of
``log p + g``, which has exactly the distribution p, and depends on the row, the seed and the
position only.

Source: Gumbel-max trick (Maddison, Tarlow and Minka, 2014, section 2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import SessionError
from edgedec.runtime.config import SamplingConfig
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sampling.repeats import Repeats
from edgedec.runtime.sampling.truncations import typical, within_sigma, without_top

Float64 = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
Values = npt.NDArray[Any]  # a logits row: float32 as it came, float64 once edited

_XTC = 1 << 32  # purpose of a coin, which no sibling of a tree has
_MAX_PENALTY = 1e9  # as of other penalties, so that sums stay within a float64
_N_MOMENTUM = 5  # likeliest tokens that momentum chooses among
_LONGEST_LOOP = 5  # repeated tokens beyond which momentum resists no more
_HEAD = 1024  # likeliest tokens looked at before a whole row is
_HEAD_SCORE = 5.0  # log-probability under the best at which coarse noise decides who matters


class History:
    """Which tokens penalties see. `add` and `remove` let a verifier walk a tree of drafts.

    repeats: the tokens in their order, where that matters.
    """

    def __init__(self, prompt: Sequence[int] = (), repeats: Repeats | None = None) -> None:
        self._prompt = frozenset(prompt)
        self._emitted: dict[int, int] = {}  # token -> times
        self.repeats = repeats

    def add(self, token: int) -> None:
        """Counts one more occurrence of ``token`` in the output."""
        self._emitted[token] = self._emitted.get(token, 0) + 1
        if self.repeats is not None:
            self.repeats.add(token)

    def remove(self, token: int) -> None:
        """Takes back the latest `add`, which was of ``token``."""
        if self.repeats is not None:
            self.repeats.remove()
        self._emitted[token] -= 1
        if not self._emitted[token]:
            del self._emitted[token]

    def seen(self) -> Ids:
        """Returns the distinct tokens of prompt and output."""
        return np.fromiter(self._prompt | self._emitted.keys(), np.int64)

    def emitted(self) -> tuple[Ids, Float64]:
        """Returns the distinct tokens of the output and how often each occurred."""
        ids = np.fromiter(self._emitted, np.int64)
        return ids, np.fromiter(self._emitted.values(), np.float64)


@dataclass(frozen=True, eq=False)
class Survivors:
    """The tokens a draw may give, in rising order of id.

    Shapes:
        ids: [N] int64.
        scores: [N] float64 finite log-probabilities, up to a constant.
    """

    ids: Ids
    scores: Float64

    def probs(self) -> Float64:
        """Returns the probability of each survivor. Shapes: [N] float64."""
        weights = np.exp(self.scores - self.scores.max())
        return np.asarray(weights / weights.sum())


def pick(row: Values, config: SamplingConfig, history: History, noise: Noise, position: int) -> int:
    """Returns the token for ``position`` that ``row`` and the seed's noise determine.

    Shapes: row [V] float32 or float64.
    """
    return choose(edit(row, config, history), config, noise, position)


def choose(values: Values, config: SamplingConfig, noise: Noise, position: int) -> int:
    """Returns the token for ``position`` that edited logits and the seed's noise determine.

    Shapes: values [V].
    """
    if config.is_greedy:
        return greedy(values)
    if not config.is_truncating:
        return draw_whole(values, config.temperature, noise, position)
    survivors = _truncated(values, config)
    if config.xtc_probability and noise.uniform(position, _XTC) < config.xtc_probability:
        stays = without_top(survivors.probs(), config.xtc_threshold)
        survivors = Survivors(*_keep(survivors.ids, survivors.scores, stays))
    return draw(_tempered(survivors, config), noise, position)


def choose_by_surprise(
    values: Values, config: SamplingConfig, mu: float, noise: Noise, position: int
) -> tuple[int, float]:
    """Returns the token for ``position`` by Mirostat, and the ``mu`` for the one after it.

    mu: how surprising a token may be, twice ``mirostat_tau`` at the beginning. Units: bits.

    Shapes: values [V].
    """
    from edgedec.runtime.sampling.mirostat import cut  # few requests ask for it

    ids = np.flatnonzero(values > -np.inf)
    scores = (values[ids].astype(np.float64) - float(values[greedy(values)])) / config.temperature
    cut_ = cut(scores, config.mirostat, mu)
    kept = cut_.kept
    token = draw(Survivors(ids[kept], scores[kept]), noise, position)
    surprise = cut_.surprise(int(np.searchsorted(ids, token)), config.mirostat)
    return token, mu - config.mirostat_eta * (surprise - config.mirostat_tau)


def greedy(values: Values) -> int:
    """Returns the id of the largest logit, the lowest one of equals. Shapes: values [V]."""
    best = int(values.argmax())
    if not math.isfinite(values[best]):
        raise SessionError(
            f"the largest logit is {values[best]}, expected a number; the model's weights, the "
            "logit_bias or the grammar leave no token to choose"
        )
    return best


def edit(
    row: Values,
    config: SamplingConfig,
    history: History,
    allowed: npt.NDArray[np.bool_] | None = None,
) -> Values:
    """Returns ``row`` after grammar mask, bias and penalties; the row itself without any.

    allowed: the tokens a grammar leaves; all when None.

    Shapes: row [V], allowed [V] -> [V] float64 when edited.
    """
    if allowed is None and not config.is_editing:
        return row
    values = row.astype(np.float64)
    if allowed is not None:
        values[~allowed] = -np.inf
    for token, bias in config.logit_bias.items():
        values[token] += bias
    if config.repetition_penalty != 1.0:
        seen = history.seen()
        penalty = config.repetition_penalty
        values[seen] = np.where(values[seen] < 0, values[seen] * penalty, values[seen] / penalty)
    if config.frequency_penalty or config.presence_penalty:
        ids, counts = history.emitted()
        values[ids] -= config.frequency_penalty * counts + config.presence_penalty
    if config.dry_multiplier:
        _penalize_repeats(values, config, _ordered(history))
    return _with_momentum(values, config, history) if config.momentum else values


def _ordered(history: History) -> Repeats:
    if history.repeats is None:
        raise SessionError("dry and momentum need the tokens in their order: start with Repeats")
    return history.repeats


def _penalize_repeats(values: Float64, config: SamplingConfig, repeats: Repeats) -> None:
    tokens, lengths = repeats.following()
    extra = lengths - config.dry_allowed_length
    long = extra >= 0
    with np.errstate(over="ignore"):
        penalty = config.dry_multiplier * config.dry_base ** extra[long].astype(np.float64)
    values[tokens[long]] -= np.minimum(penalty, _MAX_PENALTY)


def _with_momentum(values: Float64, config: SamplingConfig, history: History) -> Float64:
    """Returns a row with the scores of the likeliest tokens alone; the best one is to be taken.

    Source: Lan et al., Momentum Decoding: Open-ended Text Generation as Graph Exploration, 2022.
    """
    tokens, lengths = _ordered(history).following(_LONGEST_LOOP - 1)
    length_of = dict(zip(tokens.tolist(), lengths.tolist(), strict=True))
    seen = set(history.seen().tolist())
    ids = top_k(values, min(_N_MOMENTUM, len(values)))
    weights = np.exp(values - values[greedy(values)])
    probs = weights[ids] / weights.sum()
    smoothed = np.full(len(values), -np.inf)
    for token, prob in zip(ids.tolist(), probs.tolist(), strict=True):
        resistance = length_of.get(token, 0) + 1 if token in seen else 0
        smoothed[token] = prob - config.momentum * resistance if prob > 0 else -np.inf
    return smoothed


def truncate(values: Values, config: SamplingConfig) -> Survivors:
    """Returns what temperature and the truncations, but XTC, leave of edited logits.

    Shapes: values [V].
    """
    return _tempered(_truncated(values, config), config)


def _tempered(survivors: Survivors, config: SamplingConfig) -> Survivors:
    """Returns survivors behind a temperature that comes last."""
    if not config.temperature_last:
        return survivors
    return Survivors(survivors.ids, survivors.scores / config.temperature)


def _truncated(values: Values, config: SamplingConfig) -> Survivors:
    """Returns what the truncations leave, and a temperature that comes before them."""
    if config.top_n_sigma > 0.0:
        values = np.where(within_sigma(values, config.top_n_sigma), values, -np.inf)
    largest, temperature = float(values[greedy(values)]), _early_temperature(config)
    total: float | None = None  # weight of the whole row, where only its head is looked at
    if 0 < config.top_k < len(values):
        ids = top_k(values, config.top_k)
    elif config.typical_p < 1.0:
        ids = np.flatnonzero(values > -np.inf)
    elif config.top_p < 1.0 and len(values) > 2 * _HEAD:
        ids, total = _head(values, largest, config)
    elif config.min_p > 0.0 and config.top_p == 1.0:  # loosely here, exactly below
        ids = np.flatnonzero(values > largest + 1.01 * temperature * math.log(config.min_p) - 0.01)
    else:
        ids = np.flatnonzero(values > -np.inf)
    scores = (values[ids].astype(np.float64) - largest) / temperature
    if config.typical_p < 1.0:
        ids, scores = _keep(ids, scores, np.isfinite(scores))
        ids, scores = _keep(ids, scores, typical(scores, config.typical_p))
    if config.top_p < 1.0:
        ids, scores = _keep(ids, scores, top_p(scores, config.top_p, total))
    if config.min_p > 0.0:
        ids, scores = _keep(ids, scores, scores >= scores.max() + math.log(config.min_p))
    return Survivors(*_keep(ids, scores, np.isfinite(scores)))


def _early_temperature(config: SamplingConfig) -> float:
    """Returns the temperature at which truncations see a row."""
    return 1.0 if config.temperature_last else config.temperature


def top_k(values: Values, k: int) -> Ids:
    """Returns the ids of the ``k`` largest values in rising order; of equals the lowest ids.

    Shapes: values [V], 0 < k <= V -> [k] int64.
    """
    threshold = np.partition(values, len(values) - k)[len(values) - k]
    at_least = np.flatnonzero(values >= threshold)
    n_excess = len(at_least) - k
    if n_excess == 0:
        return at_least
    equals = np.flatnonzero(values[at_least] == threshold)
    return np.delete(at_least, equals[len(equals) - n_excess :])


def top_p(scores: Float64, mass: float, total: float | None = None) -> Ids:
    """Returns indices of the fewest likeliest scores that reach ``mass``, in rising order.

    total: weight (sum of exponentials) that ``mass`` is a part of; that of ``scores`` when None.

    Shapes: scores [N] float64 -> [n] int64; equal scores are taken in order.
    """
    reached = np.cumsum(np.exp(np.sort(scores)[::-1]))
    min_mass = mass * (reached[-1] if total is None else total)
    return top_k(scores, min(len(scores), int(np.searchsorted(reached, min_mass)) + 1))


def _head(values: Values, largest: float, config: SamplingConfig) -> tuple[Ids, float]:
    """Returns the likeliest ids that surely hold the mass of top-p, and the row's weight.

    The mass nearly always sits in a short head; only a flat row needs all.
    """
    weights = values.astype(np.float64)
    weights -= largest
    weights /= _early_temperature(config)
    np.exp(weights, out=weights)
    total = float(weights.sum())
    ids = top_k(values, _HEAD)
    if weights[ids].sum() * (1 - 1e-9) < config.top_p * total:
        ids = np.flatnonzero(values > -np.inf)
    return ids, total


def draw(survivors: Survivors, noise: Noise, position: int) -> int:
    """Returns the token of the largest ``score + Gumbel noise``, the lowest id of equals."""
    return _strongest(survivors, noise, position)[0]


def draw_whole(values: Values, temperature: float, noise: Noise, position: int) -> int:
    """Returns what `draw` would of a row that nothing truncates, without scores of every token.

    A token outside the head needs noise above ``best - score``, which its coarse bits alone
    refute.

    Shapes: values [V].
    """
    largest = float(values[greedy(values)])

    def scored(ids: Ids) -> Survivors:
        return Survivors(ids, (values[ids].astype(np.float64) - largest) / temperature)

    head = np.flatnonzero(values > largest - _HEAD_SCORE * temperature)
    token, best = _strongest(scored(head), noise, position)
    # A hair under, for the rounding of the head's own boundary.
    least = best + _HEAD_SCORE - 1e-6
    others = noise.that_may_reach(position, len(values), least)
    place = int(np.searchsorted(others, token))
    if place == len(others) or others[place] != token:
        others = np.insert(others, place, token)
    return draw(scored(others), noise, position)


def _strongest(survivors: Survivors, noise: Noise, position: int) -> tuple[int, float]:
    """Returns the token of the largest ``score + Gumbel noise``, and that sum.

    Two logarithms per token of a flat row cost more than all the rest: once some likely tokens
    have theirs, the coarse bits of the others refute most.
    """
    ids, scores = survivors.ids, survivors.scores
    if len(ids) > 2 * _HEAD:
        some = np.flatnonzero(scores > scores.max() - _HEAD_SCORE)[:_HEAD]
        reached = float((scores[some] + noise.gumbel(position, ids[some])).max())
        ids, scores = _keep(ids, scores, noise.may_reach(position, ids, reached - scores))
    total = scores + noise.gumbel(position, ids)
    best = int(total.argmax())
    return int(ids[best]), float(total[best])


def _keep(ids: Ids, scores: Float64, chosen: npt.NDArray[Any]) -> tuple[Ids, Float64]:
    return ids[chosen], scores[chosen]
