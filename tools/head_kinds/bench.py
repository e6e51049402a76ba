"""Trains every kind of draft head on the same texts for the same time, and measures them.

python tools/head_kinds/bench.py BUNDLE FOLDER --prompts own.jsonl --tests humaneval.jsonl
    specbench.jsonl --minutes 4

BUNDLE returns hidden states of an early, a middle and the last layer (`export --hidden-layers`).
Its model answers the prompts of --prompts to learn from, and of --tests to measure with. Minutes
are of processor time on one thread. FOLDER keeps all that is done: the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from accuracy import in_percent, right, rounded, stored_bytes, tokens_per_pass
from replayed import Machine, known_costs, mean_speed, speeds, traces_of
from texts import Answers, read_answers, read_own_texts
from torch import Tensor

from edgedec.export.heads.bundle_weights import BundleWeights
from edgedec.labs.head_kinds import chimera, clover, falcon, fspad, inside
from edgedec.models.draft_heads import EAGLE, HYDRA, LIGHT_HEADS, MEDUSA, OF_MODEL
from edgedec.models.manifest import read_manifest
from edgedec.system.files import replace_text
from edgedec.training.heads.torch_head import TorchHead, TorchWeights
from edgedec.training.heads.train_head import LIGHT_BATCH, HeadPlan, initial_weights, use_threads
from edgedec.training.loop import Batch, Trainer, TrainingPlan, TrainingTexts
from edgedec.training.progress_file import ProgressFile
from edgedec.training.torch_ops import has_fast_bfloat16

Float32 = npt.NDArray[np.float32]

N_STEPS = 3
_VOCABULARY = 4096
_LIGHT_PIECE, _INSIDE_PIECE = 8, 128
_INSIDE = ("ppd", "hidden-transfer")
_FEWER = 12
"""Kinds that go through the model, which takes long: every so many of the answers measure them."""

_TRANSFER_LAYERS = (10, 12, 14)
_PROMPT_RATE = 1e-2
"""Learning rate of prompt tokens, as published; that of all others is `TrainingPlan`'s."""


@dataclass(frozen=True)
class Setting:
    """What all kinds share. of_model: weights of a head of the kind `EAGLE`, untrained."""

    bundle: Path
    texts: TrainingTexts
    answers: Answers
    of_model: Mapping[str, Float32]
    context: int
    n_layers: int
    machine: Machine

    @property
    def plan(self) -> HeadPlan:
        """The plan of a head of the kind `EAGLE`."""
        return HeadPlan(TrainingPlan(n_steps=N_STEPS), _VOCABULARY)


Maker = Callable[[Setting], TorchWeights]


class TimedTrainer(Trainer):
    """Trains for some seconds of processor time; the learning rate falls with them."""

    seconds = 0.0
    begun_s = 0.0

    @property
    def share(self) -> float:
        """Share of the time that is over."""
        return (time.process_time() - self.begun_s) / self.seconds

    def train_for(self, seconds: float) -> int:
        """Trains; returns how many steps there were time for."""
        self.seconds, self.begun_s = seconds, time.process_time()
        while self.share < 1:
            self._train_step()
            self._step += 1
        return self._step

    def _schedule(self) -> float:
        share = min(1.0, self.share)
        warm = min(1.0, (share + 1e-3) / self._plan.warmup)
        return float(warm * 0.5 * (1 + np.cos(np.pi * share)))

    def _loss(self, batch: Batch) -> Tensor:
        loss = super()._loss(batch)
        return loss + getattr(self._head, "auxiliary", 0.0)


def known_kind(setting: Setting, kind: str) -> TorchHead:
    """Returns a head of a kind that edgedec has."""
    plan = replace(setting.plan, kind=kind)
    target = read_manifest(setting.bundle).target
    parent = BundleWeights(setting.bundle, target)
    weights = initial_weights(parent, target, setting.texts, setting.n_layers, plan)
    config = plan.config(target.config, len(setting.texts.head_ids))
    return TorchHead(config, weights, setting.context, kind)


def new_kind(setting: Setting, make: Callable[..., TorchWeights]) -> TorchWeights:
    """Returns a head of `edgedec.labs` that reads states."""
    target = read_manifest(setting.bundle).target
    config = setting.plan.config(target.config, len(setting.texts.head_ids))
    return make(config, setting.of_model, setting.context, np.random.default_rng(0))


