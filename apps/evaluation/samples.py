"""Samples in a JSONL file, from which a run that was ended can go on.

Every line is an object: `{"kind": "setting"}` says what a fingerprint stands for, `{"kind":
"sample"}` is one problem under one setting. A sample is written and flushed before the next one
begins, so a run that is killed loses the one it was at; a last line that was not written to its end
is dropped.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Self

from edgedec.apps.evaluation.tries import Tries
from edgedec.models.errors import ConfigError, EdgedecError
from edgedec.runtime.config import GenerationConfig

_BEGINNING = b'{"kind": "'
"""Of every line of a file of samples."""


class Models(StrEnum):
    """The models that take part: the target model, with which draft model, or the draft's alone.

    The target model may lack layers.
    """

    SEPARATE = "target and draft model"
    BUNDLED = "target and the bundle's own draft model"
    DRAFT = "draft model alone"
    PRUNED = "target model without later layers"


@dataclass(frozen=True)
class Setting:
    """What is evaluated: a way to decode, by the name that reports use for it.

    facts: all that a sample depends on, JSON-ready. tries: at each problem, one when None.
    """

    label: str
    request: GenerationConfig
    facts: dict[str, Any] = field(default_factory=dict)
    models: Models = Models.SEPARATE
    tries: Tries | None = None

    @property
    def fingerprint(self) -> str:
        """Names ``facts``; samples of equal fingerprints belong together."""
        text = json.dumps(self.facts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One problem under one setting.

    metrics: by their keys. weight: how much they count, 1 unless samples differ in size.
    answer: the text that was judged. reason: why it failed, None if it passed.
    seconds: from the prompt to the last token; judging is not counted. decode_s: after the first.
    tokens_by_origin: how many tokens each drafter or model gave. n_at_once: samples that were taken
    at a time, which makes each take longer.
    """

    fingerprint: str
    name: str
    metrics: dict[str, float]
    weight: float = 1.0
    answer: str = ""
    reason: str | None = None
    finish_reason: str = ""
    seconds: float = 0.0
    decode_s: float = 0.0
    n_prompt_tokens: int = 0
    n_new_tokens: int = 0
    lossless: bool = True
    tokens_by_origin: dict[str, int] = field(default_factory=dict)
    stats: dict[str, Any] = field(default_factory=dict)
    switch: dict[str, Any] = field(default_factory=dict)
    n_at_once: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields, JSON-ready."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Returns the sample of ``fields``; ValueError if they are not those of one."""
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(fields) - known):
            raise ValueError(f"unknown field {unknown[0]!r}")
        try:
            sample = cls(**fields)
        except TypeError as error:
            raise ValueError(str(error)) from None
        if not isinstance(sample.metrics, dict) or not isinstance(sample.name, str):
            raise ValueError("name or metrics are of the wrong type")
        return sample


@dataclass
class Samples:
    """What a file holds: settings by fingerprint, and samples by fingerprint and name."""

    settings: dict[str, Setting] = field(default_factory=dict)
    samples: dict[tuple[str, str], Sample] = field(default_factory=dict)
    n_bytes: int = 0  # of whole lines

    def of(self, fingerprint: str) -> list[Sample]:
        """Returns the samples of a setting, in the order they were added."""
        return [sample for (key, _), sample in self.samples.items() if key == fingerprint]

    def add_setting(self, setting: Setting) -> None:
        """Keeps a setting under its fingerprint."""
        self.settings[setting.fingerprint] = setting

    def add(self, sample: Sample) -> None:
        """Keeps a sample; an earlier one of the same setting and name is replaced."""
        self.samples[sample.fingerprint, sample.name] = sample


def read_samples(path: Path) -> Samples:
    """Returns what a file holds; a last line without its end is left out.

    Raises:
        ConfigError: The file cannot be read, or another line is broken.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read samples from {path}: {error.strerror}") from None
    samples = Samples(n_bytes=data.rfind(b"\n") + 1)
    if not _BEGINNING.startswith(data[samples.n_bytes :][: len(_BEGINNING)]):
        raise ConfigError(f"{path} is not a file of samples of `edgedec eval`: name another file")
    for i, line in enumerate(data[: samples.n_bytes].split(b"\n")):
        if not line.strip():
            continue
        try:
            _read_line(samples, json.loads(line))
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"{path.name}:{i + 1}: no sample of `edgedec eval` ({error}): remove the line, or "
                "name another file"
            ) from None
    return samples


def _read_line(samples: Samples, fields: Any) -> None:
    kind = fields.pop("kind", None) if isinstance(fields, dict) else None
    if kind == "setting":
        label, facts = fields.get("label"), fields.get("facts")
        if not isinstance(label, str) or not isinstance(facts, dict):
            raise ValueError("a setting needs label and facts")
        samples.add_setting(Setting(label, GenerationConfig(), facts))
    elif kind == "sample":
        samples.add(Sample.from_dict(fields))
    else:
        raise ValueError("kind is neither setting nor sample")


class SampleFile:
    """Appends to a file of samples; without a path it keeps them in memory only."""

    def __init__(self, path: Path | None) -> None:
        """Reads what the file holds already, if it exists; `held` has it."""
        self.held = Samples()
        self._path = path
        self._file: IO[bytes] | None = None
        if path is None:
            return
        if path.exists():
            self.held = read_samples(path)
        try:
            self._file = path.open("ab")
            self._file.truncate(self.held.n_bytes)
        except OSError as error:
            raise ConfigError(f"cannot write samples to {path}: {error.strerror}") from None

    def begin(self, settings: Iterable[Setting]) -> None:
        """Writes down the settings that are not in the file yet."""
        for setting in settings:
            if setting.fingerprint not in self.held.settings:
                self.held.add_setting(setting)
                self._write({"kind": "setting", "label": setting.label, "facts": setting.facts})

    def add(self, sample: Sample) -> None:
        """Keeps a sample, on the disk where there is a file."""
        self.held.add(sample)
        self._write({"kind": "sample", **sample.to_dict()})

    def close(self) -> None:
        """Closes the file, if there is one."""
        if self._file is not None:
            self._file.close()

    def _write(self, fields: dict[str, Any]) -> None:
        if self._file is None:
            return
        line = json.dumps(fields, ensure_ascii=False, allow_nan=False) + "\n"
        try:
            self._file.write(line.encode("utf-8", "replace"))
            self._file.flush()
        except OSError as error:
            raise EdgedecError(
                f"cannot write samples to {self._path}: {error.strerror}; what it holds is kept"
            ) from None
