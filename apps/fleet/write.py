"""`edgedec fleet write`: hosts share the texts that a model writes for trainings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from edgedec.apps.console.tables import table
from edgedec.apps.console.terminal import note, write_out
from edgedec.apps.fleet.bundles import Bundles
from edgedec.apps.fleet.config import read_fleet
from edgedec.apps.fleet.crew import Crew, gather_crew
from edgedec.apps.fleet.keeper import CrewOptions
from edgedec.apps.fleet.shipped import Shipped
from edgedec.apps.fleet.spread import spread
from edgedec.apps.fleet.store import Task, TaskResult, TaskStore
from edgedec.models.errors import EdgedecError
from edgedec.models.manifest import fingerprint_of
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions
from edgedec.training.features.own_answers import prompt_end
from edgedec.training.features.reading import own_prompts
from edgedec.training.features.written_texts import WrittenTexts, enough_of, is_text

TEXTS = "texts.jsonl"

_GROUP = 8
"""Texts of a task: a host writes them side by side."""

_GUESS = 192
"""Tokens of a text and its prompt before any is known."""


@dataclass(frozen=True)
class WriteOptions:
    """What is written. corpus, prompts, temperature: as for `train head`."""

    corpus: Sequence[Path]
    prompts: Sequence[Path]
    n_tokens: int
    temperature: float


class _Texts:
    """Texts in the order of their prompts, in groups, each a task."""

    def __init__(self, prompts: Iterable[list[int]], common: Mapping[str, Any]) -> None:
        self._prompts, self._common = iter(prompts), common
        self.tasks: list[Task] = []
        self.answers: dict[str, TaskResult] = {}

    def add_groups(self, n: int) -> list[Task]:
        """Returns up to ``n`` more tasks; fewer once the prompts end."""
        added: list[Task] = []
        while len(added) < n and (prompts := list(islice(self._prompts, _GROUP))):
            first = _GROUP * len(self.tasks)
            added.append(Task({**self._common, "prompts": prompts, "first": first}))
            self.tasks.append(added[-1])
        return added

    def written(self) -> Iterator[list[int]]:
        """Yields the texts that there are, up to the first one that is missing."""
        for task in self.tasks:
            if task.key not in self.answers:
                return
            yield from self.answers[task.key].result

    def n_missing(self, n_tokens: int) -> int:
        """Returns how many more groups it takes, about, until there are ``n_tokens``."""
        lengths = list(map(len, chain.from_iterable(a.result for a in self.answers.values())))
        n_left = n_tokens - sum(lengths)
        average = sum(lengths) / len(lengths) if lengths else _GUESS
        return max(0, math.ceil(n_left / average / _GROUP))


async def write_on_hosts(
    file: Path, bundle: Path, folder: Path, options: WriteOptions, crew_options: CrewOptions
) -> None:
    """Has the hosts write texts until there are enough tokens, and writes the file of them.

    Raises:
        EdgedecError: Texts are left that no host could write; the others are kept.
    """
    fleet, bundles = read_fleet(file), Bundles(bundle)
    path, manifest = bundles.any_bundle
    vocab_size = manifest.target.config.vocab_size

    def shipping(hello: Mapping[str, Any]) -> dict[str, Shipped]:
        return {bundles.alias: bundles.for_host(hello)}

    def take(task: Task, answer: TaskResult) -> None:
        _check(task, answer, vocab_size)
        texts.answers[task.key] = answer
        n_tokens = sum(map(len, answer.result))
        note(f"[{len(texts.answers)}] {answer.host}: {len(answer.result)} texts, "
             f"{n_tokens:,} tokens")  # fmt: skip

    common = {"kind": "write", "bundle": bundles.alias, "temperature": options.temperature}
    lost: dict[str, str] = {}
    with load(path, EngineOptions(draft=False)) as engine, TaskStore(folder) as store:
        prompts = own_prompts(options.corpus, list(options.prompts), engine)
        texts = _Texts((prompt_end(prompt, engine.context) for prompt in prompts), common)
        async with AsyncExitStack() as stack:
            crew: Crew | None = None
            while added := texts.add_groups(texts.n_missing(options.n_tokens)):
                if missing := _recall(added, store, texts, vocab_size):
                    if crew is None:
                        crew = await stack.enter_async_context(
                            gather_crew(fleet, shipping, crew_options)
                        )
                        lost = crew.lost
                    if await spread(crew, missing, store, take):
                        break
    _finish(texts, options, folder, fingerprint_of(manifest, manifest.target_name), lost)


def _recall(tasks: Sequence[Task], store: TaskStore, texts: _Texts, vocab_size: int) -> list[Task]:
    """Takes answers of an earlier run; returns the tasks that have none."""
    missing = []
    for task in tasks:
        answer = store.find(task)
        if answer is None:
            missing.append(task)
        else:
            _check(task, answer, vocab_size)
            texts.answers[task.key] = answer
    if len(missing) < len(tasks):
        note(f"{_GROUP * (len(tasks) - len(missing))} texts are there already")
    return missing


def _check(task: Task, answer: TaskResult, vocab_size: int) -> None:
    """Raises an EdgedecError unless a host sent its prompts with answers."""
    prompts, texts = task.fields["prompts"], answer.result
    if (
        not isinstance(texts, list)
        or len(texts) != len(prompts)
        or not all(is_text(text, vocab_size) for text in texts)
        or any(text[: len(prompt)] != prompt for prompt, text in zip(prompts, texts, strict=True))
    ):
        raise EdgedecError(f"{answer.host} sent what are no answers to its prompts")


def _finish(
    texts: _Texts, options: WriteOptions, folder: Path, fingerprint: str, lost: Mapping[str, str]
) -> None:
    """Writes the texts and says who wrote them.

    Raises:
        EdgedecError: Some are missing.
    """
    if len(texts.answers) < len(texts.tasks):
        n_left = len(texts.tasks) - len(texts.answers)
        why = "; ".join(f"{label}: {reason}" for label, reason in lost.items()) or "no host is left"
        raise EdgedecError(f"{n_left} groups of texts are missing ({why}): run the same again")
    texts_ = enough_of(texts.written(), options.n_tokens)
    WrittenTexts(fingerprint, options.temperature, texts_).write(folder / TEXTS)
    rows = []
    for label in dict.fromkeys([*(answer.host for answer in texts.answers.values()), *lost]):
        of_host = [
            text
            for answer in texts.answers.values()
            if answer.host == label
            for text in answer.result
        ]
        rows.append([label, str(len(of_host)), f"{sum(map(len, of_host)):,}", lost.get(label, "")])
    write_out(table(["host", "texts", "tokens", "remarks"], rows))
    note(f"wrote {folder / TEXTS}: {len(texts_)} texts, {sum(map(len, texts_)):,} tokens")
