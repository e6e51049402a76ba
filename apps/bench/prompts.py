"""`edgedec bench --prompts`: what decoding methods gain on real prompts, against plain and peers.

For every prompt all contestants generate one after the other, in the same run, so that a ratio's
two sides meet the same machine; then the next prompt follows. A repetition is a walk through all
prompts. At its beginning (with --cold before every prompt) the methods forget what they learned,
so that no repetition finds an answer that an earlier one left behind; the KV cache is empty before
every single output. The order of the contestants turns around from prompt to prompt and from
repetition to repetition; only in the first one plain goes first, which tells the peers how many
tokens to generate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from edgedec.apps.bench.output import Printing
from edgedec.apps.bench.prompts_jobs import (
    Contestant,
    Method,
    OutputOptions,
    Peer,
    TimedOutput,
    parse_methods,
)
from edgedec.apps.bench.prompts_report import Outcome, make_document, refusal, render
from edgedec.apps.bench.prompts_rows import Round
from edgedec.apps.bench.results import measured_prompts
from edgedec.apps.console.option import option
from edgedec.apps.console.progress import ProgressBars, count_amount
from edgedec.apps.console.terminal import note, write_out
from edgedec.apps.measuring.disturbance import Watch
from edgedec.apps.measuring.loop import Plan
from edgedec.apps.measuring.plotters import find_plotter
from edgedec.apps.options.common import Draft, DraftDevice, DraftProvider, PerCategory
from edgedec.apps.peers.rivals import Rivals
from edgedec.models.errors import ConfigError, EdgedecError
from edgedec.models.manifest import BundleManifest, read_manifest
from edgedec.runtime.config import SamplingConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.prompt_files import FilePrompt, read_prompts
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions

_WARMUP_TOKENS = 8


@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """Options for measuring with prompts."""

    prompts: Annotated[
        list[Path] | None,
        option("FILE.jsonl", "Measure decoding methods on these prompts. Repeatable."),
    ] = None
    methods: Annotated[
        str | None, option("NAME,..", "Decoding methods to compare (default plain,auto).")
    ] = None
    max_new_tokens: Annotated[
        int | None, typer.Option(min=2, help="Maximum new tokens per prompt (default 128).")
    ] = None
    per_category: PerCategory = None
    category_key: Annotated[
        str | None,
        option("KEY", "Field with the category (default: subtask, category, or the file name)."),
    ] = None
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Use the chat template, or pass prompts as they are (default: the "
            "template, if there is one).",
        ),
    ] = None
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Continue past the model's end token.")
    ] = False
    cold: Annotated[
        bool,
        typer.Option("--cold", help="Make methods forget what they learned before each prompt."),
    ] = False
    draft: Draft = None
    draft_provider: DraftProvider = None
    draft_device: DraftDevice = None
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Sampling temperature. 0 is greedy.")
    ] = 0.0
    seed: Annotated[
        int,
        typer.Option(min=0, help="Seed of every output, so that all methods write the same text."),
    ] = 0

    store: Annotated[
        Path | None, option("FILE", "Draft from the n-gram store FILE without changing it.")
    ] = None

    @property
    def output_options(self) -> OutputOptions:
        """How outputs are to be generated."""
        return OutputOptions(
            SamplingConfig(temperature=self.temperature), self.seed, self.ignore_eos
        )


def bench_prompts(
    bundle: Path, options: PromptOptions, plan: Plan, rivals: Rivals, printing: Printing
) -> None:
    """Measures prompts and prints what was found, after Ctrl-C what was found until then."""
    assert options.prompts
    draw = find_plotter("bench.prompts_plot", printing.plot)
    if options.temperature and rivals.modes:
        raise ConfigError(
            f"--temperature is {options.temperature:g}, and peers decode greedily: leave "
            "--temperature or --against out"
        )
    names = parse_methods(options.methods or "plain,auto")
    prompts = read_prompts(options.prompts, options.category_key, options.per_category)
    manifest = read_manifest(bundle)
    manifest.check_writes()
    if options.draft is None and manifest.draft_name is None:
        _refuse_draft(names)
    if options.store is None:
        _refuse_store(names)
    elif not options.store.exists():
        raise ConfigError(f"there is no n-gram store {options.store}: edgedec store seed makes one")
    outcome = run_prompts(_Setup(bundle, manifest, options, plan, rivals), names, prompts)
    if outcome.rounds:
        document = make_document(outcome)
        write_out(render(document, printing.output.value))
        printing.recorder.save(bundle, manifest, measured_prompts(outcome))
        if draw is not None and printing.plot is not None:
            draw(document, printing.plot)
            note(f"drew {printing.plot}")
    if outcome.ended_by is not None:
        raise outcome.ended_by
    if (reason := refusal(outcome)) is not None and not printing.allow_noise:
        raise EdgedecError(reason)


def _refuse_draft(names: Sequence[str]) -> None:
    for name in names:
        if "draft" in name.split("+"):
            raise ConfigError(
                f"method {name} needs a draft model, and the bundle has none: export it with "
                "--draft, or name another bundle with --draft"
            )


def _refuse_store(names: Sequence[str]) -> None:
    for name in names:
        if "store" in name.split("+"):
            raise ConfigError(f"method {name} needs an n-gram store: name its file with --store")


@dataclass(frozen=True)
class _Setup:
    bundle: Path
    manifest: BundleManifest
    options: PromptOptions
    plan: Plan
    rivals: Rivals

    @property
    def n_tokens(self) -> int:
        return self.options.max_new_tokens or 128

    def load(self, context: int | None = None) -> Engine:
        draft = True if self.options.draft is None else self.options.draft
        loading = EngineOptions(
            threads=self.plan.n_threads,
            context=context,
            draft=draft,
            prefix_cache_mb=0,
            store=self.options.store,
            is_store_growing=False,
            provider=self.plan.provider,
            device=self.plan.device,
            draft_provider=self.options.draft_provider,
            draft_device=self.options.draft_device,
        )
        return load(self.bundle, loading)


def run_prompts(setup: _Setup, names: Sequence[str], prompts: Sequence[FilePrompt]) -> Outcome:
    """Returns what was measured, complete or not."""
    options = setup.options
    missing: dict[str, str] = {}
    with ExitStack() as stack, ProgressBars(count_amount) as bars:
        is_chat, ids = _encode(setup, prompts)
        context = _context(setup, prompts, ids)
        n_loads = len(names) + len(setup.rivals.runtimes)
        contestants: list[Contestant] = []
        for i, name in enumerate(names):
            bars.report("load", i, n_loads)
            engine = stack.enter_context(setup.load(context))
            contestants.append(Method(name, engine, options.output_options))
        spec = {"threads": setup.plan.n_threads, "context": context, "ids": ids[0]}
        peers: list[Peer] = []
        for i, runtime in enumerate(setup.rivals.runtimes):
            bars.report("load", len(names) + i, n_loads)
            for worker in map(stack.enter_context, setup.rivals.start(runtime, spec, missing)):
                modes = [mode for mode in setup.rivals.modes if mode.runtime is runtime]
                peers += [Peer(mode, worker) for mode in modes]
        walk = _Walk([*contestants, *peers], ids, setup, bars.report)
        ended_by = walk.measure(prompts)
        missing |= {peer.name: peer.error for peer in peers if peer.error is not None}
        return Outcome(
            bundle=setup.bundle,
            manifest=setup.manifest,
            plan=setup.plan,
            settings={
                "prompts": [str(path) for path in options.prompts or ()],
                "max_new_tokens": setup.n_tokens,
                "template": "chat" if is_chat else "raw",
                "ignore_eos": options.ignore_eos,
                "temperature": options.temperature,
                "seed": options.seed,
                "learning": "cold" if options.cold else "hot",
                "draft": None if options.draft is None else str(options.draft),
                "draft_provider": options.draft_provider,
                "draft_device": options.draft_device,
                "store": None if options.store is None else str(options.store),
                "peer_draft": setup.rivals.draft,
            },
            prompts=list(prompts),
            n_prompt_tokens=[len(tokens) for tokens in ids],
            contestants=[contestant.facts for contestant in [*contestants, *peers]],
            rounds=walk.rounds,
            missing=missing,
            ended_by=ended_by,
        )


def _encode(setup: _Setup, prompts: Sequence[FilePrompt]) -> tuple[bool, list[list[int]]]:
    """Returns whether the chat template is used, and the token ids of the prompts."""
    with setup.load() as engine:
        chat = setup.options.chat
        is_chat = engine.has_chat_template if chat is None else chat
        return is_chat, [prompt.encode(engine, is_chat) for prompt in prompts]


def _context(setup: _Setup, prompts: Sequence[FilePrompt], ids: Sequence[list[int]]) -> int:
    """Returns the positions the longest prompt needs; ConfigError if the bundle has too few."""
    longest = max(range(len(ids)), key=lambda i: len(ids[i]))
    needed, limit = len(ids[longest]) + setup.n_tokens, setup.manifest.target.context
    if needed > limit:
        raise ConfigError(
            f"{prompts[longest].place}: prompt and output need {needed} positions, the bundle was "
            f"exported for {limit}: ask for less, or export with a larger --context"
        )
    return min(limit, needed + 32)


@dataclass
class _Walk:
    """Goes through the prompts, again and again."""

    contestants: list[Contestant]
    ids: list[list[int]]
    setup: _Setup
    report: Callable[[str, int, int], None]
    rounds: list[Round] = field(default_factory=list)
    lengths: dict[int, int] = field(default_factory=dict)

    def measure(self, prompts: Sequence[FilePrompt]) -> BaseException | None:
        """Returns what ended it early, if anything did."""
        repetitions = self.setup.plan.repetitions
        n_rounds = repetitions * len(self.ids)
        try:
            self._warm_up(prompts[0].prediction)
            for repetition in range(repetitions):
                for i, prompt in enumerate(prompts):
                    self.report("prompt", repetition * len(self.ids) + i, n_rounds)
                    if i == 0 or self.setup.options.cold:
                        self._forget()
                    self.rounds.append(self._round(i, repetition, prompt.prediction))
                    note(f"[{len(self.rounds)}/{n_rounds}] {_line(prompt, self.rounds[-1])}")
        except ConfigError:
            raise
        except (KeyboardInterrupt, EdgedecError) as error:
            return error
        return None

    def _warm_up(self, prediction: str) -> None:
        """Touches everything once, so that whatever is missing comes to light before measuring."""
        for i, contestant in enumerate(self.contestants):
            self.report("warm-up", i, len(self.contestants))
            contestant.generate(self.ids[0], min(_WARMUP_TOKENS, self.setup.n_tokens), prediction)

    def _forget(self) -> None:
        for contestant in self.contestants:
            contestant.forget()

    def _round(self, i_prompt: int, repetition: int, prediction: str) -> Round:
        """Returns what all contestants made of a prompt."""
        runs: dict[str, TimedOutput] = {}
        windows = []
        for contestant in in_turn(self.contestants, i_prompt, repetition):
            if self.setup.plan.settle_s:
                time.sleep(self.setup.plan.settle_s)
            n_tokens = self.setup.n_tokens
            if isinstance(contestant, Peer):
                n_tokens = self.lengths[i_prompt]
            watch = Watch(time.perf_counter)
            watch.start()
            run = contestant.generate(self.ids[i_prompt], n_tokens, prediction)
            if run is None:
                continue
            runs[contestant.name] = run
            self.lengths.setdefault(i_prompt, len(run.token_ids))
            window = watch.stop(self.setup.plan.n_threads, run.own_cpu_s)
            if window is not None:
                windows.append(window)
        return Round(i_prompt, repetition, runs, tuple(windows))


def in_turn(contestants: Sequence[Contestant], i_prompt: int, repetition: int) -> list[Contestant]:
    """Returns the contestants, every second time in reverse; at first plain always leads."""
    first, *others = contestants
    is_reversed = (i_prompt + repetition) % 2 == 1
    if repetition == 0:
        return [first, *(reversed(others) if is_reversed else others)]
    return list(reversed(contestants)) if is_reversed else list(contestants)


def _line(prompt: FilePrompt, results: Round) -> str:
    """Returns how fast everybody was, for a person who waits."""
    speeds = {name: run.tokens_per_s for name, run in results.runs.items()}
    speeds_shown = [f"{name} {speed:.1f}" for name, speed in speeds.items() if speed is not None]
    return f"{prompt.name}: " + (
        ", ".join(speeds_shown) + " tokens/s" if speeds_shown else "a single token"
    )
