"""Which peers a run of `edgedec bench` measures, and with which models and Pythons."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from edgedec.apps.console.option import option
from edgedec.apps.peers import PEERS, PLAIN, Mode, Runtime, find_mode
from edgedec.apps.peers.client import PeerError, Worker
from edgedec.models.errors import ConfigError


@dataclass(frozen=True)
class Rivals:
    """Peers to run. models, pythons: by name; ``""`` stands for all others.

    draft: the model with which peers draft.
    """

    modes: tuple[Mode, ...] = ()
    models: dict[str, str] = field(default_factory=dict)
    pythons: dict[str, str] = field(default_factory=dict)
    draft: str | None = None

    @property
    def runtimes(self) -> tuple[Runtime, ...]:
        """The peers, each once."""
        return tuple(dict.fromkeys(mode.runtime for mode in self.modes))

    def model(self, name: str) -> str:
        """Returns the file that the peer called ``name`` loads."""
        return self.models.get(name) or self.models[""]

    def start(
        self, runtime: Runtime, spec: dict[str, Any], missing: dict[str, str]
    ) -> list[Worker]:
        """Returns the worker of a peer with its model loaded.

        If it cannot be started there is none, and the reason is put into ``missing``.
        """
        path, draft = self.model(runtime.name), self.draft
        python = self.pythons.get(runtime.name) or self.pythons.get("") or sys.executable
        try:
            return [Worker(runtime, python, {**spec, "path": path, "draft": draft})]
        except PeerError as error:
            missing[runtime.name] = str(error)
            return []


@dataclass(frozen=True, kw_only=True)
class PeerOptions:
    """Options that name peers."""

    against: Annotated[
        str | None,
        option(
            "NAME,..",
            f"Measure peers, too: {', '.join(PEERS)}; with --prompts also NAME+lookup and "
            "NAME+draft, or NAME+draft8 for eight drafted tokens.",
        ),
    ] = None
    model: Annotated[Path | None, option("FILE.gguf", "Model file for the peers.")] = None
    peer_model: Annotated[
        list[str] | None, option("NAME=PATH", "Model for one peer. Repeatable.")
    ] = None
    peer_draft: Annotated[Path | None, option("FILE.gguf", "Draft model for the peers.")] = None
    peer_python: Annotated[
        list[str] | None,
        option("[NAME=]PYTHON", "Python that has the peers installed. Repeatable."),
    ] = None

    def rivals(self) -> Rivals:
        """Returns the peers that were asked for; ConfigError if the options do not fit together."""
        names = dict.fromkeys(n.strip() for n in (self.against or "").split(",") if n.strip())
        modes = tuple(find_mode(name) for name in names)
        everyone = {"": str(self.model)} if self.model else {}
        models = _by_name(self.peer_model, "--peer-model") | everyone
        pythons = _by_name(self.peer_python, "--peer-python")
        self._check_used(modes, models, pythons)
        for mode in modes:
            _check_files(mode, models, self.peer_draft)
        draft = None if self.peer_draft is None else str(self.peer_draft)
        return Rivals(modes, models, pythons, draft)

    def _check_used(
        self, modes: tuple[Mode, ...], models: dict[str, str], pythons: dict[str, str]
    ) -> None:
        """Raises a ConfigError if an option says something of a peer that is not measured."""
        measured = {mode.runtime.name for mode in modes}
        for flag, values in (("--peer-model", models), ("--peer-python", pythons)):
            for name in values.keys() - measured - {""}:
                raise ConfigError(
                    f"{flag} names {name}, which is not measured: add it to --against"
                )
            if "" in values and not measured - values.keys():
                shared = "--model" if values is models else flag
                raise ConfigError(f"{shared} is for peers: {_without_use(measured)}")
        if self.peer_draft is not None and not any(mode.kind == "draft" for mode in modes):
            raise ConfigError("--peer-draft is for peers that draft: use --against NAME+draft")


def _without_use(measured: set[str]) -> str:
    """Returns why an option for all peers says nothing, and what to do."""
    if measured:
        return "each of them has one of its own, so leave it out"
    return f"name some with --against, such as {next(iter(PEERS))}"


def _check_files(mode: Mode, models: dict[str, str], draft: Path | None) -> None:
    name = mode.runtime.name
    path = models.get(name) or models.get("")
    if path is None:
        raise ConfigError(f"{name} has no model: name one with --model FILE.gguf")
    if not Path(path).exists():
        raise ConfigError(f"there is no model at {path} for {name}")
    if mode.kind == "draft" and (draft is None or not draft.exists()):
        got = "none was named" if draft is None else f"there is none at {draft}"
        raise ConfigError(f"{mode.name} needs a draft model, {got}: use --peer-draft FILE.gguf")


def _by_name(pairs: list[str] | None, option: str) -> dict[str, str]:
    """Returns values written as NAME=VALUE, or VALUE alone for all."""
    values: dict[str, str] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or name not in PEERS:
            if option != "--peer-python" or "/" not in pair:
                raise ConfigError(f"{option} got {pair!r}, expected one of {', '.join(PEERS)}=PATH")
            name, value = "", pair
        if name in values:
            raise ConfigError(f"{option} got {values[name]} and {value}: give one for each peer")
        values[name] = value
    return values


def only_keeping(rivals: Rivals) -> Rivals:
    """Returns ``rivals``; ConfigError if one computes all of every prompt."""
    for mode in rivals.modes:
        if not mode.runtime.keeps_prompts:
            raise ConfigError(
                f"{mode.name} cannot keep what it has read: leave it out with --typing"
            )
    return rivals


def only_plain(rivals: Rivals) -> Rivals:
    """Returns ``rivals``; ConfigError if one is to speculate, which passes cannot."""
    for mode in rivals.modes:
        if mode.kind != PLAIN:
            raise ConfigError(f"{mode.name} generates whole texts: name some with --prompts")
    return rivals
