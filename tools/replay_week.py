"""Replays days of a repository's history: what a draft head learns of them, for the day after.

python tools/replay_week.py write REPOSITORY BUNDLE FOLDER --days 2026-11-22 2026-11-27 2026-11-28
edgedec train adapt BUNDLE --from FOLDER/week.replay
python tools/replay_week.py measure FOLDER BUNDLE...

`write` draws places at which commits added lines. Of those up to the second day it keeps what the
editor's model reads there, and the lines, as `edgedec lsp --adapt` does. At those of the third day
the bundle's model goes on by itself. `measure` says which share of that heads predict, by depth.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from edgedec.export.heads.bundle_weights import BundleWeights
from edgedec.models.head_ids import read_head_ids
from edgedec.models.manifest import read_manifest
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.replay_buffer import ReplayBuffer
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions
from edgedec.runtime.text.infill import find_infill_tokens
from edgedec.training.features.feature_file import FeatureFile, TextFeatures
from edgedec.training.features.feature_reader import FeatureReader
from edgedec.training.heads.torch_head import TorchHead
from edgedec.training.heads.train_head import continued_weights
from edgedec.training.loop import TrainingTexts

Bools = npt.NDArray[np.bool_]

_HUNK = re.compile(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@")
_MIN_LINES = 3
"""Lines of an addition that counts."""

_BEFORE, _AFTER, _TYPED, _NEW = 288, 64, 120, 24
"""Tokens before a place, behind it, that were typed there, and that the model writes."""


@dataclass(frozen=True)
class Place:
    """Where somebody wrote: text before the cursor, lines that came there, and what follows."""

    before: str
    typed: str
    after: str


def places(
    repository: Path, first: str, last: str, suffixes: tuple[str, ...], n: int
) -> Iterator[Place]:
    """Yields ``n`` places of the days from ``first`` to ``last``, in their order."""
    log = _git(repository, "log", "--no-merges", "--reverse", "--date=short", "--format=%H %ad")
    commits = [line.split() for line in log.splitlines()]
    hunks = [
        (day, sha, path, start, n_lines)
        for sha, day in commits
        if first <= day <= last
        for path, start, n_lines in _hunks(repository, sha)
        if path.endswith(suffixes) and n_lines >= _MIN_LINES
    ]
    rng = random.Random(5)
    rng.shuffle(hunks)
    for _, sha, path, start, n_lines in sorted(hunks[:n], key=lambda hunk: hunk[0]):
        lines = _git(repository, "show", f"{sha}:{path}").splitlines(keepends=True)
        end, at = start - 1 + n_lines, start - 1 + rng.randrange(min(n_lines, 40))
        yield Place(*map("".join, (lines[:at], lines[at:end], lines[end:])))


def _hunks(repository: Path, sha: str) -> Iterator[tuple[str, int, int]]:
    """Yields path, first line and number of the lines that a commit added."""
    path = ""
    for line in _git(repository, "show", "-U0", "--no-renames", "--format=", sha).splitlines():
        if line.startswith("+++ "):
            path = line[6:]
        elif match := _HUNK.match(line):
            yield path, int(match[1]), int(match[2] or 1)


def _git(repository: Path, *arguments: str) -> str:
    command = ["git", "-C", str(repository), *arguments]
    return subprocess.run(command, capture_output=True, check=True).stdout.decode(
        "utf-8", "replace"
    )


def _prompt(engine: Engine, place: Place) -> list[int]:
    encode, marks = engine.tokenizer.encode, find_infill_tokens(engine.tokenizer)
    before, after = encode(place.before[-6000:])[-_BEFORE:], encode(place.after[:2000])[:_AFTER]
    return before if marks is None else marks.typing_prompt(before, after)


def write(arguments: argparse.Namespace) -> None:
    """Makes the file of kept texts, and reads what the model writes on the last day."""
    bundle, folder = arguments.bundle, arguments.folder
    first, last, measured = arguments.days
    folder.mkdir(parents=True, exist_ok=True)
    buffer = ReplayBuffer.made(folder / "week.replay", bundle)
    manifest = read_manifest(bundle)
    suffixes = tuple(arguments.suffixes)
    with load(bundle, EngineOptions(context=1024, draft=False)) as engine:
        for place in places(arguments.repository, first, last, suffixes, arguments.texts):
            typed = engine.tokenizer.encode(place.typed[:3000])[:_TYPED]
            buffer.keep([*_prompt(engine, place), *typed])
        marks = find_infill_tokens(engine.tokenizer)
        stops = marks.stops if marks else ()
        config = GenerationConfig(max_new_tokens=_NEW, method="plain", stop_token_ids=stops)
        texts, starts = [], []
        for place in places(arguments.repository, measured, measured, suffixes, arguments.tests):
            prompt = _prompt(engine, place)
            if len(answer := engine.generate(prompt, config).token_ids) >= 4:
                texts.append([*prompt, *answer])
                starts.append(len(prompt))
        layers, epsilon = manifest.target.contract.can.hidden, manifest.target.config.rms_norm_eps
        file = _features(folder, bundle)
        reader = FeatureReader(engine, layers, epsilon, file, lambda *_: None, lambda: False)
        reader.read((("", text) for text in texts), sum(map(len, texts)))
    (folder / "starts.json").write_text(json.dumps(starts))
    print(f"{len(buffer.numbers())} texts to learn from, {len(texts)} to measure with")


def _features(folder: Path, bundle: Path) -> FeatureFile:
    target = read_manifest(bundle).target
    width = len(target.contract.can.hidden) * target.config.hidden_size
    return FeatureFile(folder / "tests", ("tests",), width)


def measure(arguments: argparse.Namespace) -> None:
    """Prints shares of the model's own tokens by depth, for the head of each bundle."""
    starts = json.loads((arguments.folder / "starts.json").read_text())
    for bundle in arguments.bundles:
        texts = _features(arguments.folder, bundle).texts()
        right = _right(bundle, texts, starts)
        shares, rounds = map(_in_words, (right, right.cumprod(axis=1)))
        print(f"{bundle}: by depth {shares}; right up to there {rounds}")


