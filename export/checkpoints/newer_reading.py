"""What transformers 5 makes of a tokenizer whose files transformers 4 wrote, where it differs.

Files of transformers 4 are read as that reads them: the model was trained with it. Transformers 5
builds four classes anew, ignores some settings, and has other defaults.

Source: transformers 5.24 ``tokenization_utils_tokenizers.py``, ``tokenization_utils_base.py``
``_from_pretrained``, ``models/auto/tokenization_auto.py``, and ``tokenization_*.py`` of the classes
(Apache-2.0).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer, models

from edgedec.export.checkpoints.tokenizer_settings import (
    MORE_ROLES,
    ROLES,
    TokenizerFiles,
    bare_class_name,
    class_named,
    leading_ids,
    stated_tokens,
    vocabulary_of,
)

_UNDERLINE = "\u2581"
_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_REBUILT = ("Llama", "Gemma", "GPT2", "Qwen2")
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized")


def read_otherwise(
    text: str,
    files: TokenizerFiles,
    used: str,
    opening: tuple[int, ...],
    variables: Mapping[str, Any],
) -> tuple[str, ...]:
    """Returns the parts and settings of a tokenizer that transformers 5 reads otherwise.

    text: of ``tokenizer.json``. used: what `with_settings` makes of it. opening, variables: what
    texts begin with and templates may name.
    """
    if files.is_of_version_5:
        return ()
    document, ours = json.loads(text), json.loads(used)
    name = _class_of(files, document)
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    differs = {
        **_parts(name, files, document, ours),
        "add_bos_token": opening != leading_ids(tokenizer)
        or bool(document.get("post_processor") is None and files.settings.get("add_bos_token")),
        "roles of special tokens": _roles(name, files, tokenizer, document)
        != {role: token for role, token in variables.items() if role in ROLES},
        MORE_ROLES: _orders_differ(files, document, ours),
        "flags of special tokens": name == "Qwen2" and _has_flags(files, document, ours),
        "added tokens in normalised text": _are_found_otherwise(files, ours),
    }
    return tuple(part for part, is_other in differs.items() if is_other)


def _class_of(files: TokenizerFiles, document: Mapping[str, Any]) -> str:
    """Returns the class that transformers 5 builds anew, empty where it reads the file as it is."""
    family = files.config.get("model_type")
    if family == "qwen2":  # whose files often name another class
        return "Qwen2"
    class_name = files.settings.get("tokenizer_class") or files.config.get("tokenizer_class")
    if not isinstance(class_name, str):
        return "Gemma" if str(family).startswith("gemma") else ""
    name = bare_class_name(class_name)
    if name == "Llama" and "ByteLevel" in json.dumps(document.get("pre_tokenizer")):
        return ""
    return name if name in _REBUILT else ""


def _parts(
    name: str, files: TokenizerFiles, document: Mapping[str, Any], ours: Mapping[str, Any]
) -> dict[str, bool]:
    """Returns whether what splits texts differs, by part."""
    before, mine = _usual_form(document), _usual_form(ours)
    if not name:
        return {"add_prefix_space": mine != before}
    built = _usual_form(_built(name, files))
    return {part: mine[part] != built[part] for part in built}


def _usual_form(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parts that decide how a text is split, as the library writes them today."""
    parts = ("normalizer", "pre_tokenizer")
    small = json.loads(Tokenizer(models.BPE()).to_str()) | {p: document.get(p) for p in parts}
    written = Tokenizer.from_str(json.dumps(small)).to_str()
    # Offsets are none of the ids.
    return {
        p: json.loads(written.replace('"trim_offsets":false', '"trim_offsets":true'))[p]
        for p in parts
    }


def _built(name: str, files: TokenizerFiles) -> dict[str, Any]:
    """Returns what the class builds by itself, as ``tokenizer.json`` says it."""
    settings = files.settings.values
    adds_blank = settings.get("add_prefix_space")
    first: dict[str, Any] = {
        "type": "ByteLevel", "add_prefix_space": bool(adds_blank), "trim_offsets": True,
        "use_regex": name == "GPT2",
    }  # fmt: skip
    if name == "GPT2":
        return {"normalizer": None, "pre_tokenizer": first}
    if name == "Qwen2":
        words = {
            "type": "Split", "pattern": {"Regex": _QWEN2_WORDS}, "behavior": "Isolated",
            "invert": False,
        }  # fmt: skip
        both = {"type": "Sequence", "pretokenizers": [words, first]}
        return {"normalizer": {"type": "NFC"}, "pre_tokenizer": both}
    blank = {"String": " "}
    if name == "Gemma":
        return {
            "normalizer": {"type": "Replace", "pattern": blank, "content": _UNDERLINE},
            "pre_tokenizer": {
                "type": "Split", "pattern": blank, "behavior": "MergedWithPrevious",
                "invert": False,
            },
        }  # fmt: skip
    scheme = "always" if settings.get("legacy") else "first"
    scheme = "never" if adds_blank is False else scheme
    metaspace = {
        "type": "Metaspace", "replacement": _UNDERLINE, "prepend_scheme": scheme, "split": False,
    }  # fmt: skip
    return {"normalizer": None, "pre_tokenizer": metaspace}


def _roles(
    name: str, files: TokenizerFiles, tokenizer: Tokenizer, document: Mapping[str, Any]
) -> dict[str, str]:
    """Returns the token of each role, as transformers 5 finds them."""
    usual = class_named(name).roles if name else {}
    roles: dict[str, str | None] = {**usual, **files.stated_roles()}
    padding = document.get("padding")
    if padding and name != "GPT2":
        roles.setdefault("pad_token", padding["pad_token"])
    return {
        role: token
        for role, token in roles.items()
        if role in ROLES and token and tokenizer.token_to_id(token) is not None
    }


def _orders_differ(
    files: TokenizerFiles, document: Mapping[str, Any], ours: Mapping[str, Any]
) -> bool:
    """Says whether several tokens are new, which get their ids in another order."""
    known = {token["content"] for token in document.get("added_tokens") or ()}
    known |= set(vocabulary_of(document))
    new = [t for t in ours.get("added_tokens") or () if t["content"] not in known]
    sources = (files.settings, files.more_roles)
    is_listed_twice = files.is_legacy and all(source.get(MORE_ROLES) for source in sources)
    return len(new) > 1 or bool(new and is_listed_twice)


def _are_found_otherwise(files: TokenizerFiles, ours: Mapping[str, Any]) -> bool:
    """Says whether flags beside the file decide in which text a token is found: not so in 4."""
    flags_by_token = stated_tokens(files)
    return any(
        flags["normalized"] != token["normalized"]
        for token in ours.get("added_tokens") or ()
        if (flags := flags_by_token.get(token["content"]))
    )


def _has_flags(files: TokenizerFiles, *documents: Mapping[str, Any]) -> bool:
    special = {*files.roles().values(), *files.additional()}
    tokens = [token for each in documents for token in each.get("added_tokens") or ()]
    return any(token[flag] for token in tokens if token["content"] in special for flag in _FLAGS)
