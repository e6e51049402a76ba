"""Options that several verbs share, with their help texts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from edgedec.apps.console.option import device, masks, option, sampling, speed
from edgedec.apps.console.terminal import note
from edgedec.apps.model_names import named_bundle
from edgedec.runtime.config import (
    MAX_DRAFT_LEN,
    GenerationConfig,
    SamplingConfig,
    SpeculationConfig,
    UnmaskConfig,
)
from edgedec.runtime.drafting.drafters import drafter_names
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions
from edgedec.runtime.sequences.prefill import Progress

BUNDLE_HELP = "A bundle, a GGUF file, or a name that `edgedec models list` shows."

Bundle = Annotated[Path, typer.Argument(metavar="BUNDLE", help=BUNDLE_HELP, callback=named_bundle)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to standard output.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

PerCategory = Annotated[
    int | None, option("N", "Use only the first N prompts of each category.", min=1)
]

TO_THE_END = 2**31 - 1
"""Tokens of an answer that only its own end limits, or that of the context."""

MaxNewTokens = Annotated[
    int | None,
    option(
        "N",
        "Maximum number of new tokens. 0, the default: to the end of the answer or of the context.",
        "--max-new-tokens",
        "--max-tokens",
        "-n",
        min=0,
    ),
]
Temperature = Annotated[
    float | None, option("FLOAT", "Randomness. 0 always takes the likeliest token.", min=0.0)
]
TopK = Annotated[
    int | None, sampling("K", "Sample from the K likeliest tokens. 0 turns it off.", min=0)
]
TopP = Annotated[
    float | None,
    sampling(
        "P",
        "Sample from the likeliest tokens whose probabilities add up to P. 1 turns it off.",
        min=0.0,
        max=1.0,
    ),
]
MinP = Annotated[
    float | None,
    sampling(
        "P", "Drop tokens less likely than P times the likeliest. 0 turns it off.", min=0.0, max=1.0
    ),
]
RepetitionPenalty = Annotated[
    float | None,
    sampling("FLOAT", "Divide the logits of tokens seen before by this. 1 turns it off.", min=0.01),
]
PresencePenalty = Annotated[
    float | None, sampling("FLOAT", "Subtract this from the logits of tokens already generated.")
]
FrequencyPenalty = Annotated[
    float | None,
    sampling("FLOAT", "Subtract this once per time that a token was already generated."),
]
LogitBias = Annotated[
    list[str] | None, sampling("ID=VALUE", "Add VALUE to the logit of token ID. Repeatable.")
]
NoRepeatNgramSize = Annotated[
    int | None,
    sampling(
        "N",
        "Repeat no N tokens in a row, of prompt or output. 0 turns it off.",
        "--no-repeat-ngram",
        min=0,
    ),
]
MinNewTokens = Annotated[
    int | None, sampling("N", "Write at least N tokens before the text may end.", min=0)
]
TypicalP = Annotated[
    float | None,
    sampling(
        "P",
        "Sample from the most typical tokens whose probabilities add up to P. 1 turns it off.",
        min=0.0,
        max=1.0,
    ),
]
TopNSigma = Annotated[
    float | None,
    sampling(
        "N", "Keep logits within N standard deviations of the largest. 0 turns it off.", min=0.0
    ),
]
XtcProbability = Annotated[
    float | None,
    sampling(
        "P",
        "Chance per token to drop all likely tokens except the least likely one (XTC). 0 "
        "turns it off.",
        min=0.0,
        max=1.0,
    ),
]
XtcThreshold = Annotated[
    float | None,
    sampling(
        "P", "Probability from which XTC calls a token likely (default 0.1).", min=0.0, max=1.0
    ),
]
DryMultiplier = Annotated[
    float | None,
    sampling(
        "FLOAT", "Penalize tokens that repeat a sequence (DRY), e.g. 0.8. 0 turns it off.", min=0.0
    ),
]
DryBase = Annotated[
    float | None,
    sampling("FLOAT", "Growth of the DRY penalty per repeated token (default 1.75).", min=1.0),
]
DryAllowedLength = Annotated[
    int | None,
    sampling("N", "Shortest repeated sequence that DRY penalizes, in tokens (default 2).", min=1),
]
Mirostat = Annotated[
    int | None,
    sampling(
        "1|2", "Keep the average surprise near --mirostat-tau, by Mirostat 1 or 2.", min=0, max=2
    ),
]
MirostatTau = Annotated[
    float | None,
    sampling("BITS", "Average surprise per token that Mirostat aims at (default 5).", min=0.0),
]
MirostatEta = Annotated[
    float | None, sampling("RATE", "How fast Mirostat corrects (default 0.1).", min=0.0, max=1.0)
]
Momentum = Annotated[
    float | None,
    sampling(
        "FLOAT", "Steer greedy decoding away from repetitions, e.g. 0.2. 0 turns it off.", min=0.0
    ),
]
Seed = Annotated[int, option("N", "The same seed gives the same text.", min=0)]
Threads = Annotated[int | None, option("N", "CPU threads (default: one per physical core).", min=1)]
Affinity = Annotated[
    str | None, device("LIST", "Processors to pin threads to, e.g. 0,1 (default: none).")
]
MaxCpu = Annotated[
    str | None, option("SHARE", "Share of time spent computing ahead, e.g. 30%; 0 turns it off.")
]
Context = Annotated[
    int | None, option("N", "Maximum tokens of prompt and answer (default: the bundle's).", min=1)
]
Stop = Annotated[list[str] | None, option("TEXT", "Stop before this text appears. Repeatable.")]
StopToken = Annotated[
    list[int] | None, sampling("ID", "Stop at this token as well. Repeatable.", min=0)
]
IgnoreEos = Annotated[
    bool, sampling(None, "Continue past the model's end token. For measuring.", "--ignore-eos")
]

Method = Annotated[
    str | None,
    speed(
        "NAME",
        f"Decoding method: auto (default), plain, or {', '.join(drafter_names())}; "
        "join several with +.",
    ),
]
Verifier = Annotated[str | None, speed("NAME", "Rule that accepts drafted tokens when sampling.")]
Prefill = Annotated[
    str | None,
    speed(
        "MODE",
        "How the prompt is read: exact; progressive (shows provisional text early); "
        "predicted (approximate); auto (default).",
    ),
]
Unmask = Annotated[
    str | None,
    masks(
        "RULE",
        "Which masked tokens a pass decides: confidence (default) or localleap, or with "
        "settings, e.g. confidence:steps=32,block=16.",
    ),
]
DraftLen = Annotated[
    int | None, speed("N", "Maximum drafted tokens per round.", min=1, max=MAX_DRAFT_LEN)
]
DraftDepth = Annotated[
    int | None, speed("N", "Maximum length of one drafted continuation.", min=1, max=MAX_DRAFT_LEN)
]
Draft = Annotated[
    Path | None, speed("BUNDLE", "Use this bundle's model to draft.", callback=named_bundle)
]
PREFIX_DISK_MB = 1024
"""Disk space for saved conversations of a server that states no other."""

PrefixDisk = Annotated[
    int,
    speed(
        "MB",
        "Keep what was read of prompts in the user's cache folder, for the next start, in at "
        "most so much space. 0 keeps nothing.",
        min=0,
    ),
]
Store = Annotated[
    Path | None,
    speed(
        "FILE",
        "Draft from the texts in this n-gram store, and add new texts to it. Created if missing.",
    ),
]
Adapt = Annotated[
    Path | None,
    speed(
        "FILE",
        "Collect texts whose drafts were rejected, for `train adapt --from`. Created if missing.",
    ),
]
Provider = Annotated[
    str | None,
    device(
        "NAME",
        "ONNX Runtime provider for bundles of --target ort (default cpu). `edgedec doctor` "
        "lists them.",
    ),
]
Device = Annotated[
    str | None,
    device(
        "NAME",
        "OpenVINO device for bundles of --target openvino (default CPU). `edgedec doctor` "
        "lists them.",
    ),
]
DraftProvider = Annotated[str | None, device("NAME", "Like --provider, for the draft model only.")]
DraftDevice = Annotated[str | None, device("NAME", "Like --device, for the draft model only.")]


_SAMPLING = (
    "temperature", "top_k", "top_p", "min_p",
    "repetition_penalty", "presence_penalty", "frequency_penalty",
    "typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold",
    "dry_multiplier", "dry_base", "dry_allowed_length",
    "mirostat", "mirostat_tau", "mirostat_eta", "momentum",
    "no_repeat_ngram_size", "min_new_tokens",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Options for loading a bundle."""

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
        prefix_cache_mb: int = 0,
        store: Path | None = None,
        prefix_disk_mb: int = 0,
    ) -> Engine:
        """Returns the engine over ``bundle``, which may draft from ``store``."""
        loading = EngineOptions(
            threads=self.threads,
            context=self.context,
            draft=True if self.draft is None else self.draft,
            prefix_cache_mb=prefix_cache_mb,
            prefix_disk_mb=prefix_disk_mb,
            affinity=None if self.affinity is None else parse_affinity(self.affinity),
            store=store,
            provider=self.provider,
            device=self.device,
            draft_provider=self.draft_provider,
            draft_device=self.draft_device,
        )
        return load(bundle, loading, on_progress)


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """Options of a request. None: as the bundle recommends."""

    max_new_tokens: MaxNewTokens = None
    method: Method = None
    verifier: Verifier = None
    prefill: Prefill = None
    unmask: Unmask = None
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
    typical_p: TypicalP = None
    top_n_sigma: TopNSigma = None
    xtc_probability: XtcProbability = None
    xtc_threshold: XtcThreshold = None
    dry_multiplier: DryMultiplier = None
    dry_base: DryBase = None
    dry_allowed_length: DryAllowedLength = None
    mirostat: Mirostat = None
    mirostat_tau: MirostatTau = None
    mirostat_eta: MirostatEta = None
    momentum: Momentum = None
    no_repeat_ngram_size: NoRepeatNgramSize = None
    min_new_tokens: MinNewTokens = None
    seed: Seed = 0
    stop: Stop = None
    stop_token: StopToken = None
    ignore_eos: IgnoreEos = False

    def make_request(self, defaults: GenerationConfig) -> GenerationConfig:
        """Returns ``defaults`` with every option that was given put in its place.

        Raises:
            ConfigError: A value makes no sense.
        """
        settings = {name: getattr(self, name) for name in _SAMPLING}
        sampling = {name: value for name, value in settings.items() if value is not None}
        if self.logit_bias is not None:
            sampling["logit_bias"] = parse_logit_bias(self.logit_bias)
        request = replace(
            defaults,
            max_new_tokens=self._n_new(defaults),
            sampling=replace(defaults.sampling, **sampling),
            seed=self.seed,
            stop=tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token or ()),
            ignore_eos=self.ignore_eos,
            prefill=self.prefill or defaults.prefill,
            unmask=None if self.unmask is None else UnmaskConfig.parse(self.unmask),
            speculation=SpeculationConfig(draft_len=self.draft_len, depth=self.draft_depth),
        )
        return with_method(request, self.method, self.verifier)

    def _n_new(self, defaults: GenerationConfig) -> int:
        n_asked = self.max_new_tokens
        return defaults.max_new_tokens if n_asked is None else n_asked or TO_THE_END


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


def unlimited(engine: Engine) -> GenerationConfig:
    """Returns what the bundle recommends, for an answer that ends by itself.

    A model that fills masks in has to know how many tokens it writes: its usual number stays.
    """
    if engine.model.capabilities.blocks:
        return engine.defaults
    return replace(engine.defaults, max_new_tokens=TO_THE_END)


def tell_if_recommended(config: GenerationConfig, defaults: GenerationConfig) -> None:
    """Notes that a request is sampled as the model's publisher recommends, not as was asked for."""
    sampling, greedy = asdict(config.sampling), asdict(SamplingConfig())
    if config.sampling == defaults.sampling and sampling != greedy:
        settings = ", ".join(f"{k} {v}" for k, v in sampling.items() if v != greedy[k])
        note(f"sampled as the model's publisher recommends: {settings} (--temperature 0: greedy)")