def _in_words(right: Bools) -> str:
    return ", ".join(f"{share:.1%}" for share in right.mean(axis=0))


@torch.no_grad()
def _right(bundle: Path, texts: list[TextFeatures], starts: list[int]) -> Bools:
    """Returns which guesses of rounds are right [rounds, depths], if those before them are."""
    manifest = read_manifest(bundle)
    head = manifest.head
    assert head is not None
    assert head.head.head_ids is not None
    ids = read_head_ids(bundle / head.head.head_ids, head.head.config.vocab_size).astype(np.int64)
    known = np.unique(np.concatenate([text.tokens for text in texts])).astype(np.int64)
    stored = BundleWeights.of_head(bundle, head)
    about = TrainingTexts((), texts, known, ids)
    weights = continued_weights(BundleWeights(bundle, manifest.target), stored, about)
    n = head.head.config.n_layers
    net = TorchHead(head.head.config, weights, max(len(t.tokens) for t in texts), head.kind)
    rounds = []
    for text, start in zip(texts, starts, strict=True):
        tokens = torch.from_numpy(np.searchsorted(known, text.tokens))[None]
        hidden = torch.from_numpy(text.hidden.astype(np.float32))[None]
        said = [ids[logits[0].argmax(-1).numpy()] for logits in net(tokens, hidden, n)]
        padded = [np.pad(s, (len(text.tokens) - len(s), 0), constant_values=-1) for s in said]
        right = np.stack([s == text.top_ids[:, 0] for s in padded])
        # The state of token t is known: head d guesses what comes after token t + 1 + d.
        rounds += [
            [right[d, t + 1 + d] for d in range(n)]
            for t in range(start - 1, len(text.tokens) - 1 - n)
        ]
    return np.array(rounds)


def main() -> None:
    """Does what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(required=True)
    writing = verbs.add_parser("write")
    writing.add_argument("repository", type=Path)
    writing.add_argument("bundle", type=Path)
    writing.add_argument("folder", type=Path)
    writing.add_argument("--days", nargs=3, required=True, metavar="DAY")
    writing.add_argument("--suffixes", nargs="+", default=[".py", ".md"])
    writing.add_argument("--texts", type=int, default=260)
    writing.add_argument("--tests", type=int, default=70)
    writing.set_defaults(act=write)
    measuring = verbs.add_parser("measure")
    measuring.add_argument("folder", type=Path)
    measuring.add_argument("bundles", type=Path, nargs="+", metavar="bundle")
    measuring.set_defaults(act=measure)
    arguments = parser.parse_args()
    arguments.act(arguments)


if __name__ == "__main__":
    main()
