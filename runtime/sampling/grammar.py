"""Outputs that follow a JSON schema, a regular expression or a grammar; llguidance keeps track.

Stop tokens are allowed where the output would be complete, and nowhere else.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from edgedec.models.errors import ConfigError, RefusedGrammarError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.sampling.schema_grammar import (
    Grammar,
    llguidance,
    one_line,
    schema_grammar,
)
from edgedec.runtime.sampling.token_mask import Allowed
from edgedec.runtime.text.common_prefix import common_prefix
from edgedec.runtime.text.tokenizer import Codec

_MAX_COMPILED = 8


class Grammars:
    """Makes the masks of requests, over one tokenizer. The latest grammars stay compiled."""

    def __init__(self, codec: Codec, n_ids: int) -> None:
        """n_ids: the model's logits, of which the last may stand for no token."""
        self._codec = codec
        self._n_ids = n_ids
        self._tokenizer: Any = None  # llguidance's
        self._compiled: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def mask(self, request: GenerationConfig, stop_token_ids: frozenset[int]) -> GrammarMask | None:
        """Returns the mask that ``request`` asks for, if any.

        Raises:
            ConfigError: The grammar is broken or cannot be satisfied, or llguidance is missing.
        """
        constraint = request.constraint
        if constraint is None:
            return None
        if constraint not in self._compiled:
            self._compiled[constraint] = self._compile(*constraint)
            if len(self._compiled) > _MAX_COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(constraint)
        matcher = self._compiled[constraint].deep_copy()
        return GrammarMask(matcher, self._n_ids, stop_token_ids, self._vocabulary.twins)

    @cached_property
    def _vocabulary(self) -> _Vocabulary:
        return _Vocabulary(self._codec, self._n_ids)

    def _matcher(self, grammar: str) -> tuple[Any, str]:
        """Returns the matcher and why it is refused, empty if it is not."""
        try:
            matcher = llguidance().LLMatcher(self._tokenizer, grammar, log_level=0)
        except ValueError as error:
            return None, str(error)
        return matcher, matcher.get_error()

    def _compile(self, kind: str, text: str) -> Any:
        """Returns the matcher, at its start."""
        library = llguidance()
        if self._tokenizer is None:
            wrapper = library.TokenizerWrapper(self._vocabulary)
            self._tokenizer = library.LLTokenizer(wrapper)
        is_schema = kind == "json_schema"
        matcher = self._of_schema(text) if is_schema else self._of_grammar(kind, text)
        mask = GrammarMask(matcher.deep_copy(), self._n_ids, frozenset())
        try:
            is_finished = mask.is_finished
        except ConfigError as error:
            raise RefusedGrammarError(f"{kind} is refused: {error}") from None
        if is_finished:
            raise RefusedGrammarError(f"{kind} allows only the empty text: allow more")
        return matcher

    def _of_grammar(self, kind: str, text: str) -> Any:
        """Returns the matcher of an expression or a grammar; of a list of grammars, as well."""
        matchers = llguidance().LLMatcher
        if is_list := kind == "grammar" and text.lstrip().startswith("{"):
            grammar = text
        elif kind == "grammar":
            grammar = matchers.grammar_from_lark(text)
        else:
            grammar = matchers.grammar_from_regex(text)
        matcher, reason = self._matcher(grammar)
        if reason and is_list:  # whose text nobody wrote: what it says of it is left out
            raise RefusedGrammarError(f"the schemas together are refused: {reason.splitlines()[0]}")
        if reason:
            raise RefusedGrammarError(f"{kind} is refused: {one_line(reason)}")
        return matcher

    def _of_schema(self, text: str) -> Any:
        """Returns the matcher of a schema."""
        matcher: Any = None

        def check(grammar: Grammar) -> str:
            nonlocal matcher
            matcher, reason = self._matcher(json.dumps({"grammars": [grammar]}))
            return reason

        schema_grammar(text, check)
        return matcher


@dataclass(frozen=True)
class _Place:
    """What the grammar says after some tokens.

    row: the tokens of the text that may follow. is_complete: none need follow.
    """

    row: Allowed
    is_complete: bool


