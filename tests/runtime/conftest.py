"""Toy parts: a session that computes next to nothing, and a byte-level tokenizer trained here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from edgedec.models.graph import Capabilities
from edgedec.runtime.backends.whole_cache import WholeCache
from edgedec.runtime.decoding.unmasking import MaskedModel
from edgedec.runtime.drafting.drafter_parts import DrafterParts, Shared
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.loaded import LoadedModel
from edgedec.runtime.methods.draft_source import DraftSource
from edgedec.runtime.methods.method_parts import MethodParts
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.state import KVRows, SessionState
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.runtime.text.chat_template import ChatTemplate
from edgedec.runtime.text.prompt import PromptEncoder
from edgedec.runtime.text.tokenizer import Tokenizer

Row = npt.NDArray[np.float32]
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CORPUS = [
    "The quick brown fox jumps over the lazy dog.",
    "user assistant system im_start im_end endoftext",
    "Größe naïve café 日本語 🙂🙂 👩‍👩‍👧 text text text",
    "    indented\n\n\nlines\tand   spaces",
]


class ToyModel:
    """A `Model` whose logits are a function of the tokens before; it counts what it runs."""

    def __init__(self, vocab_size: int, rule: Callable[[Sequence[int]], Row] | None = None) -> None:
        self.vocab_size = self.n_token_ids = vocab_size
        self.capabilities = Capabilities(trees=True, gates=True)
        self.n_layers = 1
        self.n_rows = 0
        self.n_passes = 0
        self.is_closed = False
        self.before_pass: Callable[[], None] = lambda: None
        self.rule = rule or self._random_row

    def new_state(self, context: int) -> ToyCache:
        return ToyCache(self)

    def compute(self, passes: Sequence[Pass]) -> list[Rows]:
        for wanted in passes:
            assert isinstance(wanted.sequence.state, ToyCache)
            wanted.sequence.state.check(wanted)
            assert all(wanted.n_known <= row < len(wanted.tree) for row in wanted.logit_rows)
        self.before_pass()
        self.n_rows += sum(len(wanted.tree) - wanted.n_known for wanted in passes)
        self.n_passes += 1
        return [self.rows_of(wanted) for wanted in passes]

    def rows_of(self, wanted: Pass) -> Rows:
        """Returns the asked rows; toys that answer otherwise override it."""
        rows = [self.rule(prefix_of(wanted, i)) for i in wanted.logit_rows]
        return Rows(np.array(rows, np.float32).reshape(len(rows), self.vocab_size))

    def close(self) -> None:
        self.is_closed = True

    def _random_row(self, prefix: Sequence[int]) -> Row:
        return (4 * _drawn(self.vocab_size, len(prefix), *prefix[-3:])).astype(np.float32)


@lru_cache(1 << 13)
def _drawn(n: int, *seed: int) -> npt.NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal(n)


class ToyCache(WholeCache):
    """A `SequenceState` whose row of each token tells the token and all before it."""

    def __init__(self, model: ToyModel) -> None:
        self._model = model
        self._tokens: list[int] = []

    def nbytes(self, n_tokens: int) -> int:
        return 8 * n_tokens

    def check(self, wanted: Pass) -> None:
        """Asserts that it holds what the pass follows."""
        assert self._tokens[: wanted.n_past] == list(wanted.sequence.tokens)

    def commit(self, n_past: int, tree: TokenTree, path: Sequence[int]) -> None:
        self._tokens[n_past:] = [tree.tokens[i] for i in path]

    def snapshot(self, start: int, stop: int) -> KVRows:
        return toy_state(self._tokens[:stop], start).kv_rows

    def restore(self, start: int, stop: int, kv_rows: KVRows) -> None:
        rows = kv_rows["rows"][0, 0, :, 0].tolist()
        digest = toy_digest(self._tokens[:start])
        del self._tokens[start:]
        for row in rows:
            token = (row - digest * _FACTOR) % _MODULUS - 1
            assert 0 <= token < self._model.n_token_ids  # another text's rows give none
            self._tokens.append(token)
            digest = row

    def close(self) -> None:
        self._tokens.clear()


class ToySession(TokenSequence):
    """A sequence of a `ToyModel` of its own."""

    def __init__(
        self,
        vocab_size: int,
        context: int = 256,
        rule: Callable[[Sequence[int]], Row] | None = None,
        model: ToyModel | None = None,
    ) -> None:
        self.toy = model or ToyModel(vocab_size, rule)
        super().__init__(self.toy, context)

    @property
    def n_rows(self) -> int:
        return self.toy.n_rows

    @n_rows.setter
    def n_rows(self, value: int) -> None:
        self.toy.n_rows = value

    @property
    def n_passes(self) -> int:
        return self.toy.n_passes

    @n_passes.setter
    def n_passes(self, value: int) -> None:
        self.toy.n_passes = value

    @property
    def before_pass(self) -> Callable[[], None]:
        return self.toy.before_pass

    @before_pass.setter
    def before_pass(self, value: Callable[[], None]) -> None:
        self.toy.before_pass = value


class OnePool:
    """A pool of one sequence, which is lent to whoever asks."""

    def __init__(self, sequence: TokenSequence) -> None:
        self.sequence = sequence
        self.model, self.context = sequence.model, sequence.context

    def take(self, text: Sequence[int], group: str = "") -> TokenSequence:
        return self.sequence

    def give_back(self, sequence: TokenSequence) -> None:
        assert sequence is self.sequence

    def forget(self) -> None:
        self.sequence.truncate(0)

    def close(self) -> None:
        self.sequence.close()


def prefix_of(wanted: Pass, row: int) -> list[int]:
    """Returns all tokens that a row of a pass comes after; of a block, those up to its own."""
    if wanted.tree.places:
        return [*wanted.sequence.tokens, *wanted.tree.tokens[: row + 1]]
    branch: list[int] = []
    while row >= 0:
        branch.append(wanted.tree.tokens[row])
        row = wanted.tree.parents[row]
    return [*wanted.sequence.tokens, *reversed(branch)]


_FACTOR, _MODULUS = 1_000_003, 1 << 61


def toy_digest(tokens: Sequence[int]) -> int:
    """Returns the row of the last of ``tokens``."""
    digest = 0
    for token in tokens:
        digest = (digest * _FACTOR + token + 1) % _MODULUS
    return digest


def toy_state(tokens: Sequence[int], start: int) -> SessionState:
    """Returns a state whose row of each token tells the token and all before it."""
    rows = np.zeros((1, 1, len(tokens), 1), np.int64)
    for i in range(len(tokens)):
        rows[..., i, 0] = toy_digest(tokens[: i + 1])
    return SessionState(tuple(tokens), start, {"rows": rows[:, :, start:]})


@pytest.fixture(scope="session")
def trained() -> str:
    """Returns the file of a small byte-level BPE tokenizer with ChatML's special tokens."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    return str(made.to_str())


