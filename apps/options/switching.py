"""Options of switching between the target model and the draft model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Annotated

from edgedec.apps.console.option import switching
from edgedec.apps.console.terminal import note
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.generation import PREDICTED
from edgedec.runtime.config.switching import AUTO, BILD, SwitchConfig

APPROXIMATE = (
    "this is approximate: the draft model writes part of the text, which may differ from what "
    "the target model alone would write"
)
PLAUSIBLE = (
    "this is approximate: the verifier keeps drafted tokens that the model finds plausible, more "
    "often than the model alone would write them"
)
DECIDES_SEVERAL = (
    "this is approximate: tokens are decided sooner than one by one, each by a pass over the whole "
    "text"
)
READS_PREDICTED = (
    "this is approximate: later layers see predictions of the prompt's keys and values, so the "
    "text may differ from what the model alone would write"
)


@dataclass(frozen=True, kw_only=True)
class SwitchOptions:
    """Which of two models writes what. None: as `SwitchConfig` has it."""

    switch: Annotated[
        str | None,
        switching(
            "POLICY",
            "Approximate: the draft model writes easy tokens (ead, margin, bild). With "
            "settings: ead:threshold=1.5,window=5.",
        ),
    ] = None
    threshold: Annotated[
        str | None,
        switching(
            "FLOAT|auto",
            "The target model takes over above this doubt: bits of entropy, or 1 - margin. "
            "auto (default) uses what `edgedec tune` found.",
        ),
    ] = None
    window: Annotated[
        int | None,
        switching("N", "Number of latest tokens whose doubt is averaged (default 5).", min=1),
    ] = None
    dwell: Annotated[
        int | None, switching("N", "Minimum number of tokens between switches (default 5).", min=1)
    ] = None
    hysteresis: Annotated[
        float | None,
        switching(
            "FLOAT",
            "The draft model continues when doubt falls below this fraction of the threshold.",
        ),
    ] = None
    reset_window: Annotated[
        bool | None,
        switching(None, "Restart the average at each switch.", "--reset-window/--keep-window"),
    ] = None
    switch_mode: Annotated[
        str | None,
        switching(
            "MODE",
            "What the target model does with the draft model's tokens: trust them (default "
            "of ead and margin), repair unlikely ones (default of bild), or verify all (lossless).",
        ),
    ] = None
    fallback: Annotated[
        float | None,
        switching(
            "P",
            "bild: the target model writes a token if the draft model's best probability is "
            "below P.",
        ),
    ] = None
    rollback: Annotated[
        float | None,
        switching(
            "NATS", "repair: take back a token if -ln of its probability is above this (default 5)."
        ),
    ] = None
    max_run: Annotated[
        int | None,
        switching(
            "N",
            "repair, verify: maximum tokens of the draft model before the target model "
            "checks them (default 16).",
        ),
    ] = None

    def apply(self, request: GenerationConfig) -> GenerationConfig:
        """Returns ``request`` with the setting that was given, if any.

        Raises:
            ConfigError: A value makes no sense.
        """
        settings = {
            field.name: value
            for field in dataclasses.fields(self)
            if field.name != "switch" and (value := getattr(self, field.name)) is not None
        }
        if self.switch is None:
            if settings:
                option = next(iter(settings)).replace("_", "-")
                raise ConfigError(f"--{option} was given without --switch POLICY")
            return request
        if "switch_mode" in settings:
            settings["mode"] = settings.pop("switch_mode")
        fields = {**SwitchConfig.split(self.switch), **settings}
        if fields.get("threshold", AUTO) == AUTO and fields.get("policy") != BILD:
            _refuse_partly_tuned(fields)
        return replace(request, switch=SwitchConfig.from_dict(fields))


def _refuse_partly_tuned(fields: dict[str, object]) -> None:
    for name in ("window", "dwell", "hysteresis", "reset_window"):
        if name in fields:
            raise ConfigError(
                f"{name} is given but the threshold is auto, and both were tuned together: give a "
                "threshold, too"
            )


def tell_if_approximate(request: GenerationConfig) -> None:
    """Says on standard error that the text of ``request`` may not be the target model's own."""
    if request.switch is not None and not request.switch.is_lossless:
        note(APPROXIMATE)
    if request.unmask is not None and not request.unmask.is_plain:
        note(DECIDES_SEVERAL)
    if request.prefill == PREDICTED:
        note(READS_PREDICTED)
    if request.verifier is not None:
        from edgedec.runtime.decoding.verifiers import find_verifier

        if not find_verifier(request.verifier).is_lossless:
            note(PLAUSIBLE)
