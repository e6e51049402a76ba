"""`edgedec run`: one prompt in, one text out, as it appears."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgedec.apps.console.option import option
from edgedec.apps.console.progress import ProgressBars, count_amount
from edgedec.apps.console.stream_text import ShowOptions, write_stream
from edgedec.apps.console.terminal import note, print_json
from edgedec.apps.kept_texts.remarks import note_kept
from edgedec.apps.options import common as options
from edgedec.apps.options.grammar import GrammarOptions
from edgedec.apps.options.groups import takes_groups
from edgedec.apps.options.prompt_text import read_prompt, with_piped_text
from edgedec.apps.options.switching import SwitchOptions, tell_if_approximate
from edgedec.apps.options.template_variables import (
    TemplateVar,
    parse_template_variables,
    with_template_variables,
)
from edgedec.apps.options.text_files import stated_text
from edgedec.apps.run.beams import BeamOptions
from edgedec.apps.run.odd_drafts import draft_problem, measured_saving
from edgedec.apps.run.tries import TryOptions, warm
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.engine.stream import Stream
from edgedec.runtime.methods.method_parts import AUTO
from edgedec.runtime.sequences.prefill import Progress
from edgedec.runtime.text.prompt import Prompt

if TYPE_CHECKING:  # imported where they are needed: each import delays a first token
    from edgedec.runtime.engine.replay_buffer import ReplayBuffer

_CUT_OFF = 3  # exit code


@dataclass(frozen=True, kw_only=True)
class AskOptions:
    """What is asked, and how it reaches the model."""

    prompt_file: Annotated[Path | None, option("FILE", "Read the prompt from a file.")] = None
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Use the bundle's chat template, or pass the prompt as it is (default: the "
            "template, if there is one).",
        ),
    ] = None
    quote: Annotated[
        Path | None,
        option(
            "FILE",
            "Answer the question PROMPT with the span of FILE that the model finds likeliest.",
        ),
    ] = None
    template_var: TemplateVar = None

    def prompt(self, engine: Engine, text: str) -> Prompt:
        """Returns the prompt ``text`` as the model is given it."""
        is_chat = engine.has_chat_template if self.chat is None else self.chat
        return [{"role": "user", "content": text.rstrip("\n")}] if is_chat else text


@dataclass(frozen=True, kw_only=True)
class KeepOptions:
    """What is kept between runs."""

    session: Annotated[
        Path | None,
        option("FILE", "Start from the KV cache saved in FILE, and save it there at the end."),
    ] = None
    round_session: Annotated[
        bool,
        typer.Option(
            "--round-session",
            help="Round what --session saves: long texts take a sixth, and what follows them is "
            "approximate.",
        ),
    ] = False
    store: options.Store = None
    adapt: options.Adapt = None
    prefix_disk: options.PrefixDisk = 0

    def __post_init__(self) -> None:
        session = self.session
        if self.round_session and session is None:
            raise ConfigError("--round-session needs --session")
        if session is not None and not session.parent.is_dir():
            raise ConfigError(f"cannot save {session}: there is no folder {session.parent}")

    def load(self, bundle: Path, loading: options.LoadOptions, on_progress: Progress) -> Engine:
        """Returns the engine over ``bundle``."""
        return loading.load(
            bundle,
            on_progress,
            store=self.store,
            prefix_disk_mb=self.prefix_disk,
        )

    def begin(self, engine: Engine, is_silent: bool) -> None:
        """Starts from the saved KV cache, if there is one; says what is kept at its first use."""
        if self.session is not None:
            engine.check_sequential("sessions")
        if self.round_session:
            engine.loaded.memory.check_can_round()
        if self.session is not None and self.session.exists():
            n_held = engine.load_session(self.session)
            if not is_silent:
                is_rounded = engine.loaded.memory.is_approximate
                rest = ", rounded: what follows is approximate" if is_rounded else ""
                note(f"{self.session} holds {n_held} tokens{rest}")
        note_kept(self.prefix_disk, self.store, self.adapt, self.session)  # no file was refused


@takes_groups
def run(
    bundle: options.Bundle,
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT",
            help="The prompt, or - for standard input. Text from a pipe is put before it.",
        ),
    ] = None,
    *,
    asking: AskOptions,
    keeping: KeepOptions,
    loading: options.LoadOptions,
    request: options.RequestOptions,
    grammar: GrammarOptions,
    switching: SwitchOptions,
    shown: ShowOptions,
    tries: TryOptions,
    beams: BeamOptions,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Generate text from a prompt.

    Ctrl-C stops and keeps the text so far (exit code 130). Exit code 3: the maximum number of new
    tokens cut off structured output.

    Examples:

      edgedec run smollm2.edgedec "Why is the sky blue?"

      edgedec run smollm2.edgedec --raw "Once upon a time" --temperature 0.8 --seed 7

      cat story.txt | edgedec run smollm2.edgedec "What is the cat called?"

      git diff | edgedec run smollm2.edgedec --json

      edgedec run smollm2.edgedec "Roll a die." --regex "[1-6]"

      edgedec run smollm2.edgedec "Roll a die." --regex "[1-6]" --grammar-aligned 8

      edgedec run smollm2.edgedec --prompt-file long.txt --session long.session

      edgedec run smollm2.edgedec "What is 17 times 23?" --best-of 8

      edgedec run smollm2.edgedec "How long is the Danube?" --quote rivers.txt
    """
    text = with_piped_text(read_prompt(prompt, asking.prompt_file), prompt, asking.prompt_file)

    def ask(defaults: GenerationConfig) -> GenerationConfig:
        return switching.apply(grammar.apply(request.make_request(defaults)))

    ask(GenerationConfig())  # complains before anything is loaded
    variables = parse_template_variables(asking.template_var)
    _check_together(asking, keeping, shown, tries, beams, grammar)
    quoted = None if asking.quote is None else stated_text(asking.quote)
    replay = _replay_buffer(keeping.adapt, bundle)
    with ProgressBars(count_amount) as bars, keeping.load(bundle, loading, bars.report) as engine:
        keeping.begin(engine, is_silent=json)
        if quoted is not None:
            from edgedec.apps.run.quoting import write_quote

            write_quote(engine, text, quoted, bars, is_json=json)
            return
        model_prompt = asking.prompt(engine, text)
        config = ask(engine.defaults if beams.beams else options.unlimited(engine))
        config = with_template_variables(config, engine, variables)
        is_warm = request.temperature is not None
        if beams.beams is not None:
            from edgedec.apps.run.beam_search import write_beams

            ids = engine.encode(model_prompt, variables)
            write_beams(engine, ids, beams, config.max_new_tokens, is_json=json)
        elif tries.best_of is not None:
            from edgedec.apps.run.best_try import write_best

            write_best(engine, model_prompt, text, warm(config, is_warm), tries, bars, is_json=json)
        elif grammar.grammar_aligned is not None:
            from edgedec.apps.run.aligned import write_aligned

            config = warm(config, is_warm, 1.0)
            write_aligned(engine, model_prompt, config, grammar.grammar_aligned, is_json=json)
        else:
            drafts = not json and config.switch is None
            doubt = draft_problem(bundle, loading.draft) if drafts else ""
            _write_one(
                engine, model_prompt, config, keeping, replay, shown, bars, doubt, is_json=json
            )


