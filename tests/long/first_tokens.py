"""The first two tokens of an output: their distribution, and how often speculation emits which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.decoding.strategy import TARGET, DecodeState, DecodingStrategy
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FirstTwoLaw:
    """The distribution of the first two tokens, in cells.

    A cell is a pair; a first token with all rare second ones; a first token with any second one,
    where it is too rare to be looked into; or all that is left, the last cell.

    Shapes: probs [N] float64, summing to 1.
    """

    cells: dict[tuple[int, int | None], int]
    probs: Float64

    @classmethod
    def of(cls, model: TokenSequence, prompt: Sequence[int], least: float) -> FirstTwoLaw:
        """Returns the distribution at temperature 1 in cells of mostly ``least`` and more."""
        cells: list[tuple[int, int | None]] = []
        first = _probs_after(model, prompt)
        for token in np.flatnonzero(first >= least).tolist():
            if first[token] >= 10 * least:
                pairs = first[token] * _probs_after(model, [*prompt, token])
                cells += [(token, int(second)) for second in np.flatnonzero(pairs >= least)]
            cells.append((token, None))
        distribution = cls({cell: i for i, cell in enumerate(cells)}, np.zeros(0))
        return distribution.at(model, prompt, 1.0)

    def at(self, model: TokenSequence, prompt: Sequence[int], temperature: float) -> FirstTwoLaw:
        """Returns the distribution of the same cells at another temperature.

        Rows are those of plain passes over one text each; the rest is float64.
        """
        first = _probs_after(model, prompt, temperature)
        rows: dict[int, Float64] = {}
        probs: dict[tuple[int, int | None], float] = {}
        for token, second in self.cells:
            if second is None:
                known = sum(p for (other, _), p in probs.items() if other == token)
                probs[token, None] = float(first[token]) - known
                continue
            if token not in rows:
                rows[token] = _probs_after(model, [*prompt, token], temperature)
            probs[token, second] = float(first[token] * rows[token][second])
        return FirstTwoLaw(self.cells, np.array([*probs.values(), 1 - sum(probs.values())]))

    def cell(self, first: int, second: int) -> int:
        """Returns the cell an output that begins with these tokens belongs to."""
        rest = len(self.cells)
        return self.cells.get((first, second), self.cells.get((first, None), rest))


def _probs_after(model: TokenSequence, text: Sequence[int], temperature: float = 1.0) -> Float64:
    model.truncate(0)
    row = model.forward(TokenTree.chain(text), [len(text) - 1]).logits[0].astype(np.float64)
    weights = np.exp((row - row.max()) / temperature)
    return np.asarray(weights / weights.sum())


@dataclass
class Drawn:
    """Outputs of seeds from 0.

    counts: by cell. pairs: the first two tokens. n_accepted: drafted first tokens that
    were accepted, and drafted second ones. n_evaluated: drafted tokens decided on.

    Shapes: counts [N] float64.
    """

    counts: Float64
    pairs: list[tuple[int, int]] = field(default_factory=list)
    n_accepted: list[int] = field(default_factory=lambda: [0, 0])
    n_evaluated: int = 0


def draw(
    session: TokenSequence,
    strategy: DecodingStrategy,
    prompt: Sequence[int],
    config: GenerationConfig,
    distribution: FirstTwoLaw,
    n_outputs: int,
) -> Drawn:
    """Returns what ``strategy`` emits after ``prompt``, of which ``session`` holds all but the end.

    The prompt's last token is the anchor of the first round, so that the first token may be a
    drafted one, too.
    """
    drawn = Drawn(np.zeros(len(distribution.probs)))
    for seed in range(n_outputs):
        state, origins = emit(session, strategy, prompt, config, seed)
        first, second = state.tokens[len(prompt) :][:2]
        drawn.pairs.append((first, second))
        drawn.counts[distribution.cell(first, second)] += 1
        drawn.n_evaluated += state.stats.total_drafted.n_evaluated
        for i in range(2):
            drawn.n_accepted[i] += origins[i] != TARGET
    return drawn


def emit(
    session: TokenSequence,
    strategy: DecodingStrategy,
    prompt: Sequence[int],
    config: GenerationConfig,
    seed: int,
) -> tuple[DecodeState, list[str]]:
    """Returns the state after two tokens or more, and their origins; the session is rewound."""
    state, noise = DecodeState.start(session, prompt, config), Noise(seed)
    origins: list[str] = []
    decoding = strategy.begin(state, {})
    while len(origins) < 2:
        result = run_passes(decoding.step(noise))
        for token in result.tokens:
            state.append(token)
        origins += result.origins
    decoding.end()
    session.truncate(len(prompt) - 1)
    return state, origins