def within(setting: Setting, make: Callable[..., TorchWeights]) -> TorchWeights:
    """Returns a head that goes through the model."""
    target = read_manifest(setting.bundle).target
    stored = BundleWeights(setting.bundle, target)
    names = [name for name in stored.shapes if name not in OF_MODEL]
    of_layers = {
        name: stored.matrix(name) if len(stored.shapes[name]) == 2 else stored.vector(name)
        for name in names
    }
    rows = {name: setting.of_model[name] for name in OF_MODEL}
    rng = np.random.default_rng(0)
    is_short = has_fast_bfloat16(torch.device("cpu"))
    dtype = torch.bfloat16 if is_short else torch.float32
    return make(target.config, of_layers | rows, setting.context + N_STEPS, rng, dtype=dtype)


KINDS: dict[str, Maker] = {
    "hydra": partial(known_kind, kind=HYDRA),
    "medusa": partial(known_kind, kind=MEDUSA),
    "eagle": partial(known_kind, kind=EAGLE),
    "clover": partial(new_kind, make=clover.make),
    "chimera": partial(new_kind, make=partial(chimera.make, n_steps=N_STEPS)),
    "fspad": partial(new_kind, make=fspad.make),
    "falcon": partial(new_kind, make=falcon.make),
    "ppd": partial(within, make=partial(inside.make_ppd, n_steps=N_STEPS)),
    "hidden-transfer": partial(
        within, make=partial(inside.make_hidden_transfer, layers=_TRANSFER_LAYERS)
    ),
}


def setting_of(arguments: argparse.Namespace) -> Setting:
    """Reads what is not there yet."""
    bundle, folder = arguments.bundle, arguments.folder
    answers = read_answers(bundle, folder / "tests", arguments.tests, arguments.n_tests)
    texts = read_own_texts(bundle, folder / "texts", arguments.prompts, arguments.tokens)
    manifest = read_manifest(bundle)
    known = TrainingTexts.of(texts, _VOCABULARY, manifest.stop_token_ids)
    token_ids = np.unique(np.concatenate([text.tokens for text in [*texts, *answers.texts]]))
    known = replace(known, trained=texts, held_out=[], token_ids=token_ids.astype(np.int64))
    n_layers = len(manifest.target.contract.can.hidden)
    context = max(len(text.tokens) for text in [*texts, *answers.texts])
    machine = known_costs(bundle, folder)
    bare = Setting(bundle, known, answers, {}, context, n_layers, machine)
    weights = initial_weights(
        BundleWeights(bundle, manifest.target), manifest.target, known, n_layers, bare.plan
    )
    return replace(bare, of_model=weights)


def trained(setting: Setting, kind: str, head: TorchWeights, folder: Path, seconds: float) -> int:
    """Trains ``head``; returns how many tokens it was shown."""
    plan, texts = setting.plan.training, setting.texts
    if kind in LIGHT_HEADS:
        plan, texts = replace(plan, batch=LIGHT_BATCH), texts.in_pieces(_LIGHT_PIECE)
    elif kind in _INSIDE:
        texts = texts.in_pieces(_INSIDE_PIECE)
    if kind == "ppd":
        plan = replace(plan, learning_rate=_PROMPT_RATE)
    torch.manual_seed(0)
    n_steps = TimedTrainer(head, texts, plan, ProgressFile(folder / "none", ())).train_for(seconds)
    n_mean = sum(len(text.tokens) for text in texts.trained) / len(texts.trained)
    return round(n_steps * plan.batch * n_mean)


def n_bytes(head: TorchWeights, kind: str, n_rows: int) -> tuple[float, float]:
    """Returns bytes in a bundle, and bytes that are read while `N_STEPS` tokens are drafted."""
    sizes = {name: stored_bytes(p.numel()) for name, p in head.trained().items()}
    of_rows = stored_bytes(n_rows * head.config.hidden_size)
    if kind in _INSIDE:
        return sum(sizes.values()), sum(sizes.values())
    size = sum(sizes.values()) + of_rows
    if kind == MEDUSA:
        return size, size
    if kind == HYDRA:
        return size, sum(sizes.values()) + N_STEPS * of_rows
    of = getattr(head, "n_reads", lambda name, n: n)
    read = sum(size * of(name, N_STEPS) for name, size in sizes.items())
    return size, read + of_rows * of("lm_head.weight", N_STEPS)