class GrammarMask:
    """A `TokenMask` over one matcher, which walks to where it is asked and back."""

    is_free = False

    def __init__(
        self,
        matcher: Any,
        n_ids: int,
        stop_token_ids: frozenset[int],
        twins: Sequence[Sequence[int]] = (),
    ) -> None:
        """twins: groups of tokens that are spelt alike; the matcher knows one of each."""
        self._matcher = matcher
        self._twins = twins
        self._n_ids = n_ids
        self._stops = sorted(token for token in stop_token_ids if token < n_ids)
        self._path: list[int] = []  # where the matcher is, beyond the accepted tokens
        self._places: dict[tuple[int, ...], _Place] = {}
        self._is_stopped = False

    def begin(self, prompt: Sequence[int]) -> None:
        """A new output starts; the prompt is no part of it."""
        self._matcher.reset()
        self._path.clear()
        self._places.clear()
        self._is_stopped = False

    def row_after(self, tokens: Sequence[int]) -> Allowed | None:
        """Returns the tokens allowed after the accepted ones and ``tokens``; None allows all.

        Behind the end of the grammar that is so, for nothing there is emitted.

        Shapes: [V] bool.
        """
        place = self._place(tuple(tokens))
        return None if place is None or not place.row.any() else self._with_stops(place)

    def accept(self, token: int) -> None:
        """Records ``token`` as emitted."""
        if token in self._stops:
            self._is_stopped = True
            return
        self._walk((token,))
        self._path.clear()  # from now on paths begin after it
        self._places = {
            path[1:]: place for path, place in self._places.items() if path[:1] == (token,)
        }

    @property
    def is_finished(self) -> bool:
        """Nothing may follow what was accepted."""
        place = self._place(())
        return self._is_stopped or place is None or not place.row.any()

    def forced(self) -> Sequence[int]:
        """Returns the tokens of the text that has to follow, as the tokenizer would write it."""
        self._walk(())
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens

    def _with_stops(self, place: _Place) -> Allowed:
        row = place.row.copy()
        row[self._stops] = place.is_complete
        return row

    def _place(self, path: tuple[int, ...]) -> _Place | None:
        """Returns what may follow ``path``; None if the grammar ends within it."""
        if path not in self._places:
            if not self._walk(path):
                return None
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            self._check()
            row = np.unpackbits(bits, count=self._n_ids, bitorder="little").view(np.bool_)
            for twins in self._twins:
                row[twins] = row[twins].any()
            place = _Place(row, self._matcher.is_accepting())
            if not (place.is_complete or row.any()):
                raise RefusedGrammarError(
                    "the grammar reaches a state that no token fits: correct the grammar"
                )
            self._places[path] = place
        return self._places[path]

    def _walk(self, path: Sequence[int]) -> bool:
        """Moves the matcher to the end of ``path``; False if the grammar ends before."""
        n_common = common_prefix(self._path, path)
        if n_common < len(self._path):
            self._matcher.rollback(len(self._path) - n_common)
            del self._path[n_common:]
        for token in path[n_common:]:
            if self._matcher.is_stopped():
                return False
            self._matcher.consume_token(token)
            self._check()
            self._path.append(token)
        return True

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RefusedGrammarError(f"the grammar fails: {one_line(self._matcher.get_error())}")


class _Vocabulary:
    """A tokenizer as llguidance asks for it.

    It states no end token, so that llguidance adds one behind the others: which tokens stop an
    output differs from request to request.
    """

    eos_token_id = None
    bos_token_id = None

    def __init__(self, codec: Codec, n_ids: int) -> None:
        self._codec = codec
        self.tokens = [b""] * n_ids
        self.special_token_ids: list[int] = []
        for token, spelling in codec.spellings().items():
            if token >= n_ids:
                continue
            if isinstance(spelling, str):
                self.special_token_ids.append(token)
                spelling = spelling.encode()
            self.tokens[token] = spelling
        alike: dict[bytes, list[int]] = {}
        for token in set(range(n_ids)).difference(self.special_token_ids):
            alike.setdefault(self.tokens[token], []).append(token)
        alike.pop(b"", None)
        self.twins = [tokens for tokens in alike.values() if len(tokens) > 1]

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._codec.encode(text)
