"""What publishers state of a model besides its weights, as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from edgedec.models.errors import CheckpointError
from edgedec.models.fields import Fields, shown


def plain_tokenizer(text: str) -> Tokenizer:
    """Returns the tokenizer of a ``tokenizer.json``, without the padding and truncation in it."""
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


@dataclass(frozen=True)
class SpecialTokens:
    """Tokens with a meaning of their own.

    eos_ids: those that end a text or a turn.
    opening_ids: those that a prompt without template begins with.
    closing_ids: those that a text for an encoder ends with. start_id: what its decoder begins with.
    variables: what a chat template may name, such as ``bos_token``: a text, or several.
    """

    eos_ids: tuple[int, ...]
    opening_ids: tuple[int, ...] = ()
    variables: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    closing_ids: tuple[int, ...] = ()
    start_id: int | None = None


TEMPLATE_NAMES = ("default", "tool_use")
"""What publishers call the template of conversations, and that of those with tools.

Source: transformers 4.57 ``tokenization_utils_base.py`` ``get_chat_template`` (Apache-2.0).
"""


def one_template(default: str | None, with_tools: str | None) -> str | None:
    """Returns a template that does what two do, one of them for conversations with tools.

    Each part begins and ends with an empty expression, so that the tags around it trim nothing.
    """
    if default is None or with_tools is None:
        return default
    with_tools, default = (text.removesuffix("\n") for text in (with_tools, default))
    return (
        f"{{% if tools %}}{{{{ '' }}}}{with_tools}{{{{ '' }}}}"
        f"{{% else %}}{{{{ '' }}}}{default}{{{{ '' }}}}{{% endif %}}"
    )


SAMPLING_KEYS = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")
"""Recommendations that a bundle keeps, named as in ``generation_config.json``, besides the flag
``do_sample``."""


BAN_KEYS = ("no_repeat_ngram_size", "bad_words_ids", "min_new_tokens", "begin_suppress_tokens")
"""What publishers forbid, by the same names; a bundle keeps it, greedy or sampled."""


def read_bans(fields: Fields, vocab_size: int) -> dict[str, Any]:
    """Returns what ``fields`` states of `BAN_KEYS`, without what is off.

    A word is left out if one of its tokens is not below ``vocab_size``: it never occurs.

    Raises:
        CheckpointError: A value is of another kind.
    """
    counts = ("no_repeat_ngram_size", "min_new_tokens")
    bans: dict[str, Any] = {
        key: fields.integer(key, least=0) for key in counts if fields.get(key) is not None
    }
    if fields.get("begin_suppress_tokens") is not None:
        ids = fields.integers("begin_suppress_tokens", least=0)
        bans["begin_suppress_tokens"] = [token for token in ids if token < vocab_size]
    if fields.get("bad_words_ids") is not None:
        words = [
            Fields({"bad_words_ids": word}, fields.origin, CheckpointError).integers(
                "bad_words_ids", least=0
            )
            for word in fields.items("bad_words_ids")
        ]
        bans["bad_words_ids"] = [list(word) for word in words if word and max(word) < vocab_size]
    return {key: value for key, value in bans.items() if value}


_APPLIED = {
    *SAMPLING_KEYS, "do_sample", "eos_token_id", "bos_token_id", "decoder_start_token_id",
    "suppress_tokens", *BAN_KEYS,
}  # fmt: skip
_HARMLESS: dict[str, tuple[Any, ...] | None] = {
    "max_length": None, "max_new_tokens": None, "max_time": None, "use_cache": None,
    "early_stopping": None, "length_penalty": None, "num_return_sequences": None,
    "cache_implementation": None, "cache_config": None, "return_legacy_cache": None,
    "prefill_chunk_size": None, "renormalize_logits": None, "remove_invalid_values": None,
    "token_healing": None, "output_attentions": None, "output_hidden_states": None,
    "output_scores": None, "output_logits": None, "return_dict_in_generate": None,
    "pad_token_id": None, "is_assistant": None, "num_assistant_tokens": None,
    "num_assistant_tokens_schedule": None, "assistant_confidence_threshold": None,
    "prompt_lookup_num_tokens": None, "max_matching_ngram_size": None,
    "assistant_early_exit": None, "assistant_lookbehind": None, "target_lookbehind": None,
    "disable_compile": None, "compile_config": None, "low_memory": None, "_from_model_config": None,
    "transformers_version": None, "continuous_batching_config": None, "trust_remote_code": None,
    "custom_generate": None, "attn_implementation": None, "model_type": None, "_name_or_path": None,
    "chat_format": None, "max_window_size": None, "max_context_size": None, "do_stream": None,
    "user_token_id": None, "assistant_token_id": None, "transformers.js_config": None,
    "num_beams": (1,), "num_beam_groups": (1,), "diversity_penalty": (0,), "penalty_alpha": (0,),
    "dola_layers": (), "epsilon_cutoff": (0,), "eta_cutoff": (0,), "guidance_scale": (1,),
    "encoder_repetition_penalty": (1,), "encoder_no_repeat_ngram_size": (0,), "min_length": (0,),
    "top_h": (1,),
}  # fmt: skip
"""Keys of ``generation_config.json`` that no bundle keeps -> the values with which they change no
text; None for any. Those of lengths are limits of the publisher's own machine.

