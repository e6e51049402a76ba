"""What `edgedec eval` is asked to do, checked before any model runs."""

from __future__ import annotations

import dataclasses
import hashlib
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from edgedec import __version__
from edgedec.apps.console.option import option
from edgedec.apps.evaluation.compressed import QUESTIONS, Compressed, CompressedAnswers
from edgedec.apps.evaluation.frontier import DRAFT_ALONE, GRID, references_of
from edgedec.apps.evaluation.gsm8k import Gsm8k
from edgedec.apps.evaluation.human_eval import HumanEval
from edgedec.apps.evaluation.infill import Infill
from edgedec.apps.evaluation.json_schema import JsonSchema, SchemaAnswers
from edgedec.apps.evaluation.perplexity import Predictions, cut
from edgedec.apps.evaluation.problem_answers import Answers
from edgedec.apps.evaluation.pruned import PrunedModel, check_prunable
from edgedec.apps.evaluation.refusal import Refusal
from edgedec.apps.evaluation.requests import PRUNED, make_requests, request_facts
from edgedec.apps.evaluation.samples import Models, Setting
from edgedec.apps.evaluation.tasks import Task, file_sha256, read_problems
from edgedec.apps.evaluation.tries import BEST_OF, ITERATE, NEED_TESTS, Tries, parse_tries
from edgedec.apps.evaluation.work import Engines, Work
from edgedec.apps.options import common as options
from edgedec.apps.options.text_files import stated_text
from edgedec.models.errors import LARGER_CONTEXT, ConfigError
from edgedec.models.kv_maps import own_maps
from edgedec.models.manifest import MANIFEST_NAME, TOKENIZER_NAME, BundleManifest, read_manifest
from edgedec.runtime.backends import open_model, release_model
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.decoding.switching.pair import checked
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.loaded import LoadedModel
from edgedec.runtime.methods.draft_source import DraftSource, find_draft
from edgedec.runtime.methods.method_parts import AUTO, PLAIN, MethodParts
from edgedec.runtime.opening.bundle_parts import prompt_encoder
from edgedec.runtime.opening.devices import on_device
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions
from edgedec.runtime.sequences.affinity import Affinity
from edgedec.runtime.sequences.model import Model
from edgedec.runtime.text.tokenizer import Tokenizer
from edgedec.system.processors import physical_cores
from edgedec.system.sandbox.programs import Limits

_DRAFT_ROOM = 32
"""Positions beyond prompt and output, so that the last drafts fit."""


_SECOND_QUESTION = 256
"""Positions for what a failed test says, and the question around it."""


class TaskName(StrEnum):
    """What can be evaluated."""

    HUMAN_EVAL = "human_eval"
    GSM8K = "gsm8k"
    INFILL = "infill"
    PERPLEXITY = "perplexity"
    JSON_SCHEMA = "json_schema"
    REFUSAL = "refusal"
    COMPRESSED = "compressed"


