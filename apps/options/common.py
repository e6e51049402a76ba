"""Options that several verbs share, with their help texts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from edgedec.apps.model_names import named_bundle
from edgedec.runtime.config import (
    MAX_DRAFT_LEN,
    GenerationConfig,
    LayersConfig,
    SpeculationConfig,
)
from edgedec.runtime.drafters import drafter_names
from edgedec.runtime.engine import Engine
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions
from edgedec.runtime.sessions.prefill import Progress
from edgedec.targets.openvino_devices import OPENVINO_DEVICES
from edgedec.targets.providers import PROVIDERS

BUNDLE_HELP = "Directory made by `edgedec export`, or a name that `edgedec models list` shows."
Bundle = Annotated[Path, typer.Argument(metavar="BUNDLE", help=BUNDLE_HELP, callback=named_bundle)]
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
Affinity = Annotated[
    str | None,
    typer.Option(
        metavar="LIST|none",
        help="Processors that threads stay on, such as 0,1; none, the default, pins nothing.",
    ),
]
MaxCpu = Annotated[
    str | None,
    typer.Option(metavar="SHARE", help="Of the time, to compute ahead in, such as 30%; 0: none."),
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

Method = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"How to decode: plain, auto, or some of {', '.join(drafter_names())}, joined by +.",
    ),
]
Verifier = Annotated[
    str | None, typer.Option(metavar="NAME", help="What accepts drafted tokens when sampling.")
]
Prefill = Annotated[
    str | None,
    typer.Option(
        metavar="MODE",
        help="How a prompt is read: exact; progressive, which shows provisional text before it is "
        "read to the end; predicted, which is approximate; auto, the default.",
    ),
]
Layers = Annotated[
    str | None,
    typer.Option(
        metavar="POLICY",
        rich_help_panel="Labs: these paid on nothing that was tried",
        help="Write with some of the model's layers, which is approximate: unified, skipdecode or "
        "ffn; or a whole setting such as unified:keep=0.9.",
    ),
]
DraftLen = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, max=MAX_DRAFT_LEN, help="Most drafted tokens of a round."),
]
DraftDepth = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, max=MAX_DRAFT_LEN, help="Most drafted tokens one after the other."
    ),
]
Draft = Annotated[
    Path | None,
    typer.Option(
        metavar="BUNDLE",
        help="Draft model from another bundle than its own.",
        callback=named_bundle,
    ),
]
Overlap = Annotated[
    str,
    typer.Option(
        metavar="auto|on|off",
        help="Draft on while the target model verifies, on other cores; auto: where it pays.",
    ),
]
Store = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Draft from the texts in this n-gram store, and add to it; made if there is none.",
    ),
]
Adapt = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Keep texts in which drafts did not come true in FILE, which `train head --from` "
        "learns from; made if there is none.",
    ),
]
Provider = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"ONNX Runtime's provider, for bundles of --target ort: {', '.join(PROVIDERS)}; "
        "cpu by default.",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"OpenVINO's device, for bundles of --target openvino: {', '.join(OPENVINO_DEVICES)}; "
        "CPU by default.",
    ),
]


DraftProvider = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="As --provider, for the draft model alone."),
]
DraftDevice = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="As --device, for the draft model alone."),
]


_SAMPLING = (
    "temperature", "top_k", "top_p", "min_p",
    "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Options that say how a bundle is loaded."""

    threads: Threads = None
    affinity: Affinity = None
    context: Context = None
    draft: Draft = None
    provider: Provider = None
    device: Device = None
    draft_provider: DraftProvider = None
    draft_device: DraftDevice = None

    def load(
        self,
        bundle: Path,
        on_progress: Progress | None = None,
        prompt_cache_mb: int = 0,
        store: Path | None = None,
        overlap: str = "auto",
    ) -> Engine:
        """Returns the engine over ``bundle``, which may draft from ``store``."""
        loading = EngineOptions(
            threads=self.threads,
            context=self.context,
            draft=True if self.draft is None else self.draft,
            prompt_cache_mb=prompt_cache_mb,
            affinity=None if self.affinity is None else parse_affinity(self.affinity),
            store=store,
            overlap=overlap,
            provider=self.provider,
            device=self.device,
            draft_provider=self.draft_provider,
            draft_device=self.draft_device,
        )
        return load(bundle, loading, on_progress)


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """Options that make a request. None: as the bundle recommends."""

    max_new_tokens: MaxNewTokens = None
    method: Method = None
    verifier: Verifier = None
    prefill: Prefill = None
    layers: Layers = None
    draft_len: DraftLen = None
    draft_depth: DraftDepth = None
    temperature: Temperature = None
    top_k: TopK = None
    top_p: TopP = None
    min_p: MinP = None
    repetition_penalty: RepetitionPenalty = None
    presence_penalty: PresencePenalty = None
    frequency_penalty: FrequencyPenalty = None
    logit_bias: LogitBias = None
    seed: Seed = 0
    stop: Stop = None
    stop_token: StopToken = None
    ignore_eos: IgnoreEos = False

    def make_request(self, defaults: GenerationConfig) -> GenerationConfig:
        """Returns ``defaults`` with every option that was given put in its place.

        Raises:
            ConfigError: A value makes no sense.
        """
        given = {name: getattr(self, name) for name in _SAMPLING}
        sampling = {name: value for name, value in given.items() if value is not None}
        if self.logit_bias is not None:
            sampling["logit_bias"] = parse_logit_bias(self.logit_bias)
        request = replace(
            defaults,
            max_new_tokens=self.max_new_tokens or defaults.max_new_tokens,
            sampling=replace(defaults.sampling, **sampling),
            seed=self.seed,
            stop=tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token or ()),
            ignore_eos=self.ignore_eos,
            prefill=self.prefill or defaults.prefill,
            layers=None if self.layers is None else LayersConfig.parse(self.layers),
            speculation=SpeculationConfig(draft_len=self.draft_len, depth=self.draft_depth),
        )
        return with_method(request, self.method, self.verifier)


def with_method(
    request: GenerationConfig, method: str | None, verifier: str | None = None
) -> GenerationConfig:
    """Returns ``request`` with another method, or verifier, where one is named."""
    return replace(request, method=method or request.method, verifier=verifier or request.verifier)


def parse_affinity(text: str) -> list[int] | None:
    """Returns the processors named by ``0,1``, or None for ``none``."""
    if text == "none":
        return None
    numbers = [number.strip() for number in text.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise typer.BadParameter(f"got --affinity {text}, expected numbers such as 0,1, or none")
    return [int(number) for number in numbers]


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


def parse_layers(text: str, option: str = "--hidden-layers") -> tuple[int, ...]:
    """Returns the layers written as ``3,7,11``; anything else is a usage error."""
    try:
        return tuple(sorted({int(part) for part in text.split(",") if part.strip()}))
    except ValueError:
        raise typer.BadParameter(
            f"got {text!r}, expected layer numbers such as 3,7,11", param_hint=option
        ) from None