Source: transformers ``generation/configuration_utils.py`` (Apache-2.0).
"""
_INSTEAD = {
    "num_beams": "use --beams N",
    "num_beam_groups": "use --beams N --beam-groups N",
}
"""What to do about keys that are not applied by themselves."""


def clashes_with_typical(numbers: Mapping[str, Any]) -> bool:
    """Whether ``typical_p`` stands beside a truncation that transformers has before it.

    Samplers here have it first, as those of llama.cpp do.
    """
    on = usable({key: value for key, value in numbers.items() if isinstance(value, int | float)})
    return "typical_p" in on and ("top_p" in on or "min_p" in on)


def unapplied_keys(fields: Fields) -> tuple[str, ...]:
    """Returns a line for each key of ``generation_config.json`` that no bundle applies."""
    unapplied = []
    if clashes_with_typical({k: v for k, v in fields.values.items() if k in SAMPLING_KEYS}):
        unapplied.append(
            f"{fields.origin}: typical_p is {shown(fields.get('typical_p'))}, which is not applied "
            "beside top_p and min_p"
        )
    for key, value in fields.values.items():
        harmless = _HARMLESS.get(key, ())
        is_off = value is None or value is False or value in ([], {}, "")
        if key in _APPLIED or harmless is None or is_off:
            continue
        if not (isinstance(value, int | float | str) and value in harmless):
            instead = f": {_INSTEAD[key]}" if key in _INSTEAD else ""
            unapplied.append(
                f"{fields.origin}: {key} is {shown(value)}, which is not applied{instead}"
            )
    return tuple(unapplied)


_MAX = 1e9  # larger numbers are typing errors, and no sampler takes them


def usable(settings: Mapping[str, float]) -> dict[str, Any]:
    """Returns recommended numbers without those that mean "off", such as a ``top_k`` of -1.

    Numbers that no sampler can use count as off as well.
    """
    is_on: dict[str, Callable[[float], bool]] = {
        "temperature": lambda value: 0 <= value <= _MAX,
        "top_k": lambda value: 0 < value <= _MAX,
        "top_p": lambda value: 0 < value < 1,
        "min_p": lambda value: 0 < value <= 1,
        "typical_p": lambda value: 0 < value < 1,
        "repetition_penalty": lambda value: 0 < value <= _MAX,
    }
    return {key: value for key, value in settings.items() if is_on[key](value)}


def read_suppressed(fields: Fields, key: str) -> list[int]:
    """Returns the ids of tokens that a publisher wants never to be written, as ``key`` states.

    Raises:
        CheckpointError: It is no list of whole numbers.
    """
    token_ids = fields.get(key)
    ids = token_ids.tolist() if isinstance(token_ids, np.ndarray) else token_ids
    if ids is None:
        return []
    if not isinstance(ids, list) or any(type(token) is not int for token in ids):
        fields.fail(key, token_ids, "a list of token ids")
    return ids
