"""`edgedec train`: fits what makes a bundle's models quicker, and puts it into the bundle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from edgedec.apps.console.help_pages import HelpCommand, HelpGroup
from edgedec.apps.console.option import option
from edgedec.apps.console.progress import ProgressBars, count_amount
from edgedec.apps.console.terminal import note, print_json, stops_on_interrupt, write_out
from edgedec.apps.model_names import named_bundle
from edgedec.apps.options import common as options
from edgedec.apps.options.groups import takes_groups
from edgedec.apps.train.rests import resting
from edgedec.export.manifest_change import check_writable
from edgedec.models.errors import ConfigError
from edgedec.system.processes import step_back
from edgedec.training.options import Epochs, LearningRate, TrainingOptions

if TYPE_CHECKING:
    from edgedec.training.heads.head_job import HeadJob
    from edgedec.training.kv_maps.kv_job import KVJob
    from edgedec.training.loop import OnProgress

_LOWEST = 19
"""Niceness of a training that may take no time from others."""

_HELP = """Train heads, draft models and KV maps that make a bundle faster.

Examples:

  edgedec train kv smollm2.edgedec --corpus src

  edgedec train head smollm2.edgedec --corpus src -o smollm2-head.edgedec

  edgedec train exit smollm2.edgedec --exit 8 --corpus src -o smollm2-exit.edgedec

  edgedec train draft smollm2.edgedec --layers 8 --corpus src -o smollm2-pair.edgedec
"""


class Report(Protocol):
    """What a training ends with."""

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready fields."""

    def text(self) -> str:
        """Returns what people read."""


Output = Annotated[Path, option("BUNDLE", "Bundle folder to write.", "-o", "--output")]
Corpus = Annotated[list[Path], option("PATH", "Text file, or folder of text files. Repeatable.")]
MaxTokens = Annotated[int, option("N", "Maximum tokens to read.", min=1)]
Threads = Annotated[int | None, option("N", "CPU threads (default: one per core).", min=1)]
Quantization = Annotated[str, option("SCHEME", "Quantisation, as for `export`.")]

train = typer.Typer(cls=HelpGroup, help=_HELP, no_args_is_help=True, rich_markup_mode=None)


