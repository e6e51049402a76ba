"""Toy parts: a session that computes next to nothing, and a byte-level tokenizer trained here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from edgedec.models.errors import SessionError
from edgedec.runtime.engine import Engine, LoadedModel
from edgedec.runtime.sessions.session import Rows, TokenLedger, TokenTree
from edgedec.runtime.sessions.state import SessionState
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


class ToySession:
    """A `ModelSession` whose logits are a function of the tokens before; it counts what it runs."""

    def __init__(
        self,
        vocab_size: int,
        context: int = 256,
        rule: Callable[[Sequence[int]], Row] | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.n_rows = 0
        self.n_passes = 0
        self.is_closed = False
        self.before_pass: Callable[[], None] = lambda: None
        self._rule = rule or self._random_row
        self._ledger = TokenLedger(context)

    @property
    def tokens(self) -> Sequence[int]:
        return self._ledger.tokens

    @property
    def n_tokens(self) -> int:
        return len(self._ledger.tokens)

    @property
    def context(self) -> int:
        return self._ledger.context

    @property
    def nbytes(self) -> int:
        return 8 * self.n_tokens

    def forward(
        self,
        tree: TokenTree,
        logit_rows: Sequence[int],
        hidden_layers: Sequence[int] = (),
        *,
        n_known: int = 0,
        with_logits: bool = True,
    ) -> Rows:
        if self.is_closed:
            raise SessionError("closed")
        self._ledger.check_room(tree)
        self._ledger.check_known(tree, n_known)
        self.before_pass()
        self.n_rows += len(tree) - n_known
        self.n_passes += 1
        self._ledger.pending = tree
        rows = [self._rule(self._prefix(tree, i)) for i in logit_rows]
        return Rows(np.array(rows, np.float32).reshape(len(rows), self.vocab_size))

    def commit(self, path: Sequence[int]) -> None:
        self._ledger.accept(self._ledger.check_path(path), path)

    def truncate(self, n_tokens: int) -> None:
        self._ledger.check_truncate(n_tokens)
        self._ledger.truncate(n_tokens)

    def snapshot(self, n_tokens: int | None = None, start: int = 0) -> SessionState:
        n_tokens = self._ledger.check_snapshot(n_tokens, start)
        return toy_state(self.tokens[:n_tokens], start)

    def restore(self, state: SessionState) -> None:
        self._ledger.check_state(state, toy_state([], 0).layout, self.vocab_size)
        expected = toy_state(state.tokens, state.start).kv_rows["rows"]
        np.testing.assert_array_equal(state.kv_rows["rows"], expected)
        self._ledger.truncate(state.start)
        self._ledger.tokens.extend(state.tokens[state.start :])

    def close(self) -> None:
        self.is_closed = True

    def _prefix(self, tree: TokenTree, row: int) -> list[int]:
        branch: list[int] = []
        while row >= 0:
            branch.append(tree.tokens[row])
            row = tree.parents[row]
        return [*self.tokens, *reversed(branch)]

    def _random_row(self, prefix: Sequence[int]) -> Row:
        rng = np.random.default_rng([len(prefix), *prefix[-3:]])
        return (4 * rng.standard_normal(self.vocab_size)).astype(np.float32)


def toy_state(tokens: Sequence[int], start: int) -> SessionState:
    """Returns a state whose row of each token tells the token and all before it."""
    rows = np.zeros((1, 1, len(tokens), 1), np.int64)
    digest = 0
    for i, token in enumerate(tokens):
        digest = (digest * 1_000_003 + token + 1) % (1 << 61)
        rows[..., i, 0] = digest
    return SessionState(tuple(tokens), start, {"rows": rows[:, :, start:]})


@pytest.fixture(scope="session")
def backend() -> tokenizers.Tokenizer:
    """Returns a small byte-level BPE tokenizer with ChatML's special tokens."""
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
    return made


@pytest.fixture
def tokenizer(backend: tokenizers.Tokenizer) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(backend.to_str()))


@pytest.fixture
def make_engine(tokenizer: Tokenizer) -> Callable[..., Engine]:
    """Returns a maker of engines over a `ToySession`."""

    def make(
        rule: Callable[[Sequence[int]], Row] | None = None,
        context: int = 256,
        template: str | None = CHATML,
        **fields: Any,
    ) -> Engine:
        session = ToySession(tokenizer.vocab_size, context, rule)
        chat_template = None if template is None else ChatTemplate(template)
        encoder = PromptEncoder(tokenizer, chat_template, fields.pop("bos_token_id", None))
        return Engine(LoadedModel(session, tokenizer, encoder, **fields))

    return make


def one_hot(vocab_size: int, token: int) -> Row:
    """Returns logits that leave no doubt."""
    row = np.zeros(vocab_size, np.float32)
    row[token] = 9.0
    return row
