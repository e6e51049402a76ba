"""What two models show of texts: rows that are right or wrong, for probes to learn from.

Of a draft model that is each row, right if its likeliest next token is the target model's. Of the
target model it is each place where the two differ and one of them says what the text goes on with:
the row of the draft model's token, which is right if it is the text's. What wrong tokens look like
is computed beside the text, in the same pass's tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from edgedec.runtime.drafting.probe import DRAFT, JUDGE, PROBE_KINDS, probe_inputs
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.prefill import PREFILL_CHUNK
from edgedec.runtime.sequences.row_stats import RowStats
from edgedec.runtime.sequences.rows import Float32, Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Reader:
    """A model that reads texts.

    sequence: of its own. layer: whose hidden states are read. epsilon: of their norm. names: the
    text's token of each of its logits, -1 for none; None where they are the same.
    """

    sequence: TokenSequence
    layer: int
    epsilon: float
    names: Ids | None = None

    def read(self, chunk: TokenTree, with_logits: bool = False, n_known: int = 0) -> Rows:
        """Returns the rows of all new tokens of a tree, which are pending then."""
        new = range(n_known, len(chunk))
        return self.sequence.run(
            Pass(self.sequence, chunk, new, (self.layer,), n_known=n_known, with_logits=with_logits)
        )

    def inputs(
        self, hidden: Float32, stats: RowStats, extra: Float32 | None = None
    ) -> npt.NDArray[np.float16]:
        """Returns what a probe reads, small enough to be kept of many rows."""
        return probe_inputs(hidden, stats, self.epsilon, extra).astype(np.float16)

    def likeliest(self, stats: RowStats) -> Ids:
        """Returns the likeliest token after each row, as the text names it."""
        return stats.argmax.copy() if self.names is None else self.names[stats.argmax]


@dataclass
class Labelled:
    """Rows by kind of probe, and which text each is of."""

    inputs: dict[str, list[npt.NDArray[np.float16]]] = field(
        default_factory=lambda: {kind: [] for kind in PROBE_KINDS}
    )
    is_right: dict[str, list[npt.NDArray[np.bool_]]] = field(
        default_factory=lambda: {kind: [] for kind in PROBE_KINDS}
    )
    texts: dict[str, list[Ids]] = field(default_factory=lambda: {kind: [] for kind in PROBE_KINDS})
    n_tokens: int = 0
    n_texts: int = 0

    def add(
        self, kind: str, inputs: npt.NDArray[np.float16], is_right: npt.NDArray[np.bool_]
    ) -> None:
        """Adds rows of the text that is being read."""
        self.inputs[kind].append(inputs)
        self.is_right[kind].append(is_right)
        self.texts[kind].append(np.full(len(inputs), self.n_texts))

    def of(self, kind: str) -> tuple[Float32, npt.NDArray[np.bool_], Ids]:
        """Returns the inputs of all rows, whether they are right, and their texts."""
        return (
            np.concatenate(self.inputs[kind]).astype(np.float32),
            np.concatenate(self.is_right[kind]),
            np.concatenate(self.texts[kind]),
        )


def read_text(draft: Reader, target: Reader, tokens: Sequence[int], found: Labelled) -> None:
    """Adds what both models show of a text."""
    for reader in (draft, target):
        reader.sequence.truncate(0)
    for start in range(0, len(tokens), PREFILL_CHUNK):
        following = tokens[start + 1 : start + PREFILL_CHUNK + 1]
        _read_chunk(draft, target, tokens[start : start + PREFILL_CHUNK], following, found)
    found.n_tokens += len(tokens)
    found.n_texts += 1


def _read_chunk(
    draft: Reader, target: Reader, tokens: Sequence[int], following: Sequence[int], found: Labelled
) -> None:
    chain = TokenTree.chain(tokens)
    rows = draft.read(chain)
    drafted = draft.likeliest(rows.stats)
    drafts = draft.inputs(rows.hidden[draft.layer], rows.stats)
    draft.sequence.commit(range(len(chain)))
    rows = target.read(chain, with_logits=True)
    chosen = target.likeliest(rows.stats)
    found.add(DRAFT, drafts, drafted == chosen)
    known = np.flatnonzero(drafted >= 0)
    surprise = np.zeros((len(drafted), 1), np.float32)
    surprise[known, 0] = rows.logits[known, drafted[known]] - rows.stats.log_sum_exp[known]
    n = len(following)
    differs = (drafted[:n] >= 0) & (drafted[:n] != chosen[:n])
    places = np.flatnonzero(differs & (drafted[:n] == following) & (np.arange(n) + 1 < len(tokens)))
    inputs = target.inputs(
        rows.hidden[target.layer][places + 1],
        rows.stats.part((places + 1).tolist()),
        surprise[places],
    )
    found.add(JUDGE, inputs, np.ones(len(places), np.bool_))
    wrong = np.flatnonzero(differs & (chosen[:n] == following))
    if len(wrong):
        _read_wrong(target, chain, wrong, drafted[wrong], surprise[wrong], found)
    target.sequence.commit(range(len(chain)))


def _read_wrong(
    target: Reader,
    chain: TokenTree,
    places: Ids,
    drafted: Ids,
    surprise: Float32,
    found: Labelled,
) -> None:
    """Adds the rows of tokens that are not the text's, each beside what follows its place."""
    room = target.sequence.context - target.sequence.n_tokens - len(chain)
    places, drafted, surprise = places[:room], drafted[:room], surprise[:room]
    tree = TokenTree((*chain.tokens, *drafted.tolist()), (*chain.parents, *places.tolist()))
    rows = target.read(tree, n_known=len(chain))
    inputs = target.inputs(rows.hidden[target.layer], rows.stats, surprise)
    found.add(JUDGE, inputs, np.zeros(len(places), np.bool_))