@train.command(cls=HelpCommand)
def kv(
    bundle: options.Bundle,
    corpus: Corpus,
    exit_layer: Annotated[
        int | None, option("E", "Number of layers to compute (default: half).", "--exit", min=1)
    ] = None,
    draft: Annotated[
        bool, typer.Option("--draft", help="Fit maps from the target model to the draft model.")
    ] = False,
    max_tokens: MaxTokens = 100_000,
    threads: Threads = None,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Fit maps that predict keys and values, so that long prompts are answered sooner.

    By default the maps predict a model's later layers from its first ones: a long prompt is
    answered before it is read to the end (`run --prefill progressive`). --draft predicts the draft
    model's from the target model's: it then drafts after a long prompt without reading it.

    Texts like your own prompts work best. Maps of an earlier run are replaced. Ctrl-C stops reading
    and fits what was read (exit code 130). The same command resumes a run that was killed.

    Examples:

      edgedec train kv smollm2.edgedec --corpus src

      edgedec train kv smollm2.edgedec --corpus src --corpus docs --exit 20 --max-tokens 50000

      edgedec train kv pair.edgedec --corpus src --draft
    """
    from edgedec.training.kv_maps.kv_job import KVJob

    job = KVJob(bundle, tuple(corpus), max_tokens, threads)
    if exit_layer is not None and draft:
        raise ConfigError("--exit and --draft are two kinds of maps: choose one")
    check_writable(bundle)
    _run(lambda report, is_stopping: _fit_maps(job, draft, exit_layer, report, is_stopping), json)


def _fit_maps(
    job: KVJob,
    is_draft: bool,
    exit_layer: int | None,
    report: OnProgress,
    is_stopping: Callable[[], bool],
) -> Report:
    """Fits the maps from the target to the draft model, or those of the model's own layers."""
    from edgedec.training.kv_maps.kv_job import train_draft_maps, train_own_maps

    if is_draft:
        return train_draft_maps(job, report, is_stopping)
    return train_own_maps(job, exit_layer, report, is_stopping)


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """Which head, and from what it learns."""

    kind: Annotated[
        str,
        option(
            "KIND",
            "eagle: a decoder layer. hydra, medusa: one light head per drafted "
            "token; hydra's see the tokens before their own.",
        ),
    ] = "eagle"
    replay: Annotated[
        list[Path] | None, option("FILE", "Texts collected by `run --adapt`. Repeatable.", "--from")
    ] = None
    is_continued: Annotated[
        bool, typer.Option("--continue", help="Start from the bundle's own head.")
    ] = False
    head_file: Annotated[
        Path | None,
        option("FILE", "Write the head to FILE as well, for `export --head` (int8 or int4)."),
    ] = None
    rollout: Annotated[
        int | None,
        option(
            "N",
            "Depth of drafts in training (default 3), or the number of light heads (default 4).",
            min=1,
            max=8,
        ),
    ] = None

    @property
    def n_steps(self) -> int:
        """Depth of drafts in training, or the number of light heads."""
        from edgedec.models.draft_heads import LIGHT_HEADS

        return self.rollout or (4 if self.kind in LIGHT_HEADS else 3)


@train.command(cls=HelpCommand)
@takes_groups
def head(
    bundle: options.Bundle,
    output: Output,
    training: TrainingOptions,
    what: HeadOptions,
    quantization: Quantization = "int8",
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Train a draft head, which guesses the next tokens of the bundle's own model.

    Writes a new bundle with the head. Texts like those that the model will write work best. Ctrl-C
    keeps the best head so far (exit code 130). The same command resumes a run that was killed.
    Needs torch, of the extra `train`.

    Examples:

      edgedec train head smollm2.edgedec --corpus src -o smollm2-head.edgedec

      edgedec train head smollm2.edgedec --kind hydra --corpus src --minutes 30 -o out.edgedec

      edgedec train head general.edgedec --continue --from my.replay -o mine.edgedec
    """
    from edgedec.training.heads.head_job import HeadJob

    job = HeadJob(
        bundle=bundle,
        output=output,
        options=training,
        kind=what.kind,
        scheme=quantization,
        n_steps=what.n_steps,
        replay=tuple(what.replay or ()),
        is_continued=what.is_continued,
        head_file=what.head_file,
    )
    _train_head(job, json)


@train.command("exit", cls=HelpCommand)
@takes_groups
def train_exit(
    bundle: options.Bundle,
    exit_layer: Annotated[int, option("E", "Number of layers that draft.", "--exit", min=1)],
    output: Output,
    training: TrainingOptions,
    quantization: Quantization = "int8",
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Train an adapter for an early exit: the model's first layers draft.

    The bundle must return the hidden states of that layer (`export --exit E`). The rest is like
    `train head`.

    Examples:

      edgedec train exit exits.edgedec --exit 8 --corpus src -o smollm2-exit.edgedec

      edgedec train exit exits.edgedec --exit 4 --corpus src --minutes 30 -o out.edgedec
    """
    from edgedec.models.draft_heads import ADAPTER
    from edgedec.training.heads.head_job import HeadJob

    job = HeadJob(bundle, output, training, ADAPTER, quantization, exit_layer=exit_layer)
    _train_head(job, json)


@train.command(cls=HelpCommand)
def adapt(
    bundle: options.Bundle,
    replay: Annotated[Path | None, option("FILE", "Texts collected by --adapt.", "--from")] = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="Put the head back that the bundle had before.")
    ] = False,
    max_tokens: MaxTokens = 50_000,
    epochs: Epochs = 3,
    learning_rate: LearningRate = 1e-3,
    max_cpu: Annotated[
        str | None, option("SHARE", "Maximum share of time, e.g. 30%; others come first.")
    ] = None,
    threads: Threads = None,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Improve the bundle's own draft head with texts that you wrote.

    It learns from the latest texts of `run`, `chat` or `lsp --adapt`. The new head takes the place
    of the old one if it predicts clearly more of the very latest texts, which it has not seen. The
    texts that the model writes stay the same. The same command resumes a run that was killed. Needs
    torch, of the extra `train`.

    Examples:

      edgedec train adapt code.edgedec --from my.replay

      edgedec train adapt code.edgedec --undo
    """
    from edgedec.apps.kept_texts.places import remember
    from edgedec.apps.typing.typing_memory import share_of
    from edgedec.training.heads.adapt_folder import AdaptFolder
    from edgedec.training.heads.adapt_job import adapt_head
    from edgedec.training.heads.adapt_job import undo as undo_swap

    check_writable(bundle)
    if undo:
        undo_swap(bundle)
        note(f"{bundle} has the head that it had before")
        return
    if replay is None:
        raise ConfigError("there is nothing to learn from: name texts with --from, or use --undo")
    training = TrainingOptions(
        max_tokens=max_tokens, epochs=epochs, learning_rate=learning_rate, threads=threads
    )
    if remark := remember(
        "replays", AdaptFolder(bundle).features, f"{max_tokens:,} tokens, until a training ends"
    ):
        note(remark)
    share = 1.0 if max_cpu is None else share_of(max_cpu)
    if max_cpu is not None:
        step_back(_LOWEST)

    def train_it(report: OnProgress, is_stopping: Callable[[], bool]) -> Report:
        return adapt_head(bundle, replay, training, resting(report, share), is_stopping)

    _run(train_it, json)


@train.command(cls=HelpCommand)
@takes_groups
def draft(
    bundle: options.Bundle,
    output: Output,
    training: TrainingOptions,
    layers: Annotated[
        int | None, option("N", "Number of layers to keep, evenly spread.", min=1)
    ] = None,
    origin: Annotated[
        Path | None,
        option(
            "BUNDLE",
            "Model to start from, with the same tokenizer (default: the target model).",
            "--from",
            callback=named_bundle,
        ),
    ] = None,
    loss: Annotated[
        str, option("NAME", "Loss: kl, reverse-kl, jsd, or tvd (the share of rejected drafts).")
    ] = "kl",
    quantization: Quantization = "int8",
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Train a draft model on the texts of the bundle's own model.

    It starts from some layers of that model, or from a smaller model, and replaces the bundle's
    draft model. The rest is like `train head`.

    Examples:

      edgedec train draft smollm2.edgedec --layers 8 --corpus src -o smollm2-pair.edgedec

      edgedec train draft large.edgedec --from small.edgedec --corpus src --loss tvd -o out.edgedec
    """
    from edgedec.training.draft_models.draft_job import DraftJob, train_bundle_draft

    job = DraftJob(bundle, output, training, layers, origin, loss, quantization)
    _run(lambda report, is_stopping: train_bundle_draft(job, report, is_stopping), json)


def _train_head(job: HeadJob, is_json: bool) -> None:
    """Trains the head that ``job`` describes, and prints the report."""
    from edgedec.training.heads.head_job import train_bundle_head

    _run(lambda report, is_stopping: train_bundle_head(job, report, is_stopping), is_json)


def _run(
    train_it: Callable[[OnProgress, Callable[[], bool]], Report],
    is_json: bool,
) -> None:
    """Trains with progress on the terminal, until Ctrl-C, and prints the report."""
    stopping = Event()
    with ProgressBars(count_amount, has_lines=True) as bars, stops_on_interrupt(stopping.set):
        try:
            report = train_it(bars.report, stopping.is_set)
        except ConfigError as error:
            if not stopping.is_set():
                raise
            note(f"stopped before there was anything to keep: {error}")
            raise typer.Exit(130) from None
    if is_json:
        print_json(report.to_dict())
    else:
        write_out(report.text())
    if stopping.is_set():
        raise typer.Exit(130)
