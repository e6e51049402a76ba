"""The next edit of a document, while somebody works on it."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

from edgedec.autocomplete.document import Document
from edgedec.autocomplete.edits.changes import Change, EditHistory
from edgedec.autocomplete.edits.edit import Edit, EditAnswer
from edgedec.autocomplete.edits.edit_prompt import EditContext, EditPrompt
from edgedec.autocomplete.edits.formats import FORMATS
from edgedec.autocomplete.edits.hunks import Hunk
from edgedec.autocomplete.edits.lines import line_end_of, lines_with_ends, without_end
from edgedec.autocomplete.edits.quiet import Quiet, is_related, is_unwanted
from edgedec.autocomplete.edits.rewriting import Rewriting
from edgedec.autocomplete.edits.window import EditWindow, likely_lines, line_of
from edgedec.models.errors import ConfigError, EdgedecError, SessionError
from edgedec.runtime.backends import running_passes as running_passes
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.checks import check_count, check_number, check_type
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.stream import Stream

_PASS_MS = 40.0  # of a prompt that is being read; a key that ends a pass loses what is in it
_GROWTH = 64  # tokens by which an answer may be longer than the window
_MAX_TOKENS = 4096  # of a prompt and its answer, as Zed's editor has it
_MAX_CHARACTERS = 4 * _MAX_TOKENS  # of a window, and of a change; people write no longer ones
_N_ANSWERS = 256  # that are kept, so that a day takes no more memory than an hour
_MIN_PROBABILITY = 0.5  # of an edit that is offered, without calibration
_MAX_ABOVE = 10  # lines by which the window at the cursor begins earlier, if a likely line is there
_N_PLACES = 2  # windows that are asked about after one key


@dataclass(frozen=True, kw_only=True)
class EditConfig:
    """How edits are predicted.

    format: how the model is asked, one of `FORMATS`. n_lines: of a window; None: as many as the
        publisher of the format takes.
    min_probability: of an edit that is offered; None: what the bundle was calibrated to, or 0.5.
    method: how it is decoded; see `edgedec run --method`.

    Raises:
        ConfigError: A value makes no sense.
    """

    format: str = "instruction"
    n_lines: int | None = None
    min_probability: float | None = None
    method: str = "auto"

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            names = ", ".join(FORMATS)
            raise ConfigError(f"the format of edits is {self.format!r}, expected one of {names}")
        if self.n_lines is not None:
            check_count("n_lines of edits", self.n_lines, 1, "lines of a document")
        if self.min_probability is not None:
            check_number("min_probability of edits", self.min_probability, 0, 1, "1 is certain")
        check_type("method of edits", self.method, str, "a name such as 'auto'")

    def bound(self, engine: Engine) -> float:
        """Returns the probability below which no edit of an engine's model is offered."""
        if self.min_probability is not None:
            return self.min_probability
        return engine.loaded.edit_bounds.get(self.format, _MIN_PROBABILITY)


