"""Has a bundle's model go on with many texts at once, and keeps what it showed.

Writing one text is bound by reading the weights; here each is read once for all texts. Products
with matrices are those of the bundle's own kernels, all else is torch's: what comes out is what the
model might say, close enough to learn from. All of it is one thread's work: several write several
batches (`one_torch_thread`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from edgedec.export.heads.bundle_weights import BundleWeights
from edgedec.kernels import embed, linear
from edgedec.models.config import ModelConfig
from edgedec.models.errors import ConfigError
from edgedec.models.families import find_family
from edgedec.models.rope import rope_of, rope_tables
from edgedec.training.features.feature_file import TextFeatures
from edgedec.training.features.written_rows import WrittenRows
from edgedec.training.torch_ops import TorchOps, rotated, split_heads

_PAD = 0
"""Token before the first one of a shorter text: nothing sees it."""

_ROWS = 192
"""Rows of prompts in a pass, about: their logits take 115 MB where 150,000 tokens are known."""

_IS_OVER = 0.95
"""Share of texts that have ended when the others are cut off: few rows cost much for each."""

_TILE = 8
"""Texts that have ended before passes leave them out: vector kernels take so many rows at once."""


@dataclass(frozen=True)
class WritingPlan:
    """How texts go on.

    n_new: most tokens of each. stop_ids: tokens that end one. layers: whose hidden states are kept.
    """

    n_new: int
    temperature: float
    stop_ids: frozenset[int]
    seed: int
    layers: tuple[int, ...] = ()


class BatchWriter:
    """A bundle's model, for many texts at once."""

    def __init__(self, weights: BundleWeights, config: ModelConfig) -> None:
        """Maps the matrices of ``weights``, as they are.

        Raises:
            ConfigError: The model is a mixture of experts.
        """
        if config.n_experts:
            raise ConfigError("mixtures of experts cannot write for draft heads")
        self.config = config
        shapes = weights.shapes.items()
        self.matrices = {name: weights.packed(name) for name, s in shapes if len(s) == 2}
        vectors = {name: weights.vector(name) for name, s in shapes if len(s) == 1}
        self.vectors = {name: torch.from_numpy(values) for name, values in vectors.items()}

    def new_cache(self, lengths: Sequence[int], n_slots: int) -> BatchCache:
        """Returns an empty KV cache for texts of these ``lengths``, which end side by side."""
        return BatchCache(self.config, lengths, n_slots)

    @torch.no_grad()
    def logits(self, tokens: Tensor, cache: BatchCache, rows: WrittenRows) -> Tensor:
        """Appends ``tokens`` [B, T] to all texts; returns the logits after the last, [B, V].

        rows: is told what the pass shows.
        """
        ops = _Pass(self, tokens, cache, rows)
        logits = find_family(self.config.family).recipe(ops, self.config).float()
        cache.n += tokens.shape[1]
        rows.note_logits(logits)
        return logits[:, -1]

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        plan: WritingPlan,
        report: Callable[[int], None] = lambda n: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> list[TextFeatures]:
        """Returns each of ``prompts`` and what follows it, its end included where it came.

        A text's last token is left out where nothing was computed behind it.

        report: called with how many tokens came, the prompts' first. is_over: ends all texts where
            they are.
        """
        report(sum(map(len, prompts)))
        cache = self.new_cache(list(map(len, prompts)), max(map(len, prompts)) + plan.n_new)
        rows = WrittenRows(plan.layers, self.config.rms_norm_eps)
        logits = self._asked(prompts, cache, rows)
        generator = torch.Generator().manual_seed(plan.seed)
        writing = _Writing(prompts, plan.stop_ids)
        for n in range(plan.n_new):
            drawn = _drawn(logits, plan.temperature, generator)
            report(writing.add(drawn.tolist()))
            is_last = n == plan.n_new - 1 or writing.n_open <= (1 - _IS_OVER) * len(prompts)
            if is_last or is_over():
                break
            logits = self.logits(drawn[:, None], cache, rows)
            if len(writing.places) - writing.n_open >= _TILE:
                logits = logits[writing.leave_ended(cache, rows)]
        return writing.shown(cache, rows)

    def _asked(
        self, prompts: Sequence[Sequence[int]], cache: BatchCache, rows: WrittenRows
    ) -> Tensor:
        """Returns the logits [B, V] after ``prompts``, which end side by side."""
        longest = max(map(len, prompts))
        padded = [[_PAD] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
        tokens, n = torch.tensor(padded), max(1, _ROWS // len(prompts))
        for start in range(0, longest, n):
            logits = self.logits(tokens[:, start : start + n], cache, rows)
        return logits


class _Writing:
    """Texts that are written, and which of them the rows of the next pass belong to."""

    def __init__(self, prompts: Sequence[Sequence[int]], stop_ids: frozenset[int]) -> None:
        self.places = list(range(len(prompts)))  # of the texts that passes go over
        self._texts = list(map(list, prompts))
        self._is_open = [True] * len(prompts)
        self._stop_ids = stop_ids
        self._shown: dict[int, TextFeatures] = {}  # by texts that passes have left

    @property
    def n_open(self) -> int:
        """Texts that have not ended."""
        return sum(self._is_open)

    def add(self, tokens: Sequence[int]) -> int:
        """Takes what was drawn of each row; returns how many texts that made longer."""
        n_open = self.n_open
        for place, token in zip(self.places, tokens, strict=True):
            if self._is_open[place]:
                self._texts[place].append(token)
                self._is_open[place] = token not in self._stop_ids
        return n_open

    def leave_ended(self, cache: BatchCache, rows: WrittenRows) -> list[int]:
        """Has passes go over open texts alone; returns which rows of the last pass were theirs."""
        self._keep_shown(cache, rows)
        kept = [row for row, place in enumerate(self.places) if self._is_open[place]]
        cache.keep(kept)
        rows.keep(kept)
        self.places = [self.places[row] for row in kept]
        return kept

    def shown(self, cache: BatchCache, rows: WrittenRows) -> list[TextFeatures]:
        """Returns what every text showed, in the order of the prompts."""
        self._keep_shown(cache, rows)
        return [self._shown[place] for place in range(len(self._texts))]

    def _keep_shown(self, cache: BatchCache, rows: WrittenRows) -> None:
        texts = rows.texts([self._texts[place] for place in self.places], cache.starts.tolist())
        self._shown |= dict(zip(self.places, texts, strict=True))


class BatchCache:
    """Keys and values of texts that end in the same slot; shorter ones begin later."""

    def __init__(self, config: ModelConfig, lengths: Sequence[int], n_slots: int) -> None:
        shape = len(lengths), config.n_kv_heads, n_slots, config.head_size
        self.keys = [torch.zeros(shape) for _ in range(config.n_layers)]
        self.values = [torch.zeros(shape) for _ in range(config.n_layers)]
        self.starts = max(lengths) - torch.tensor(lengths)
        self.tables = {
            rope: [torch.from_numpy(table) for table in rope_tables(config, n_slots, rope)]
            for rope in {rope_of(config.layer(i)) for i in range(config.n_layers)}
        }
        self.n = 0

    def keep(self, rows: list[int]) -> None:
        """Forgets all texts but ``rows``."""
        self.keys = [keys[rows] for keys in self.keys]
        self.values = [values[rows] for values in self.values]
        self.starts = self.starts[rows]


class _Pass(TorchOps):
    """One pass over all texts."""

    def __init__(
        self, model: BatchWriter, tokens: Tensor, cache: BatchCache, rows: WrittenRows
    ) -> None:
        super().__init__(model.config)
        self._model = model
        self._tokens = tokens
        self._cache = cache
        self._rows = rows
        slots = torch.arange(cache.n + tokens.shape[1])
        self._own = slots[cache.n :]
        positions = (self._own - cache.starts[:, None]).clamp(min=0)
        self._angles = {
            rope: [table[positions].unsqueeze(1) for table in tables]
            for rope, tables in cache.tables.items()
        }
        is_after_start = slots >= cache.starts[:, None, None]
        # What comes before a text sees itself, or its softmax were no number.
        self._distance = self._own[:, None] - slots
        self._sees = (is_after_start & (self._distance >= 0)) | (self._distance == 0)

    def weight(self, name: str) -> Tensor:
        """Returns the norm weight or bias ``name``."""
        return self._model.vectors[name]

    def embed(self, weight: str) -> Tensor:
        """Returns the embedding of each token."""
        rows = embed(self._tokens.flatten().contiguous().numpy(), self._model.matrices[weight])
        return torch.from_numpy(rows).reshape(*self._tokens.shape, -1)

    def linear(self, x: Tensor, weight: str, bias: str | None = None) -> Tensor:
        """Returns `x @ W.T + b`, the products computed by the kernels."""
        model = self._model
        rows = x.flatten(0, 1).contiguous().numpy()
        products = linear(rows, [model.matrices[weight]])
        made = torch.from_numpy(products).reshape(*x.shape[:-1], -1)
        return made if bias is None else made + self.weight(bias)

    def hidden(self, x: Tensor, layer: int) -> None:
        """Notes ``x`` where the hidden states of ``layer`` are wanted."""
        self._rows.note_hidden(x, layer)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, layer: int) -> Tensor:
        """Returns the attended heads, after appending keys and values."""
        c, end = self.config, len(self._own) + self._cache.n
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        keys[:, :, self._cache.n : end] = self._rotated(k, layer)
        values[:, :, self._cache.n : end] = split_heads(v, c.head_size).transpose(1, 2)
        # Heads that share keys are rows of one product: nothing is copied for each of them.
        queries = self._rotated(q, layer)
        shape = len(q), c.n_kv_heads, -1, queries.shape[2]
        rows = queries.reshape(len(q), c.n_kv_heads, -1, c.head_size)
        scores = rows @ keys[:, :, :end].transpose(-1, -2)
        scores = self.scores(scores).reshape(*shape, end)
        sees, window = self._sees, c.layer(layer).window
        if window:
            sees = sees & (self._distance < window)
        shares = scores.masked_fill(~sees[:, None, None], -torch.inf).softmax(-1)
        attended = shares.flatten(2, 3) @ values[:, :, :end]
        attended = attended.reshape(*shape, c.head_size)
        return attended.flatten(1, 2).transpose(1, 2).flatten(-2)

    def _rotated(self, x: Tensor, layer: int) -> Tensor:
        heads = split_heads(x, self.config.head_size).transpose(1, 2)
        return rotated(heads, *self._angles[rope_of(self.config.layer(layer))])


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Has torch compute with one thread, in threads that begin meanwhile, too."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)


def _drawn(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """Returns a token of each row [B], the likeliest where the temperature is 0."""
    if not temperature:
        return logits.argmax(-1)
    # One random number of each row; torch.multinomial draws one of each token.
    sums = (logits / temperature).softmax(-1).cumsum(-1)
    drawn = torch.rand(len(logits), 1, generator=generator) * sums[:, -1:]
    return torch.searchsorted(sums, drawn, right=True)[:, 0].clamp(max=logits.shape[1] - 1)