_MAX_NEW_TOKENS = {
    TaskName.HUMAN_EVAL: 512,
    TaskName.GSM8K: 512,
    TaskName.INFILL: 128,
    TaskName.JSON_SCHEMA: 512,
    TaskName.REFUSAL: 64,
    TaskName.COMPRESSED: 64,
}


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Options that say what is evaluated."""

    task: Annotated[
        TaskName | None,
        option("TASK", f"What to evaluate: {', '.join(TaskName)}.", "--task", "--suite"),
    ] = None
    data: Annotated[
        Path | None,
        option(
            "FILE",
            "Problems, one JSON object per line; a text for perplexity. The task compressed "
            "has its own.",
        ),
    ] = None
    limit: Annotated[
        int | None, option("N", "Use only the first N problems or windows.", min=1)
    ] = None
    parallel: Annotated[
        int | None,
        option(
            "N",
            "Answer N problems at a time. The answers are the same, but each takes longer "
            "(default: the fastest number for one setting, 1 to compare several).",
            min=1,
        ),
    ] = None
    methods: Annotated[str | None, option("NAME,..", "Methods to compare on every problem.")] = None
    switch: Annotated[
        str | None,
        option(
            "POLICY:..",
            "Let the draft model write part of the text, e.g. ead:threshold=1.5,mode=repair.",
        ),
    ] = None
    settings: Annotated[
        str | None,
        option(
            "SETTING;..",
            "Settings to compare on every problem: methods, switching or layer "
            "settings; uscd: contrast with the prompt without its examples; "
            "draft-alone: only the draft model; predicted: plain "
            "after a predicted prompt; pruned: the target model without those "
            "layers.",
        ),
    ] = None
    best_of: Annotated[
        str | None,
        option(
            "N,..",
            "Also judge the best of N tries at each problem. --temperature (default 0.8) is "
            "then only for these tries.",
        ),
    ] = None
    choose: Annotated[
        str | None,
        option(
            "CHOOSER,..",
            "How --best-of chooses: vote (default), weighted, likelihood, tests, iterate, tree.",
        ),
    ] = None
    frontier: Annotated[
        bool,
        typer.Option(
            "--frontier",
            help="Compare the settings of --settings, or a grid of switching "
            "settings, with plain, auto and draft-alone. Reports whether any is"
            " worth using.",
        ),
    ] = False
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="For tasks with questions: use the chat template, or continue the "
            "prompt (default: the template, if there is one).",
        ),
    ] = None
    program_seconds: Annotated[
        float, typer.Option(min=0.1, help="Time limit for each generated program.")
    ] = 10.0
    uncontained_programs: Annotated[
        bool,
        typer.Option(
            "--uncontained-programs",
            help="Run generated programs even if the system cannot contain them, as on Windows.",
        ),
    ] = False
    window: Annotated[
        int | None, typer.Option(min=2, help="Tokens per window of perplexity (default 512).")
    ] = None
    stride: Annotated[
        int | None, typer.Option(min=1, help="Tokens between windows (default: half a window).")
    ] = None


@dataclass(frozen=True)
class EvaluationJob:
    """An evaluation, checked as far as that goes without a model."""

    bundle: Path
    manifest: BundleManifest
    task: TaskName
    data: Path
    what: TaskOptions
    loading: options.LoadOptions
    requests: dict[str, GenerationConfig]

    @property
    def limits(self) -> Limits:
        """Limits of generated programs."""
        return Limits(seconds=self.what.program_seconds)

    @property
    def placed(self) -> Affinity:
        """Where threads stay."""
        affinity = self.loading.affinity
        named = None if affinity is None else options.parse_affinity(affinity)
        return Affinity.of(named, self.loading.threads)

    @property
    def threads(self) -> int:
        """Threads of the kernels."""
        return self.loading.threads or len(self.placed.processors) or physical_cores()

    @property
    def context(self) -> int:
        """Most positions there can be."""
        return self.loading.context or self.manifest.target.context

    @property
    def draft(self) -> Literal[True] | Path:
        """Where the draft model is."""
        return True if self.loading.draft is None else self.loading.draft

    def source(self, context: int) -> DraftSource:
        """Returns the draft model as one that may write.

        Raises:
            ConfigError: There is none, or it cannot take turns with the target model.
        """
        source = find_draft(self.bundle, self.manifest, self.draft, self.threads, context)
        checked(source.pair if source is not None else None)
        assert source is not None
        return source

    @property
    def n_kept(self) -> int:
        """Layers that compute a prompt when those behind them are predicted.

        Raises:
            ConfigError: The bundle has no maps that predict them, or its graph cannot be pruned.
        """
        maps = own_maps(self.manifest.auxiliary)
        if maps is None:
            raise ConfigError(
                f"the setting {PRUNED} leaves out as many layers as KV maps predict, which this "
                "bundle lacks: fit them with `edgedec train kv`"
            )
        check_prunable(self.manifest.target)
        return maps.exit_layer

    def open(self, models: Models, context: int | None) -> Engine:
        """Returns an engine of the models, which keeps nothing of earlier prompts."""
        if models is Models.DRAFT:
            return self._open_draft(context or self.context)
        if models is Models.PRUNED:
            return self._open_pruned(context or self.context)
        loading = EngineOptions(
            threads=self.threads,
            context=context,
            draft=True if models is Models.BUNDLED else self.draft,
            prefix_cache_mb=0,
            affinity=self.placed.processors or None,
            provider=self.loading.provider,
            device=self.loading.device,
        )
        return load(self.bundle, loading)

    def _open_draft(self, context: int) -> Engine:
        """Returns an engine whose one model is the draft model."""
        source, chosen = self.source(context), (self.loading.provider, self.loading.device)
        entry = on_device(source.entry, *chosen, must_run=False)
        model = open_model(source.folder, entry, self.threads, self.placed)
        return self._alone(model, source.context)

    def _open_pruned(self, context: int) -> Engine:
        """Returns an engine of the target model without the layers that KV maps predict."""
        entry = self.manifest.target
        graph = self.bundle / entry.graph
        model = PrunedModel(graph, entry, self.n_kept, self.threads, self.placed)
        return self._alone(model, context)

    def _alone(self, model: Model, context: int) -> Engine:
        """Returns an engine of one model."""
        tokenizer = Tokenizer.load(self.bundle / TOKENIZER_NAME)
        return Engine(
            LoadedModel(
                model=model,
                parts=MethodParts(context, model.capabilities.hidden),
                release=release_model,
                tokenizer=tokenizer,
                encoder=prompt_encoder(self.bundle, self.manifest, tokenizer),
                stop_token_ids=self.manifest.stop_token_ids,
            )
        )


def make_job(
    bundle: Path,
    what: TaskOptions,
    loading: options.LoadOptions,
    request: options.RequestOptions,
) -> EvaluationJob:
    """Returns the evaluation that the options name; ConfigError if they name none."""
    data = QUESTIONS if what.data is None and what.task is TaskName.COMPRESSED else what.data
    if what.task is None or data is None:
        raise typer.BadParameter("expected --task and --data with BUNDLE")
    chosen = _chosen(what, request)
    is_read = what.task is TaskName.PERPLEXITY
    if is_read and (chosen or what.frontier):
        raise ConfigError(f"{what.task} generates nothing: leave out the method")
    if (is_read or what.task is TaskName.INFILL) and what.chat is not None:
        raise ConfigError(f"task {what.task} does not use --chat or --raw: leave them out")
    if what.task is not TaskName.PERPLEXITY and (what.window or what.stride):
        raise ConfigError(f"--window and --stride are for perplexity, not for {what.task}")
    base = GenerationConfig(max_new_tokens=_MAX_NEW_TOKENS.get(what.task, 1))
    tries = _tries(what, request.temperature)
    temperature = None if tries else request.temperature
    settled = dataclasses.replace(request, method=None, temperature=temperature)
    base_request = settled.make_request(base)
    manifest = read_manifest(bundle)
    manifest.check_writes()
    default = PLAIN if is_read else str(manifest.defaults.get("method", PLAIN))
    swept = chosen or list(GRID)
    texts = [*references_of(swept), *swept] if what.frontier else chosen or [default]
    requests = make_requests(base_request, [*texts, *map(str, tries)])
    job = EvaluationJob(bundle, manifest, what.task, data, what, loading, requests)
    if PRUNED in requests:
        _ = job.n_kept
    if DRAFT_ALONE in requests or any(request.switch for request in requests.values()):
        job.source(job.context)
    return job


def _tries(what: TaskOptions, temperature: float | None) -> list[Tries]:
    """Returns the tries that the options ask for.

    Raises:
        ConfigError: They make no sense, or the task does not go with them.
    """
    if what.best_of is None:
        if what.choose is not None:
            raise ConfigError("--choose needs --best-of N")
        return []
    if what.task is TaskName.PERPLEXITY or what.frontier:
        raise ConfigError(
            "--best-of is for tasks with answers, and cannot be combined with --frontier"
        )
    default = 0.8 if temperature is None else temperature
    tries = parse_tries(what.best_of, what.choose or "vote", default)
    for tries_ in tries:
        if tries_.choose in NEED_TESTS and what.task is not TaskName.HUMAN_EVAL:
            raise ConfigError(
                f"--choose {tries_.choose} needs a task with tests, such as human_eval"
            )
    return tries


def _chosen(what: TaskOptions, request: options.RequestOptions) -> list[str]:
    """Returns the settings that the options name, none where they leave it to the bundle."""
    named = {
        "--method": request.method and [request.method],
        "--methods": what.methods and what.methods.split(","),
        "--switch": what.switch and [what.switch],
        "--settings": what.settings and what.settings.split(";"),
    }
    named_texts = {option: texts for option, texts in named.items() if texts}
    if len(named_texts) > 1:
        raise ConfigError(
            f"{' and '.join(named_texts)} exclude each other: name all settings with --settings"
        )
    chosen = [text.strip() for texts in named_texts.values() for text in texts]
    if any(text.partition(":")[0] == BEST_OF for text in chosen):
        raise ConfigError("several tries are no setting: use --best-of N and --choose")
    return chosen


def make_work(job: EvaluationJob, stack: ExitStack) -> tuple[Work, str]:
    """Returns the samples to take, and how the model meets the data, in words.

    Raises:
        ConfigError: The data is broken, or does not fit the model.
    """
    if job.task is TaskName.PERPLEXITY:
        return _make_predictions(job, stack)
    if job.task is TaskName.JSON_SCHEMA:
        return _make_schemas(job, stack)
    tasks: dict[TaskName, Task] = {
        TaskName.HUMAN_EVAL: HumanEval(is_chat=True, limits=job.limits),
        TaskName.GSM8K: Gsm8k(is_chat=True),
        TaskName.INFILL: Infill(job.limits),
        TaskName.REFUSAL: Refusal(is_chat=True),
        TaskName.COMPRESSED: Compressed(is_chat=True),
    }
    task = tasks[job.task]
    problems = read_problems(job.data, task.keys, job.what.limit)
    with job.open(Models.SEPARATE, None) as engine:
        is_chat = engine.has_chat_template if job.what.chat is None else job.what.chat
        if job.task is TaskName.INFILL:
            how = "infilling tokens"
        else:
            how = "chat template" if is_chat else "raw prompts"
            if not is_chat:
                task = _raw(job)
        prompts = [task.encode(engine, problem) for problem in problems]
    n_new = next(iter(job.requests.values())).max_new_tokens
    longest = max(range(len(prompts)), key=lambda i: len(prompts[i]))
    needed = len(prompts[longest]) + n_new
    if any((tries := Tries.of(label)) and tries.choose == ITERATE for label in job.requests):
        needed += n_new + _SECOND_QUESTION
    if needed > job.context:
        raise ConfigError(
            f"{problems[longest].place}: prompt and answer need {needed} positions, there are "
            f"{job.context}: ask for fewer --max-new-tokens, or export with a larger --context"
        )
    context = min(job.context, needed + _DRAFT_ROOM)
    engines = Engines(lambda models: job.open(models, context), stack)
    answers = CompressedAnswers if job.task is TaskName.COMPRESSED else Answers
    return answers(task, problems, prompts, engines), how


def _raw(job: EvaluationJob) -> Task:
    if job.task is TaskName.GSM8K:
        return Gsm8k(is_chat=False)
    if job.task is TaskName.REFUSAL:
        return Refusal(is_chat=False)
    if job.task is TaskName.COMPRESSED:
        return Compressed(is_chat=False)
    return HumanEval(is_chat=False, limits=job.limits)


def _make_predictions(job: EvaluationJob, stack: ExitStack) -> tuple[Work, str]:
    text = stated_text(job.data)
    window = job.what.window or min(512, job.context)
    stride = job.what.stride or window // 2
    if window > job.context:
        raise ConfigError(
            f"--window is {window}, expected at most the context, {job.context}: "
            f"ask for less, or use {LARGER_CONTEXT}"
        )
    engines = Engines(lambda models: job.open(models, window), stack)
    opening = job.manifest.opening_token_ids
    plain = Setting(PLAIN, GenerationConfig())
    tokens = engines.of(plain).tokenizer.encode(text)
    windows = list(cut(len(tokens), window, stride, len(opening)))[: job.what.limit]
    return Predictions(engines, tokens, windows, opening), f"windows of {window}, {stride} apart"


def _make_schemas(job: EvaluationJob, stack: ExitStack) -> tuple[Work, str]:
    with job.open(Models.SEPARATE, None) as engine:
        is_chat = engine.has_chat_template if job.what.chat is None else job.what.chat
        n_new = next(iter(job.requests.values())).max_new_tokens
        task = JsonSchema(is_chat, job.context - n_new - _DRAFT_ROOM)
        problems = read_problems(job.data, task.keys, job.what.limit)
        prompts = [task.encode(engine, problem) for problem in problems]
    context = min(job.context, max(map(len, prompts)) + n_new + _DRAFT_ROOM)
    engines = Engines(lambda models: job.open(models, context), stack)
    how = "chat template" if is_chat else "raw prompts"
    return SchemaAnswers(task, problems, prompts, engines), how


def make_settings(job: EvaluationJob, how: str) -> list[Setting]:
    """Returns the settings to evaluate, with all that their samples depend on."""
    return [_make_setting(job, label, how) for label in job.requests]


def _make_setting(job: EvaluationJob, label: str, how: str) -> Setting:
    request, models = job.requests[label], Models.SEPARATE
    if label == DRAFT_ALONE:
        models = Models.DRAFT
    elif label == PRUNED:
        models = Models.PRUNED
    elif job.what.frontier and request.method == AUTO and job.manifest.draft_name:
        models = Models.BUNDLED  # the one that was exported to draft, not to write
    draft = None if models is Models.BUNDLED else job.loading.draft
    facts = {
        "edgedec": __version__,
        "bundle": job.manifest.name,
        "bundle_sha256": _manifest_sha256(job.bundle),
        "models": str(models),
        "draft_sha256": None if draft is None else _manifest_sha256(draft),
        "size_ratio": _size_ratio(job) if models is Models.DRAFT else None,
        "task": str(job.task),
        "data": job.data.name,
        "data_sha256": file_sha256(job.data),
        "how": how,
        "cut": how if job.task is TaskName.PERPLEXITY else None,
        "threads": job.threads,
        "context": job.loading.context,
        "limits": dataclasses.asdict(job.limits),
        "request": request_facts(request),
    }
    tries = Tries.of(label)
    if tries is not None:
        facts["tries"] = str(tries)
    return Setting(label, request, facts, models, tries)


def _size_ratio(job: EvaluationJob) -> float | None:
    pair = job.source(job.context).pair
    return None if pair is None else pair.size_ratio


def _manifest_sha256(bundle: Path) -> str:
    return hashlib.sha256((bundle / MANIFEST_NAME).read_bytes()).hexdigest()
