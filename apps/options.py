"""Options that several verbs share, with their help texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from edgedec.runtime.config import GenerationConfig

Bundle = Annotated[
    Path, typer.Argument(metavar="BUNDLE", help="Directory made by `edgedec export`.")
]
Json = Annotated[
    bool, typer.Option("--json", help="Print exactly one JSON document on standard output.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

MaxNewTokens = Annotated[
    int | None,
    typer.Option("--max-new-tokens", "-n", min=1, help="Most new tokens; 256 by default."),
]
Temperature = Annotated[
    float | None,
    typer.Option(min=0.0, help="Randomness; 0 takes the likeliest token."),
]
TopK = Annotated[int | None, typer.Option(min=0, help="Sample among the K likeliest; 0 is off.")]
TopP = Annotated[
    float | None,
    typer.Option(min=0.0, max=1.0, help="Sample among tokens that hold this mass; 1 is off."),
]
MinP = Annotated[
    float | None,
    typer.Option(
        min=0.0, max=1.0, help="Drop tokens below this fraction of the likeliest; 0 is off."
    ),
]
RepetitionPenalty = Annotated[
    float | None, typer.Option(min=0.01, help="Divide logits of tokens seen before; 1 is off.")
]
PresencePenalty = Annotated[
    float | None, typer.Option(help="Subtract from logits of tokens generated before; 0 is off.")
]
FrequencyPenalty = Annotated[
    float | None, typer.Option(help="Subtract per earlier generation of a token; 0 is off.")
]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(metavar="ID=VALUE", help="Add VALUE to the logit of token ID; repeatable."),
]
Seed = Annotated[
    int,
    typer.Option(min=0, help="Another seed samples another text; the same one, the same text."),
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="CPU threads; all physical cores by default.")
]
Context = Annotated[
    int | None,
    typer.Option(min=1, help="Positions to reserve; as many as the bundle serves by default."),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="Stop before this text appears; repeatable."),
]
StopToken = Annotated[
    list[int] | None,
    typer.Option(metavar="ID", min=0, help="Stop at this token, too; repeatable."),
]
IgnoreEos = Annotated[
    bool,
    typer.Option("--ignore-eos", help="Generate on past the model's end token (for measuring)."),
]


SAMPLING = (
    "temperature", "top_k", "top_p", "min_p",
    "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip


def make_request(given: Mapping[str, Any], defaults: GenerationConfig) -> GenerationConfig:
    """Returns ``defaults`` with every option that was given put in its place.

    given: the parameters of a verb, by name; None means not given.

    Raises:
        ConfigError: A value makes no sense.
    """
    sampling = {name: given[name] for name in SAMPLING if given[name] is not None}
    if given["logit_bias"]:
        sampling["logit_bias"] = parse_logit_bias(given["logit_bias"])
    request: dict[str, Any] = {"seed": given["seed"], "ignore_eos": given["ignore_eos"]}
    if given["max_new_tokens"] is not None:
        request["max_new_tokens"] = given["max_new_tokens"]
    return replace(
        defaults,
        sampling=replace(defaults.sampling, **sampling),
        stop=tuple(given["stop"] or ()),
        stop_token_ids=tuple(given["stop_token"] or ()),
        **request,
    )


def parse_logit_bias(pairs: list[str] | None) -> dict[int, float]:
    """Returns the biases written as ``ID=VALUE``; anything else is a usage error."""
    biases: dict[int, float] = {}
    for pair in pairs or []:
        token, _, value = pair.partition("=")
        try:
            biases[int(token)] = float(value)
        except ValueError:
            raise typer.BadParameter(
                f"got {pair!r}, expected ID=VALUE such as 42=-5", param_hint="--logit-bias"
            ) from None
    return biases


def parse_layers(text: str) -> tuple[int, ...]:
    """Returns the layers written as ``3,7,11``; anything else is a usage error."""
    try:
        return tuple(sorted({int(part) for part in text.split(",") if part.strip()}))
    except ValueError:
        raise typer.BadParameter(
            f"got {text!r}, expected layer numbers such as 3,7,11", param_hint="--hidden-layers"
        ) from None
