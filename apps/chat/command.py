"""`edgedec chat`: a conversation that reuses the KV cache between turns."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from edgedec.apps.chat.talk import Talk
from edgedec.apps.chat.typed import line_history
from edgedec.apps.console.option import option
from edgedec.apps.console.progress import ProgressBars, count_amount
from edgedec.apps.console.stream_text import ShowOptions
from edgedec.apps.console.terminal import print_json
from edgedec.apps.kept_texts.remarks import note_kept
from edgedec.apps.options import common as options
from edgedec.apps.options.groups import takes_groups
from edgedec.apps.options.switching import SwitchOptions, tell_if_approximate
from edgedec.apps.options.template_variables import (
    TemplateVar,
    parse_template_variables,
    with_template_variables,
)
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.replay_buffer import ReplayBuffer


@takes_groups
def chat(
    bundle: options.Bundle,
    system: Annotated[str | None, option("TEXT", "System prompt.")] = None,
    *,
    prefix_cache: Annotated[
        int, option("MB", "Memory that keeps earlier conversations.", min=0)
    ] = 256,
    history: Annotated[
        Path | None, option("FILE", "Keep the lines you type in FILE, for the next chat.")
    ] = None,
    template_var: TemplateVar = None,
    store: options.Store = None,
    adapt: options.Adapt = None,
    prefix_disk: options.PrefixDisk = 0,
    loading: options.LoadOptions,
    request: options.RequestOptions,
    switching: SwitchOptions,
    shown: ShowOptions,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Chat with a model.

    A line is a message; triple quotes begin and end a message of several lines. /help lists the
    commands: /system, /undo, /save, /load, /reset, /exit.

    Ctrl-C stops an answer and keeps what was said. Between answers it ends the chat (exit code
    130). When the context is full, the model no longer sees the oldest turns; it keeps the system
    prompt and the latest turns.

    Examples:

      edgedec chat smollm2.edgedec

      edgedec chat smollm2.edgedec --system "Answer in French." --temperature 0.7

      printf 'Hello\\nWho are you?\\n' | edgedec chat smollm2.edgedec --json
    """
    switching.apply(request.make_request(GenerationConfig()))  # complains before anything is loaded
    variables = parse_template_variables(template_var)
    typed = history if sys.stdin.isatty() else None  # nothing else is kept of lines
    replay = None if adapt is None else ReplayBuffer.made(adapt, bundle)
    with ProgressBars(count_amount) as bars:
        engine = loading.load(bundle, bars.report, prefix_cache, store, prefix_disk)
    with engine:
        engine.loaded.check_writes()
        if not engine.has_chat_template:
            raise ConfigError(
                "this model has no chat template: `edgedec run --raw` has it continue a text"
            )
        note_kept(prefix_disk, store, adapt, history=typed)
        config = switching.apply(request.make_request(options.unlimited(engine)))
        config = with_template_variables(config, engine, variables)
        tell_if_approximate(config)
        options.tell_if_recommended(config, engine.defaults)
        talk = Talk(engine, system, config, shown, replay, is_silent=json)
        with line_history(history):
            turns = talk.run()
    if json:
        print_json({"turns": turns})