class EditPredictor:
    """Predicts the edit that follows those made so far. It owns a thread, not the engine.

    Show it each state of each document with `update`; it finds out by itself what was changed. A
    newer state ends the prediction for the older one within a pass.

    answers: what the model made of the latest windows, the likely edits and the others.
    """

    def __init__(
        self,
        engine: Engine,
        config: EditConfig | None = None,
        history: EditHistory | None = None,
    ) -> None:
        """Starts the thread.

        history: what is known of documents, if somebody else keeps it.
        """
        check_type("engine", engine, Engine, "an Engine, which edgedec.load returns")
        self._engine = engine
        self._config = EditConfig() if config is None else config
        self._bound = self._config.bound(engine)
        engine.check_sequential("edits while typing")
        self._format = FORMATS[self._config.format](engine)
        if self._config.n_lines is not None and not self._format.n_lines:
            raise ConfigError(
                f"n_lines of edits is {self._config.n_lines}, expected none: the format "
                f"{self._config.format} takes as many lines as its model knows. Leave it out"
            )
        self._history = EditHistory() if history is None else history
        self._quiet = Quiet()
        self.answers: deque[EditAnswer] = deque(maxlen=_N_ANSWERS)
        self._changed = threading.Condition()
        self._next: tuple[Document, tuple[int, ...]] | None = None
        self._future: Future[Edit | None] = Future()
        self._version, self._updated_s = 0, 0.0
        self._is_closed = False
        self._failure = ""
        self._thread = threading.Thread(target=self._work, name="edits", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, document: Document, marked: tuple[int, ...] = ()) -> Future[Edit | None]:
        """Says that the document changed, or the cursor moved; returns at once.

        Args:
            marked: Lines with diagnostics, from 0.

        Returns:
            The edit that is likely to be next, or None where there is none; cancelled by the next
            update.

        Raises:
            SessionError: The predictor is closed, or the engine failed.
        """
        check_type("document", document, Document, "a Document")
        with self._changed:
            if self._is_closed or self._failure:
                raise SessionError(self._failure or "the predictor is closed: make another")
            self._future.cancel()
            self._future = Future()
            self._version += 1
            self._updated_s = time.perf_counter()
            self._next = document, tuple(marked)
            self._history.see(document)
            running_passes.end_passes(thread=self._thread.ident)
            self._changed.notify()
            return self._future

    def pause(self) -> None:
        """Computes no more until the next update; what is being computed ends within a pass."""
        with self._changed:
            self._future.cancel()
            self._next = None
            self._version += 1
            running_passes.end_passes(thread=self._thread.ident)

    def see(self, document: Document) -> None:
        """Takes note of a document as it is, without asking for an edit."""
        self._history.see(document)

    def dismiss(self, edit: Edit) -> None:
        """An edit was not wanted: it is not offered again."""
        self._quiet.dismiss(edit)

    def accept(self, edit: Edit) -> None:
        """An edit was taken: what somebody then takes back of it is not offered again."""
        self._quiet.accept(edit)

    def skip(self, edit: Edit) -> None:
        """Another edit is wanted: this one is not offered before the document changes."""
        self._quiet.skip(edit)

    def forget(self, name: str) -> None:
        """A document was closed."""
        self._history.forget(name)

    def close(self) -> None:
        """Ends what is being computed, and the thread. Closing twice is fine."""
        with self._changed:
            self._is_closed = True
            self._future.cancel()
            running_passes.end_passes(thread=self._thread.ident)
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        try:
            while (task := self._take()) is not None:
                document, marked, version, future = task
                edit = self._finish(document, marked, version)
                with suppress(InvalidStateError):  # the next update may cancel it in between
                    future.set_result(edit)
        except BaseException as error:
            with self._changed:
                self._failure = f"the prediction of edits ended: {error}"
                self._future.cancel()
            if not isinstance(error, EdgedecError):
                raise

    def _finish(self, document: Document, marked: tuple[int, ...], version: int) -> Edit | None:
        """Predicts, and does so again if it is the prediction before that was to be ended."""
        while not self._is_stale(version):
            with suppress(KeyboardInterrupt):  # what `end_passes` raises
                return self._predict(document, marked, version)
        return None

    def _take(self) -> tuple[Document, tuple[int, ...], int, Future[Edit | None]] | None:
        """Waits for a state that was not looked at yet; None when closed."""
        with self._changed:
            while not self._is_closed and self._next is None:
                self._changed.wait()
            if self._is_closed or self._next is None:
                return None
            (document, marked), self._next = self._next, None
            return document, marked, self._version, self._future

    def _is_stale(self, version: int) -> bool:
        return self._is_closed or version != self._version

    def _predict(self, document: Document, marked: tuple[int, ...], version: int) -> Edit | None:
        changes = self._history.changes
        if not changes or changes[-1].n_characters > _MAX_CHARACTERS:
            return None
        if "\0" in document.text:  # a binary file
            return None
        changes = [change for change in changes if change.n_characters <= _MAX_CHARACTERS]
        for window in self._windows(document, marked):
            is_long = len(window.text) > _MAX_CHARACTERS  # a line of a minified file is
            prompt = None if is_long else self._prompt(document, window, changes)
            if prompt is None:
                continue
            answer = self._ask(document, window, prompt, version)
            if answer is None or self._is_stale(version):
                return None
            self.answers.append(answer)
            if answer.edit is not None and answer.edit.probability >= self._bound:
                return answer.edit
        return None

    def _windows(self, document: Document, marked: tuple[int, ...]) -> Iterator[EditWindow]:
        """Yields what to look at: around the cursor, then around likely lines outside of that."""
        here = line_of(document)
        likely = likely_lines(document, self._history.changes, marked)
        near = (here - line for line in likely if 0 < here - line <= _MAX_ABOVE)
        window = self._window(document, here, max(self._format.n_above, *near, 0))
        yield window
        end = window.first + len(window.lines)
        far = [line for line in likely if not window.first <= line < end]
        for line in far[: _N_PLACES - 1]:
            yield self._window(document, line, self._format.n_above)

    def _window(self, document: Document, line: int, n_above: int) -> EditWindow:
        """Returns the window of a line. Models expect the cursor in it: it is put there."""
        if line != line_of(document):
            at = sum(map(len, lines_with_ends(document.text)[:line]))
            document = replace(document, cursor=at)
        n_lines = self._config.n_lines or self._format.n_lines
        return self._format.window(document, line, n_lines, min(n_above, n_lines // 2))

    def _prompt(
        self, document: Document, window: EditWindow, changes: Sequence[Change]
    ) -> EditPrompt | None:
        """Returns the prompt with as many of the latest changes as there is room for.

        None if there is no room, or if the code holds marks of the format.
        """
        if any(mark in text for text in _texts(window) for mark in self._format.reserved):
            return None
        changes = [change for change in changes if not self._is_reserved(change)]
        room = min(self._engine.context, _MAX_TOKENS) - self._n_new_tokens(window) - 1
        for first in range(len(changes)):
            prompt = self._format.prompt(EditContext(document, window, changes[first:]))
            if len(prompt.tokens) <= room:
                return prompt
        return None

    def _is_reserved(self, change: Change) -> bool:
        lines = (*change.above, *change.before, *change.after, *change.below)
        return any(mark in f"{line}\n" for line in lines for mark in self._format.reserved)

    def _n_new_tokens(self, window: EditWindow) -> int:
        """Returns the most tokens of an answer."""
        return len(self._engine.tokenizer.encode(window.text)) + _GROWTH

    def _ask(
        self, document: Document, window: EditWindow, prompt: EditPrompt, version: int
    ) -> EditAnswer | None:
        """Returns the model's answer up to its first change; None if the question is stale."""
        request = GenerationConfig(
            max_new_tokens=self._n_new_tokens(window),
            method=self._config.method,
            prediction=prompt.prediction,
            stop=prompt.stop,
            stop_token_ids=prompt.stop_token_ids,
            prefill_pass_ms=_PASS_MS,
        )
        stream = self._engine.stream(prompt.tokens, request)
        stream.watch()
        rewriting, edit = Rewriting(window, prompt.marks), None
        rewriting.read(prompt.opening, 0.0)
        try:
            for piece in stream.pieces:
                if self._is_stale(version):
                    return None
                rewriting.read(piece.text, _log_prob(stream))
                if "\n" in piece.text:
                    edit = self._first_edit(document, window, rewriting, version, False)
                if edit is not None:
                    break
        finally:
            stream.stop()
        is_finished = stream.result.finish_reason == "stop"
        if edit is None and is_finished and rewriting.finish(_log_prob(stream)):
            # of an answer that was cut off, what is missing is not left out
            edit = self._first_edit(document, window, rewriting, version, True)
        is_shown = edit is not None and self._is_sensible(edit, document)
        return EditAnswer(
            rewriting.text,
            edit if is_shown else None,
            len(prompt.tokens),
            len(prompt.tokens) - stream.n_reused_tokens,
            stream.result.n_new_tokens,
            stream.result.stats.n_passes,
            self._ms,
        )

    @property
    def _ms(self) -> float:
        """Since the update."""
        return 1000 * (time.perf_counter() - self._updated_s)

    def _first_edit(
        self,
        document: Document,
        window: EditWindow,
        rewriting: Rewriting,
        version: int,
        is_whole: bool,
    ) -> Edit | None:
        """Returns the first change that was not refused before, also one that is not shown.

        None if the answer is another text than the window.
        """
        while (hunk := rewriting.hunk(is_whole)) is not None and not rewriting.is_other(hunk):
            edit = self._edit(document, window, rewriting, hunk, version)
            if not self._is_wanted(edit, document) or not self._quiet.is_refused(edit, document):
                return edit
            rewriting.pass_over(hunk)
        return None

    def _is_wanted(self, edit: Edit, document: Document) -> bool:
        """Says whether an edit is likely, and one that somebody may want to see."""
        return edit.probability >= self._bound and self._is_sensible(edit, document)

    def _is_sensible(self, edit: Edit, document: Document) -> bool:
        changes = self._history.changes
        is_any = self._format.is_trained or self._bound == 0
        is_expected = is_any or is_related(edit, document, changes)
        return is_expected and not is_unwanted(edit, document, changes)

    def _edit(
        self,
        document: Document,
        window: EditWindow,
        rewriting: Rewriting,
        hunk: Hunk,
        version: int,
    ) -> Edit:
        """Returns a change as an edit of the document."""
        whole = lines_with_ends(document.text[window.start :])
        start = window.start + sum(map(len, whole[: hunk.start]))
        end = start + sum(map(len, whole[hunk.start : hunk.old_end]))
        ending = line_end_of(document.text)
        text = "".join(line + ending for line in rewriting.new_lines(hunk))
        if end == len(document.text) and document.text and not document.text.endswith(("\n", "\r")):
            text = text.removesuffix(ending)
            if start == end:  # new lines behind a last one that has no end
                text = ending + text
            elif not text and start:  # the line before becomes that last one
                start = len(without_end(document.text[:start]))
        n_same = _n_same(document.text[start:end], text)
        line, probability = window.first + hunk.start, rewriting.probability(hunk)
        jump = start + n_same
        return Edit(document.name, start, end, text, line, jump, probability, self._ms, version)


def _texts(window: EditWindow) -> tuple[str, ...]:
    return window.above, window.text, window.below


def _log_prob(stream: Stream) -> float:
    """Returns that of the latest token."""
    return 0.0 if stream.signal is None else math.log(max(stream.signal.top_prob, 1e-30))


def _n_same(old: str, new: str) -> int:
    """Returns how many characters two texts have in common at their beginning."""
    n = 0
    while n < min(len(old), len(new)) and old[n] == new[n]:
        n += 1
    return n