@pytest.fixture
def backend(trained: str) -> tokenizers.Tokenizer:
    """Returns that tokenizer, to which a test may add tokens."""
    return tokenizers.Tokenizer.from_str(trained)


@pytest.fixture
def tokenizer(trained: str) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(trained))


@pytest.fixture
def make_engine(tokenizer: Tokenizer) -> Callable[..., Engine]:
    """Returns a maker of engines over a `ToyModel`."""

    def make(
        rule: Callable[[Sequence[int]], Row] | None = None,
        context: int = 256,
        template: str | None = CHATML,
        **fields: Any,
    ) -> Engine:
        model = fields.pop("model", None) or ToyModel(tokenizer.vocab_size, rule)
        chat_template = None if template is None else ChatTemplate(template)
        codec: Tokenizer = fields.pop("codec", tokenizer)
        opening = fields.pop("opening", ())
        encoder = fields.pop("encoder", None) or PromptEncoder(codec, chat_template, opening)
        draft: DraftSource | None = fields.pop("draft", None)
        of_drafters = {f.name for f in dataclasses.fields(DrafterParts)} & fields.keys()
        drafters = DrafterParts(
            draft=None if draft is None else Shared(draft.open),
            **{name: fields.pop(name) for name in of_drafters},
        )
        masked: MaskedModel | None = fields.pop("masked", None)
        methods = MethodParts(context, model.capabilities.hidden, drafters, draft, masked=masked)
        return Engine(LoadedModel(model, codec, encoder, methods, **fields))

    return make


def one_hot(vocab_size: int, token: int) -> Row:
    """Returns logits that leave no doubt."""
    row = np.zeros(vocab_size, np.float32)
    row[token] = 9.0
    return row