def _replay_buffer(folder: Path | None, bundle: Path) -> ReplayBuffer | None:
    """Returns what keeps texts for `train adapt`, if a folder is named for them."""
    if folder is None:
        return None
    from edgedec.runtime.engine.replay_buffer import ReplayBuffer

    return ReplayBuffer.made(folder, bundle)


def _check_together(
    asking: AskOptions,
    keeping: KeepOptions,
    shown: ShowOptions,
    tries: TryOptions,
    beams: BeamOptions,
    grammar: GrammarOptions,
) -> None:
    """Raises a ConfigError if options are given that exclude each other."""
    is_kept, is_shown = bool(keeping.session or keeping.adapt), shown != ShowOptions()
    if tries.best_of is not None and (is_kept or is_shown):
        raise ConfigError(
            "--best-of cannot be combined with --session, --adapt, --show-drafts or --explain"
        )
    if asking.template_var and (asking.quote or asking.chat is False):
        raise ConfigError("--template-var cannot be combined with --quote or --raw")
    if asking.quote is not None and (tries.best_of or is_kept or is_shown):
        raise ConfigError(
            "--quote cannot be combined with --best-of, --session, --adapt, --show-drafts or "
            "--explain"
        )
    if beams.beams is not None and (asking.quote or tries.best_of or is_kept):
        raise ConfigError(
            "--beams cannot be combined with --quote, --best-of, --session or --adapt"
        )
    is_other = asking.quote or tries.best_of or beams.beams
    if grammar.grammar_aligned is not None and (is_other or is_kept or is_shown):
        raise ConfigError(
            "--grammar-aligned cannot be combined with --quote, --best-of, --beams, --session, "
            "--adapt, --show-drafts or --explain"
        )


def _write_one(
    engine: Engine,
    prompt: Prompt,
    config: GenerationConfig,
    keeping: KeepOptions,
    replay: ReplayBuffer | None,
    shown: ShowOptions,
    bars: ProgressBars,
    doubt: str,
    is_json: bool,
) -> None:
    """Writes one text as it appears, and keeps what is to be kept.

    doubt: why the draft model may lose time; what it saved or cost is noted then.
    """
    if doubt:
        note(doubt)
    stream = engine.stream(prompt, config, bars.report)
    tell_if_approximate(config)
    options.tell_if_recommended(config, engine.defaults)
    tell_if_unused(keeping.store, stream)
    is_interrupted = write_stream(stream, bars, shown, is_silent=is_json)
    if doubt and not shown.explain and (saving := measured_saving(stream.explain())):
        note(saving)
    if is_json:
        print_json(stream.result.to_dict())
    if keeping.session is not None:
        engine.save_session(keeping.session, is_rounded=keeping.round_session)
    if replay is not None:
        replay.add(stream.token_ids, stream.result.origins)
    if is_interrupted:
        raise typer.Exit(130)
    if is_cut_off(stream.result, config):
        limit = "token limit" if stream.result.finish_reason == "length" else "context"
        note(f"the {limit} cut off the structured output: raise --max-new-tokens or --context")
        raise typer.Exit(_CUT_OFF)


def is_cut_off(result: GenerationResult, config: GenerationConfig) -> bool:
    """Returns whether the token limit ended an output that follows a schema or a grammar."""
    is_structured = any((config.json_schema, config.regex, config.grammar))
    return is_structured and result.finish_reason in ("length", "context")


def tell_if_unused(store: Path | None, stream: Stream) -> None:
    """Notes that the method of ``stream`` does not draft from ``store``."""
    name = stream.method
    if store is not None and name != AUTO and "store" not in name.split("+"):
        note(f"the method {name} does not draft from {store}: use --method auto or store")
