"""From checkpoints to a bundle: the ordered phases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from edgedec.export.bundle import bundle_folder, check_destination
from edgedec.export.checkpoints.checkpoint import Checkpoint, open_checkpoint
from edgedec.export.checkpoints.draft_layer import why_left_out
from edgedec.export.checkpoints.lora import Merged
from edgedec.export.config import ExportConfig
from edgedec.export.heads.attached import attach_head, attach_published
from edgedec.export.heads.exits import add_exit
from edgedec.export.heads.head_file import HeadFile, read_head_file
from edgedec.export.heads.published import attach_draft_layer
from edgedec.export.heads.published_heads import read_published_head
from edgedec.export.heads.shipped_heads import DISTRIBUTION, Candidates, find_candidates
from edgedec.export.phases.cross_kernels import add_kernels, check_tools
from edgedec.export.phases.model_export import ModelExport, Phases
from edgedec.export.phases.optimum_model import OptimumModel, emit_with_optimum, find_recipeless
from edgedec.export.phases.recipe_model import RecipeModel
from edgedec.export.phases.recipe_phases import configure, recipe_phases, trim_head
from edgedec.export.phases.texts import read_draft, read_target
from edgedec.export.quantising.calibration.phase import forget_unfinished
from edgedec.export.report import ExportReport
from edgedec.export.seal import seal
from edgedec.models.errors import MissingStepError, UnsupportedModelError
from edgedec.models.manifest import BundleManifest
from edgedec.models.model_entry import DRAFT_MODEL, TARGET_MODEL
from edgedec.targets.triples import find_triple

OnProgress = Callable[[str, int, int], None]
"""Phase, bytes done in it, bytes in all (0: unknown)."""

FIRST_PHASES: Phases = (("read", read_target), ("configure", configure))
"""What finds most mistakes of the caller; these run for every model before the others."""

FIRST_DRAFT_PHASES: Phases = (
    ("read draft", read_draft),
    ("configure draft", configure),
    ("trim head of draft", trim_head),
)

EXIT_PHASES: Phases = (("end early", add_exit),)
HEAD_PHASES: Phases = (("attach head", attach_head),)
PUBLISHED_PHASES: Phases = (("attach published head", attach_published),)
DRAFT_LAYER_PHASES: Phases = (("attach draft layer", attach_draft_layer),)

OPTIMUM_PHASES: Phases = (("emit with optimum", emit_with_optimum),)
"""For families without a recipe: optimum writes the whole graph and verifies it."""


@dataclass(frozen=True)
class _Making:
    """How one model is made: in which object, by which phases."""

    make: Callable[..., ModelExport]
    first: Phases
    then: Phases


def export(config: ExportConfig, on_progress: OnProgress | None = None) -> ExportReport:
    """Writes the bundle that ``config`` asks for and returns what was done.

    Raises:
        ConfigError: The options do not fit the model.
        CheckpointError: A source is missing or broken.
        UnsupportedModelError: There is no recipe for a source, and optimum cannot help.
        BundleError: The destination cannot be written; whatever was there is untouched.
    """
    check_destination(config.destination, config.is_overwrite_allowed)
    if config.kernels_triple:
        check_tools(find_triple(config.kernels_triple))
    makings = _open(config)
    with bundle_folder(config.destination, config.is_overwrite_allowed) as folder:
        models = {kind: making.make(bundle_folder=folder) for kind, making in makings.items()}
        run = _Run(on_progress or (lambda phase, done, total: None))
        for kind, model in models.items():
            run.phases(makings[kind].first, model)
        for kind, model in models.items():
            run.phases(makings[kind].then, model)
        manifest = run.seal(models)
    forget_unfinished(config)
    tensors = {kind: model.tensors for kind, model in models.items()}
    left_out = models[TARGET_MODEL].left_out
    notes, warnings = (
        tuple(line for model in models.values() for line in getattr(model, kind))
        for kind in ("notes", "warnings")
    )
    return ExportReport(
        config.destination, manifest, tensors, run.phase_ms, left_out, notes, warnings
    )


def _open(config: ExportConfig) -> dict[str, _Making]:
    """Returns how the model of each kind is made."""
    makings = {TARGET_MODEL: _open_target(config)}
    if config.draft is not None:
        source = open_checkpoint(config.draft.source)
        make = partial(
            RecipeModel,
            kind=DRAFT_MODEL,
            config=config,
            published=source,
            source=source,
            quantization=config.draft.quantization,
        )
        then = tuple((f"{name} draft", run) for name, run in _phases(config, DRAFT_MODEL))
        makings[DRAFT_MODEL] = _Making(make, FIRST_DRAFT_PHASES, then)
    return makings


def _open_target(config: ExportConfig) -> _Making:
    try:
        source = open_checkpoint(config.source)
        source = Merged(source, config.lora) if config.lora else source
    except UnsupportedModelError:
        recipeless = find_recipeless(config)
        if recipeless is None:
            raise
        make_optimum = partial(OptimumModel, kind=TARGET_MODEL, config=config, published=recipeless)
        return _Making(make_optimum, FIRST_PHASES[:1], OPTIMUM_PHASES)
    exits = config.exit
    is_published = config.head is not None and config.head.is_dir()
    published = read_published_head(config.head) if config.head and is_published else None
    head = read_head_file(config.head) if config.head and published is None else None
    has_layer = config.takes_draft_layer and source.has_draft_layer
    is_head_shipped = config.takes_shipped_head and not has_layer
    shipped = find_candidates(source.config) if is_head_shipped else Candidates()
    layers = (*config.hidden_layers, *(exits.layers if exits else ()))
    if has_layer:
        layers = (*layers, source.config.n_layers)
    if published:
        layers = (*layers, *published.layers(source.config.n_layers))
    make = partial(
        RecipeModel,
        kind=TARGET_MODEL,
        config=config,
        published=source,
        source=source,
        quantization=config.quantization,
        hidden_layers=tuple(sorted({*layers, *_read_layers((head, *shipped.files))})),
        head_file=head,
        shipped_heads=shipped.files,
        published_head=published,
        notes=_without_adapters(config, source),
        warnings=[f"a shipped draft head is left out: {line}" for line in shipped.damaged],
        draft_layer=source if has_layer else None,
        left_out=_left_out(config, source),
    )
    more = (
        *(DRAFT_LAYER_PHASES if has_layer else ()),
        *(HEAD_PHASES if head or shipped.files else ()),
        *(PUBLISHED_PHASES if published else ()),
        *(EXIT_PHASES if config.exit else ()),
        *((("kernels", add_kernels),) if config.kernels_triple else ()),
    )
    return _Making(make, FIRST_PHASES, (*_phases(config, TARGET_MODEL), *more))


def _read_layers(heads: Iterable[HeadFile | None]) -> set[int]:
    """Returns the layers whose hidden states draft heads read."""
    return {layer for head in heads if head for layer in head.facts.hidden_layers}


def _without_adapters(config: ExportConfig, source: Checkpoint) -> list[str]:
    """Returns a line about the shipped head of the model that adapters changed, if there is one."""
    is_usual = config.takes_draft_layer and config.quantization == "keep"
    if not (config.lora and is_usual) or source.has_draft_layer:
        return []
    names = ", ".join(file.path.stem for file in find_candidates(source.config).files)
    line = (
        f"without a draft head: that of {DISTRIBUTION} ({names}) was trained for the model without "
        "the adapter; `edgedec train head` trains one for this bundle"
    )
    return [line] if names else []


def _left_out(config: ExportConfig, source: Checkpoint) -> str:
    """Returns what of ``source`` the bundle does not get though nobody asked for that."""
    is_free = config.is_free_for_head
    if is_free and source.has_draft_layer and not config.takes_draft_layer:
        return why_left_out("only bundles of --target cpu have draft heads")
    return source.left_out if is_free else ""


def _phases(config: ExportConfig, kind: str) -> Phases:
    """Returns the phases behind the first: quantise, those of the compiler, verify."""
    return recipe_phases(config.compiler_of(kind))


class _Run:
    """Runs phases and notes how long each took."""

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self.phase_ms: dict[str, float] = {}

    def phases(self, phases: Phases, model: ModelExport) -> None:
        """Runs the phases of one model in order."""
        for name, run in phases:
            with self._timed(name) as model.report:
                try:
                    run(model)
                except MissingStepError as error:
                    raise UnsupportedModelError(
                        f"{error}: export with --target cpu or portable"
                    ) from error

    def seal(self, models: dict[str, ModelExport]) -> BundleManifest:
        """Returns the manifest of the finished folder."""
        with self._timed("seal") as report:
            return seal(models, report)

    @contextmanager
    def _timed(self, name: str) -> Iterator[Callable[[int, int], None]]:
        report = partial(self._on_progress, name)
        report(0, 0)
        start = time.perf_counter()
        yield report
        self.phase_ms[name] = round((time.perf_counter() - start) * 1e3, 1)
