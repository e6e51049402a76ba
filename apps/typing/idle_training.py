"""Improves the draft head of a bundle while nobody types."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from edgedec.models.errors import EdgedecError
from edgedec.models.installation import install_command
from edgedec.runtime.engine.replay_buffer import ReplayBuffer
from edgedec.system.power import PowerSource

IDLE_S = 300.0
"""How long nobody types before something is learned."""

_LOOK_S = 5.0
"""How often it is looked whether a training may begin."""

_AGAIN_S = 3600.0
"""How long nothing is tried after a training that failed."""


class IdleTraining:
    """Runs `edgedec train adapt` in a process of its own while nobody types.

    It begins where nothing was asked for ``idle_s``, the machine is on power, and enough new texts
    were kept. A key ends it at once; the next one goes on from at most a minute earlier. The bundle
    changes only when a better head is whole, and whoever has it open loads it again.

    Args:
        replay: File of texts that were kept.
        share: Of the time, that it may take of one core.
        tell: Called in a thread of its own with what people should know.
        command: That runs edgedec.
    """

    def __init__(
        self,
        bundle: Path,
        replay: Path,
        share: float,
        tell: Callable[[str], None],
        *,
        power: PowerSource | None = None,
        idle_s: float = IDLE_S,
        command: Sequence[str] = (sys.executable, "-m", "edgedec"),
    ) -> None:
        from edgedec.training.heads.adapt_folder import AdaptFolder

        self._bundle, self._replay, self._share = bundle, replay, share
        self._tell, self._idle_s, self._command = tell, idle_s, tuple(command)
        self._power = PowerSource() if power is None else power
        self._folder = AdaptFolder(bundle)
        self._changed = threading.Condition()
        self._stirred_s = time.monotonic()
        self._is_closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._failure = ""  # that was told
        self._again_s = 0.0  # nothing is tried before
        self._thread = threading.Thread(target=self._work, name="idle-training", daemon=True)
        if find_spec("torch") is None:
            tell(f"learning from your texts needs torch: {install_command('train')}")
        elif share > 0:
            self._thread.start()

    def stir(self) -> None:
        """Somebody types: nothing is learned for a while."""
        with self._changed:
            self._stirred_s = time.monotonic()
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """Ends what is being learned. Closing twice is fine."""
        with self._changed:
            self._is_closed = True
            if self._process is not None:
                self._process.kill()
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def has_news(self) -> bool:
        """Whether enough texts are new, and no other process learns from them."""
        if time.monotonic() < self._again_s or self._folder.is_in_use:
            return False
        with suppress(EdgedecError):  # a bundle that is gone or broken learns nothing
            return self._folder.has_news(ReplayBuffer.of_bundle(self._replay, self._bundle))
        return False

    def _work(self) -> None:
        while not self._is_closed:
            if self._may_train() and self.has_news:
                self._train()
            with self._changed:
                if not self._is_closed:
                    self._changed.wait(min(_LOOK_S, self._idle_s))

    def _may_train(self) -> bool:
        is_idle = time.monotonic() - self._stirred_s >= self._idle_s
        return is_idle and not self._is_closed and not self._power.is_battery

    def _train(self) -> None:
        command = [*self._command, "train", "adapt", str(self._bundle), "--json"]
        command += ["--from", str(self._replay), "--threads", "1", "--max-cpu", f"{self._share}"]
        with self._changed:
            if not self._may_train():
                return
            self._process = process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        out, errors = self._wait(process)
        with self._changed:
            self._process = None
            is_ended = not self._may_train()
        if process.returncode == 0:
            if json.loads(out)["is_swapped"]:
                self._tell(f"{self._bundle} has learned from your texts: its drafts are better now")
        elif not is_ended:
            self._fail(errors.decode(errors="replace").strip().rpartition("\n")[2])

    def _wait(self, process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
        """Returns what a training writes to its end; ends it where the battery is drained."""
        while True:
            try:
                return process.communicate(timeout=_LOOK_S)
            except subprocess.TimeoutExpired:
                if not self._may_train():
                    process.kill()

    def _fail(self, reason: str) -> None:
        """Says why nothing was learned, once; the same may be tried again later."""
        self._again_s = time.monotonic() + _AGAIN_S
        if reason != self._failure:
            self._failure = reason
            self._tell(f"nothing was learned from your texts: {reason}")
