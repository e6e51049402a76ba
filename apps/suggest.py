"""`edgedec suggest`: several ways to go on with a text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from edgedec.apps.console.option import option
from edgedec.apps.console.progress import ProgressBars, count_amount
from edgedec.apps.console.terminal import note, print_json, write_out
from edgedec.apps.options import common as options
from edgedec.apps.options.groups import takes_groups
from edgedec.apps.options.next_edit import EditOptions, suggest_edit
from edgedec.apps.options.prompt_text import read_prompt
from edgedec.models.graph import N_TOP
from edgedec.runtime.config.suggestion import SuggestConfig
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions
from edgedec.runtime.search.suggestions import Completion

_HEADING = "  first  average  completion"


@dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """How many completions, how long, and when they stop."""

    k: Annotated[
        int, typer.Option("--count", "-k", min=1, max=N_TOP, help="Number of completions.")
    ] = 3
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", min=1, help="Maximum tokens per completion.")
    ] = 8
    no_repeat: Annotated[
        int, option("N", "Avoid repeating any N tokens. 0 turns it off.", min=0)
    ] = 0
    max_entropy: Annotated[
        float, option("BITS", "Stop before a token whose entropy is above this.", min=0.0)
    ] = math.inf
    min_prob: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Stop when the average probability of the latest tokens falls below this.",
        ),
    ] = 0.0

    def config(self) -> SuggestConfig:
        """Returns what the engine is asked for."""
        return SuggestConfig(
            k=self.k,
            n_tokens=self.max_new_tokens,
            no_repeat=self.no_repeat,
            max_entropy=self.max_entropy,
            min_log_prob=math.log(self.min_prob) if self.min_prob > 0 else -math.inf,
        )


@takes_groups
def suggest(
    bundle: options.Bundle,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="The text. Without it, standard input is read."),
    ] = None,
    *,
    prompt_file: Annotated[Path | None, option("FILE", "Read the text from a file.")] = None,
    completions: CompletionOptions,
    editing: EditOptions,
    chat: Annotated[
        bool, typer.Option("--chat/--raw", help="Use the chat template, or pass the text as it is.")
    ] = False,
    threads: options.Threads = None,
    context: options.Context = None,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Show the likeliest continuations of a text.

    Each completion starts with one of the likeliest tokens and is greedy from there. Shown are the
    probability of its first token and the average probability per token.

    Examples:

      edgedec suggest smollm2.edgedec "The capital of France" -k 3

      edgedec suggest smollm2.edgedec --prompt-file main.py -n 16 --max-entropy 3 --json

      git diff -U1 main.py > recent.diff; edgedec suggest coder.edgedec --edit main.py --diff
      recent.diff | git apply
    """
    editing.check(has_prompt=prompt is not None or prompt_file is not None)
    if editing.edit is not None:
        suggest_edit(bundle, editing, EngineOptions(threads=threads, context=context), json)
        return
    text = read_prompt(prompt, prompt_file)
    config = completions.config()
    model_prompt = [{"role": "user", "content": text.rstrip("\n")}] if chat else text
    loading = EngineOptions(threads=threads, context=context, draft=False, prefix_cache_mb=0)
    with (
        ProgressBars(count_amount) as bars,
        load(bundle, loading, bars.report) as engine,
    ):
        suggestions = engine.suggest(model_prompt, config, bars.report)
    if json:
        print_json({"completions": [completion.to_dict() for completion in suggestions]})
        return
    if suggestions:
        note(_HEADING)
    for completion in suggestions:
        write_out(_line(completion))
    if any(completion.end == "length" for completion in suggestions):
        note(f"stopped at {config.n_tokens} tokens; -n N: up to N tokens")


def _line(completion: Completion) -> str:
    """Returns a completion as one line, its line ends and quotes written as in Python."""
    unsure = "  (unsure from here)" if completion.end == "unsure" else ""
    odds = f"{100 * completion.token_probs[0]:5.3g} %  {100 * completion.mean_probability:5.3g} %"
    return f"{odds}  {completion.text!r}{unsure}\n"
