"""Excerpts of other open documents, for the model to read before the one that is written in."""

from __future__ import annotations

import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from edgedec.autocomplete.document import Document, Excerpt
from edgedec.runtime.config.checks import check_type

_N_DOCUMENTS = 8
"""Most documents that are looked through: those seen last."""

_REACH = 8192
"""Characters on either side of the place where somebody was last."""

_N_LINES = 12
"""Of an excerpt; those that follow one another become one."""

_WORD = re.compile(r"[^\W\d]\w{2,}")


@dataclass(frozen=True)
class _Seen:
    """What is known of another document."""

    name: str
    text: str

    @cached_property
    def parts(self) -> tuple[tuple[str, frozenset[str]], ...]:
        """The document in parts of some lines, with the words of each."""
        lines = self.text.splitlines(keepends=True)
        texts = ("".join(lines[i : i + _N_LINES]) for i in range(0, len(lines), _N_LINES))
        return tuple((text, frozenset(_WORD.findall(text))) for text in texts)


class OtherDocuments:
    """The documents that were seen last; of any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, _Seen] = OrderedDict()

    def see(self, document: Document) -> None:
        """Takes note of a document as it is now."""
        check_type("document", document, Document, "a Document")
        start = max(0, document.cursor - _REACH)
        text = document.text[start : document.cursor + _REACH]
        with self._lock:
            known = self._seen.pop(document.name, None)
            is_same = known is not None and known.text == text
            self._seen[document.name] = known if is_same and known else _Seen(document.name, text)
            if len(self._seen) > _N_DOCUMENTS:
                self._seen.popitem(last=False)

    def forget(self, name: str) -> None:
        """Forgets a document that was closed."""
        with self._lock:
            self._seen.pop(name, None)

    def has(self, excerpts: Iterable[Excerpt]) -> bool:
        """Says whether all of ``excerpts`` still stand in their documents."""
        with self._lock:
            return all(
                excerpt.name in self._seen and excerpt.text in self._seen[excerpt.name].text
                for excerpt in excerpts
            )

    def choose(
        self, name: str, near: str, n_tokens: int, cost: Callable[[Excerpt], int]
    ) -> tuple[Excerpt, ...]:
        """Returns the excerpts that have most in common with a text, the latest document last.

        A word counts the more the fewer parts of the documents have it. Parts with no other words
        than ``near`` are left out.

        Args:
            name: Of the document that ``near`` is of, which is none of the others.
            near: What is around the cursor.
            n_tokens: Most that the excerpts may cost.
        """
        with self._lock:
            others = [seen for seen in self._seen.values() if seen.name != name]
        n_having = Counter(word for seen in others for _, words in seen.parts for word in words)
        nearby = frozenset(_WORD.findall(near))
        scored = [
            (sum(1 / n_having[word] for word in words & nearby), i, j)
            for i, seen in enumerate(others)
            for j, (_, words) in enumerate(seen.parts)
            if words - nearby
        ]
        chosen: list[tuple[int, int]] = []
        for score, i, j in sorted(scored, reverse=True):
            price = cost(Excerpt(others[i].name, others[i].parts[j][0]))
            if score > 0 and price <= n_tokens:
                n_tokens -= price
                chosen.append((i, j))
        return tuple(_joined(others, sorted(chosen)))


def _joined(others: list[_Seen], chosen: list[tuple[int, int]]) -> Iterator[Excerpt]:
    """Yields the chosen parts, those that follow one another as one."""
    text = ""
    for n, (i, j) in enumerate(chosen):
        text += others[i].parts[j][0]
        if chosen[n + 1 : n + 2] != [(i, j + 1)]:
            yield Excerpt(others[i].name, text)
            text = ""