def pass_bytes(bundle: Path) -> int:
    """Returns the bytes of the model's weights, which a pass reads."""
    manifest = read_manifest(bundle)
    return sum(
        manifest.files[name].n_bytes for name in manifest.target.files if name.endswith(".bin")
    )


def figures(setting: Setting, kind: str, head: TorchWeights) -> dict[str, Any]:
    """Returns what is measured of a trained head."""
    known = setting.texts.token_ids, setting.texts.head_ids, N_STEPS
    answers = setting.answers
    if kind in _INSIDE:
        answers = Answers(answers.texts[::_FEWER], answers.starts[::_FEWER])
    plain = right(head, answers, *known)
    with torch.no_grad():
        for p in head.trained().values():
            if p.ndim == 2:
                p.copy_(torch.from_numpy(rounded(p.numpy(), 4)))
    is_rounded = any(p.ndim == 2 for p in head.trained().values())
    four = right(head, answers, *known) if is_rounded else plain
    size, read = n_bytes(head, kind, len(setting.texts.head_ids))
    passes = read / pass_bytes(setting.bundle)
    played = speeds(
        traces_of(head, answers, *known),
        setting.machine,
        passes,
        n_beside=N_STEPS if kind in _INSIDE else 0,
    )
    return played | {
        "by_depth": plain.mean(0).tolist(),
        "four_bits": four.mean(0).tolist(),
        "tokens_per_pass": tokens_per_pass(four),
        "n_bytes": size,
        "passes": passes,
    }


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the results as a table, the most tokens for its cost first."""
    lines = [
        "| kind | tokens learned from | size | right by depth | in 4 bits | tokens per pass | "
        "weights read, in passes | alone, replayed | in `auto`, replayed | `auto` without it |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]

    def worth(item: tuple[str, Mapping[str, Any]]) -> float:
        _, of = item
        return -float(of["tokens_per_pass"][-1] / (1 + of["passes"]))

    for kind, of in sorted(results.items(), key=worth):
        plain, four = (in_percent(of[key]) for key in ("by_depth", "four_bits"))
        alone, auto, without = (mean_speed(of[key]) for key in ("alone", "auto", "without"))
        lines.append(
            f"| `{kind}` | {of['n_tokens']:,} | {of['n_bytes'] / 1e6:.1f} MB | {plain} | {four} | "
            f"{of['tokens_per_pass'][-1]:.2f} | {of['passes']:.2f} | {alone:.2f} | {auto:.2f} | "
            f"{without:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Does what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompts", type=Path, nargs="+", required=True)
    parser.add_argument("--tests", type=Path, nargs="+", required=True)
    parser.add_argument("--n-tests", type=int, default=24, help="prompts of each file of --tests")
    parser.add_argument("--tokens", type=int, default=60_000, help="tokens to learn from")
    parser.add_argument("--minutes", type=float, default=4.0, help="of processor time, each kind")
    parser.add_argument("--train-only", action="store_true", help="measure in a later call")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    arguments = parser.parse_args()
    use_threads(1)
    setting = setting_of(arguments)
    kept = arguments.folder / "results.json"
    results = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
    for kind in arguments.kinds:
        key = f"{arguments.minutes:g} minutes"
        if results.get(kind, {}).get("trained") == key:
            continue
        head = KINDS[kind](setting)
        file = arguments.folder / f"{kind}, {key}.npz"
        if not file.is_file():
            n_tokens = trained(setting, kind, head, arguments.folder, 60 * arguments.minutes)
            weights = {name: p.numpy() for name, p in head.learned().items()}
            np.savez(file, n_tokens=n_tokens, **weights)  # type: ignore[arg-type]
        if arguments.train_only:
            continue
        with np.load(file) as saved, torch.no_grad():
            n_tokens = int(saved["n_tokens"])
            for name, p in head.trained().items():
                p.copy_(torch.from_numpy(saved[name]))
        results[kind] = {"trained": key, "n_tokens": n_tokens} | figures(setting, kind, head)
        replace_text(kept, json.dumps(results, indent=1))
        print(f"{kind}: {results[kind]}", flush=True)
    if arguments.train_only:
        return
    print(table({kind: results[kind] for kind in arguments.kinds}))


if __name__ == "__main__":
    main()
