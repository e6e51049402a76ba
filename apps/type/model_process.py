"""The model, in a process of its own: no key waits for it, and its end is not ours."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

_WORKER = ("-m", "edgedec.apps.typing.model_worker")
_LINE_BYTES = 1 << 20
_RESTART_S = 5.0
_LATER_S = 0.003
"""After a key, so that on a busy machine the application has the key before the model computes."""

OnOffer = Callable[[str, bool], None]
OnOthers = Callable[[Sequence[str]], None]


class ModelProcess:
    """Speaks with a worker, which has the model. All of it happens in the caller's event loop.

    Args:
        source, typing: settings for the worker's `follow`.
        on_offer: called with each continuation of the latest text, and whether it is complete.
        on_others: called with other continuations.
        on_remark: called with what the user should know.
    """

    def __init__(
        self,
        source: dict[str, Any],
        typing: dict[str, Any],
        on_offer: OnOffer,
        on_others: OnOthers,
        on_remark: Callable[[str], None],
    ) -> None:
        self._source, self._typing = source, typing
        self._on_offer, self._on_others, self._on_remark = on_offer, on_others, on_remark
        self._input: asyncio.StreamWriter | None = None
        self._number = 0  # of the worker's autocompleter; 0: there is none yet
        self._version = 0  # of the latest update
        self._text = "", ""  # that the latest update is about
        self._waiting: asyncio.TimerHandle | None = None  # that update, which was not asked yet

    @property
    def is_serving(self) -> bool:
        """The model is loaded."""
        return self._number > 0

    async def run(self) -> None:
        """Starts the worker, again if it ends; returns never."""
        while True:
            await self._run_once()
            self._on_remark(f"the model's process ended; it starts again in {_RESTART_S:g} s")
            await asyncio.sleep(_RESTART_S)

    def update(self, before: str, after: str) -> None:
        """Asks for a continuation of a text, in a moment, and only if no other text follows."""
        if not self._number:
            return
        self._give_up()
        self._text = before, after
        self._waiting = asyncio.get_running_loop().call_later(_LATER_S, self._update)

    def alternatives(self) -> None:
        """Asks for other continuations of the latest text."""
        if self._waiting is not None:
            self._give_up()
            self._update()
        if self._number:
            self._ask("alternatives", number=self._number, request=self._version)

    def pause(self) -> None:
        """Nobody wants what was asked for last."""
        self._give_up()
        if self._number:
            self._ask("pause", number=self._number)

    def follow(self, source: dict[str, Any], typing: dict[str, Any]) -> None:
        """Changes the model, or how suggestions are made."""
        self._source, self._typing = source, typing
        if self._input is not None:
            self._ask("follow", source=self._source, typing=typing, edits="", is_anew=False)

    def _update(self) -> None:
        self._waiting = None
        self._version += 1  # as the worker counts
        before, after = self._text
        document = {"text": before + after, "cursor": len(before), "name": "text"}
        self._ask("update", number=self._number, request=self._version, document=document)

    def _give_up(self) -> None:
        """Forgets an update that was not asked yet."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    async def _run_once(self) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *_WORKER,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._input = process.stdin
        try:
            self.follow(self._source, self._typing)
            async for line in process.stdout:
                self._hear(json.loads(line))
        finally:
            self._input, self._number = None, 0
            self._give_up()
            process.stdin.close()  # which ends it
            await process.wait()

    def _hear(self, event: dict[str, Any]) -> None:
        match event.pop("tell"):
            case "serving":
                self._give_up()  # it was for the one before
                old, self._number, self._version = self._number, event["number"], 0
                if old:
                    self._ask("release", number=old)
                else:
                    self._on_remark(f"suggestions come from {event['bundle']}")
            case "offer" if self._is_latest(event, event["offer"]["version"]):
                self._on_offer(event["offer"]["text"], event["offer"]["is_complete"])
            case "alternatives" if self._is_latest(event, event["request"]):
                self._on_others([offer["text"] for offer in event["offers"]])
            case "failed" | "ended":
                self._on_remark(event["reason"])

    def _is_latest(self, event: dict[str, Any], version: int) -> bool:
        is_last = (event["number"], version) == (self._number, self._version)
        return is_last and self._waiting is None

    def _ask(self, what: str, **arguments: object) -> None:
        if self._input is not None:
            self._input.write(json.dumps({"do": what, **arguments}).encode() + b"\n")
