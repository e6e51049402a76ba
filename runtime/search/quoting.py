"""The likeliest quote of a text as the answer to a question."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from edgedec.models.errors import LARGER_CONTEXT, ConfigError, SessionError
from edgedec.models.fields import shown
from edgedec.runtime.config.checks import check_count, check_progress
from edgedec.runtime.engine.lending import Lending
from edgedec.runtime.engine.loaded import LoadedModel
from edgedec.runtime.search.growing_tree import MAX_NODES
from edgedec.runtime.search.quote import QuotedSpan, Search, ranked
from edgedec.runtime.search.spans import Spans, token_ends
from edgedec.runtime.sequences.passes import Passes
from edgedec.runtime.sequences.prefill import Progress, caught_up
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.text.tokenizer import Codec

_CHAT = "{text}\n\n{question}\nAnswer with a short quote from the text, and nothing else."
_PLAIN = "{text}\n\nQuestion: {question}\nAnswer, quoted from the text:"
_PART = 1024
"""Most tokens of a text that are read at once."""
_TOKEN_CHARACTERS = 8
"""Of a long text, as many for each token are looked at."""


@dataclass(frozen=True)
class Quote:
    """What `Engine.quote` returns.

    best: the likeliest span. runner_up: the likeliest one of another text.
    n_spans: spans to choose from, as tokens. n_passes, n_computed: passes over them, and their
    tokens, without those that read the text. n_parts: that the text was read in.
    """

    best: QuotedSpan
    runner_up: QuotedSpan | None
    n_spans: int
    n_passes: int
    n_computed: int
    n_parts: int

    @property
    def text(self) -> str:
        """The likeliest span."""
        return self.best.text

    @property
    def probability(self) -> float:
        """Of the likeliest span."""
        return self.best.probability

    def to_dict(self) -> dict[str, Any]:
        """Returns what `edgedec run --quote --json` prints."""
        other = self.runner_up
        return {
            **_fields(self.best),
            "runner_up": None if other is None else _fields(other),
            "n_spans": self.n_spans,
            "n_passes": self.n_passes,
            "n_computed": self.n_computed,
            "n_parts": self.n_parts,
        }


def _fields(span: QuotedSpan) -> dict[str, Any]:
    return {"text": span.text, "offset": span.offset, "probability": span.probability}


def quote(
    lending: Lending,
    question: str,
    text: str,
    max_tokens: int,
    on_progress: Progress | None,
) -> Quote:
    """Returns the likeliest quote; see `Engine.quote`."""
    for name, content in (("question", question), ("text", text)):
        if not isinstance(content, str) or not content.strip():
            raise ConfigError(f"the {name} is {shown(content)}: expected text, and not only blanks")
    check_count("max_tokens", max_tokens, 1, "the most tokens of a quote")
    check_progress(on_progress)
    asking = _Asking(lending.loaded, question, max_tokens)
    parts = asking.parts(text)
    spans: list[QuotedSpan] = []
    n_spans = n_passes = n_computed = 0
    for i, (start, part) in enumerate(parts):
        search = asking.search(part)
        tokens = asking.prompt(part)
        lending.run(tokens, partial(_steps, search, tokens))
        spans += [QuotedSpan(span.text, start + span.offset, span.log_prob) for span in search.best]
        n_spans += search.spans.count()
        n_passes, n_computed = n_passes + search.n_passes, n_computed + search.n_places
        if on_progress is not None:
            on_progress("quote", i + 1, len(parts))
    best = ranked(spans, 2)
    if not best:
        raise SessionError("this model's tokenizer changes the text, so that no quote is certain")
    runner_up = best[1] if len(best) > 1 else None
    return Quote(best[0], runner_up, n_spans, n_passes, n_computed, len(parts))


class _Asking:
    """One question, put to parts of a text."""

    def __init__(self, loaded: LoadedModel, question: str, max_tokens: int) -> None:
        self._loaded = loaded
        self._question = question
        self._max_tokens = max_tokens
        self._decode = loaded.tokenizer.decode
        self._ends = frozenset(loaded.stop_token_ids)
        if not loaded.encoder.has_template:
            self._ends |= frozenset(loaded.tokenizer.encode("\n")[-1:])

    def prompt(self, part: str) -> list[int]:
        """Returns what asks for a quote from ``part``."""
        if self._loaded.encoder.has_template:
            message = _CHAT.format(text=part, question=self._question)
            return self._loaded.encoder.encode([{"role": "user", "content": message}])
        return self._loaded.encoder.encode(_PLAIN.format(text=part, question=self._question))

    def parts(self, text: str) -> list[tuple[int, str]]:
        """Returns what is read at once, each with its offset; every span lies whole in one.

        Raises:
            SessionError: The question leaves no room for a text.
        """
        n_around = len(self.prompt("")) + 1
        most = min(_PART, self._loaded.context - n_around - max(MAX_NODES, self._max_tokens + 1))
        if most < 4 * self._max_tokens:
            raise SessionError(
                f"the question leaves {max(0, most)} tokens of a context of {self._loaded.context} "
                f"for the text, expected at least {4 * self._max_tokens}: ask a shorter "
                f"question, or for shorter quotes, or use {LARGER_CONTEXT}"
            )
        return list(cut(self._loaded.tokenizer, text, most, 2 * self._max_tokens))

    def search(self, part: str) -> Search:
        """Returns a search of the quotes of a part."""
        spans = Spans(self._loaded.tokenizer, part, self._max_tokens)
        return Search(spans, self._ends, self._decode)


def cut(codec: Codec, text: str, most: int, overlap: int) -> Iterator[tuple[int, str]]:
    """Yields parts of at most ``most`` tokens. Neighbours share ``overlap`` tokens."""
    start = 0
    while True:
        window = text[start : start + _TOKEN_CHARACTERS * most]
        ends = token_ends(codec, window)[:most]
        while len(ends) > 1 and len(codec.encode(window[: ends[-1]])) > most:
            ends = ends[: len(ends) // 2]
        yield start, window[: ends[-1]]
        if start + ends[-1] == len(text):
            return
        start += ends[max(0, len(ends) - overlap - 1)]


def _steps(search: Search, tokens: list[int], sequence: TokenSequence) -> Passes[None]:
    """Reads a prompt and searches the spans of its part."""
    yield from caught_up(sequence, tokens[:-1])
    yield from search.run(sequence, tokens[-1])
