"""What the files beside a ``tokenizer.json`` change in it: added tokens, roles, the opening.

Source: transformers 4.57 ``tokenization_utils_base.py`` ``_from_pretrained`` and
``tokenization_utils_fast.py`` ``PreTrainedTokenizerFast.__init__`` (Apache-2.0).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer

from edgedec.models.fields import Fields

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
         "mask_token")  # fmt: skip
"""Names of tokens with a role; a chat template may use each of them."""

MORE_ROLES = "additional_special_tokens"

OWN_ROLES = "extra_special_tokens"
"""What one model adds: tokens by role, such as ``image_token``; in transformers 5 a list."""

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True)
class TokenizerClass:
    """What a tokenizer class of transformers does by itself.

    roles: tokens that hold a role where no file says so. adds_bos: whether texts begin with
    ``bos_token`` where ``add_bos_token`` is not stated; None where the class leaves that to the
    post-processor of the file. adds_blank: whether they begin with a blank where
    ``add_prefix_space`` is not stated; None where the class leaves that to the file, too.
    """

    roles: Mapping[str, str] = field(default_factory=dict)
    adds_bos: bool | None = None
    adds_blank: bool | None = False


_END = "<|endoftext|>"
_LLAMA = TokenizerClass(
    {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}, True, adds_blank=None
)
_GEMMA = TokenizerClass(
    {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}, True
)
_GPT2 = TokenizerClass({"bos_token": _END, "eos_token": _END, "unk_token": _END})
_QWEN2 = TokenizerClass({"eos_token": _END, "unk_token": _END, "pad_token": _END})
_REBUILT = (_LLAMA, _GEMMA, _GPT2, _QWEN2)
"""Classes that transformers 5 builds anew; their tokens keep no flags that the file had before."""
_FILE_ALONE = TokenizerClass(adds_blank=None)
"""What transformers 5 writes, and reads with the blank that the file has, whatever is stated."""
_CLASSES = {
    "Llama": _LLAMA,
    "CodeLlama": _LLAMA,
    "Gemma": _GEMMA,
    "GPT2": _GPT2,
    "GPTNeoX": TokenizerClass(_GPT2.roles, False),
    "Qwen2": _QWEN2,
    "Cohere": TokenizerClass(
        {"bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>", "unk_token": "<UNK>"},
        True,
    ),
    "TokenizersBackend": _FILE_ALONE,
}
"""By their name without ``Tokenizer`` and ``Fast``; all others leave everything to the files."""

_CLASS_OF_FAMILY = {
    "llama": "Llama", "mistral": "Llama", "mixtral": "Llama", "phi3": "Llama",
    "gemma": "Gemma", "gemma2": "Gemma", "gemma3": "Gemma", "gemma3_text": "Gemma",
    "gemma3n": "Gemma", "gemma3n_text": "Gemma",
    "ernie4_5": "Llama", "mistral3": "Llama", "exaone4": "GPT2", "olmo3": "GPT2",
    "granite": "GPT2", "granitemoe": "GPT2", "granitemoehybrid": "GPT2",
    "granitemoeshared": "GPT2", "gpt2": "GPT2",
    "olmo2": "GPTNeoX", "qwen2": "Qwen2", "qwen3": "Qwen2", "qwen2_moe": "Qwen2",
    "qwen3_moe": "Qwen2", "qwen3_next": "Qwen2", "qwen3_5_text": "Qwen2",
    "qwen3_5_moe_text": "Qwen2",
}  # fmt: skip
"""The class that transformers chooses by ``model_type`` where no file names one."""


def bare_class_name(name: str) -> str:
    """Returns the name of a class of transformers without ``Tokenizer`` and ``Fast``."""
    return name.removesuffix("Fast").removesuffix("Tokenizer")


def class_named(name: str) -> TokenizerClass:
    """Returns what the class ``name`` of transformers 4 does."""
    return _CLASSES.get(bare_class_name(name), TokenizerClass())


@dataclass(frozen=True)
class TokenizerFiles:
    """The files beside a tokenizer. more_roles: special_tokens_map.json. added: added_tokens.json.

    config: of the model.
    """

    settings: Fields
    more_roles: Fields
    added: Fields
    config: Fields

    @property
    def is_legacy(self) -> bool:
        """Whether the older files count: those that have no list of added tokens."""
        return self.settings.get("added_tokens_decoder") is None

    @property
    def is_of_version_5(self) -> bool:
        """Whether transformers 5 wrote them: they say all of what its classes build."""
        settings = self.settings
        return settings.get("backend") is not None or isinstance(settings.get(OWN_ROLES), list)

    @property
    def is_rebuilt(self) -> bool:
        """Whether transformers builds the tokenizer anew, of the file's vocabulary and merges."""
        return self.is_of_version_5 and self.tokenizer_class in _REBUILT

    @property
    def tokenizer_class(self) -> TokenizerClass:
        """The class that transformers reads the tokenizer with."""
        class_name = self.settings.get("tokenizer_class") or self.config.get("tokenizer_class")
        family = self.config.get("model_type")
        if self.is_of_version_5 and family == "qwen2":  # whose files often name another class
            return _QWEN2
        name = class_name if isinstance(class_name, str) else _CLASS_OF_FAMILY.get(str(family), "")
        return class_named(name)

    def roles(self) -> dict[str, str]:
        """Returns the token of each role. Null takes away what the class gives."""
        roles = {**self.tokenizer_class.roles, **self.stated_roles()}
        return {role: text for role, text in roles.items() if text}

    def stated_roles(self) -> dict[str, str | None]:
        """Returns the token of each role that a file names, None for null."""
        return {role: token_text(token) for role, token in self._stated_roles().items()}

    def additional(self) -> list[str]:
        """Returns the special tokens without a role of their own."""
        return list(dict.fromkeys(text for item in self._listed() if (text := token_text(item))))

    def flags_of_roles(self) -> dict[str, dict[str, bool]]:
        """Returns the flags of tokens with a role that files write as tables."""
        return self._flags_in(self._stated_roles().values())

    def flags_of_additional(self) -> dict[str, dict[str, bool]]:
        """Returns the flags of `additional` tokens that files write as tables."""
        return self._flags_in(self._listed())

    def _stated_roles(self) -> dict[str, Any]:
        values = {**self.settings.values, **(self.more_roles.values if self.is_legacy else {})}
        more = self.settings.get(OWN_ROLES)
        more = more if isinstance(more, Mapping) else {}
        return {
            **{role: values[role] for role in ROLES if role in values},
            **{role: token for role, token in more.items() if role.endswith("_token")},
        }

    def _listed(self) -> list[Any]:
        sources = [self.settings, *([self.more_roles] if self.is_legacy else [])]
        more = self.settings.get(OWN_ROLES)
        lists = [source.get(MORE_ROLES) or [] for source in sources]
        return [
            *(item for each in lists for item in each),
            *(more if isinstance(more, list) else []),
        ]

    def _flags_in(self, tokens: Iterable[Any]) -> dict[str, dict[str, bool]]:
        tables = [self.settings.nested("", t) for t in tokens if isinstance(t, Mapping)]
        return {token.text("content"): _flags(token) for token in tables}


def with_settings(text: str, files: TokenizerFiles, vocab_size: int) -> str:
    """Returns ``tokenizer.json`` as transformers uses it: with the tokens that other files add.

    A token whose id would lie outside the embedding is left out.
    """
    document: dict[str, Any] = json.loads(text)
    parts = ("added_tokens", "normalizer", "pre_tokenizer", "decoder")
    before = json.dumps([document.get(part) for part in parts])
    _add_tokens(document, files, vocab_size)
    first = document.get("pre_tokenizer") or {}
    if files.is_rebuilt and first.get("type") == "Sequence":
        first = first["pretokenizers"][-1]
    adds_blank = files.settings.values.get("add_prefix_space", files.tokenizer_class.adds_blank)
    is_stated = adds_blank is not None and files.tokenizer_class is not _FILE_ALONE
    if first.get("type") == "ByteLevel" and is_stated:  # null leaves it to the file
        first["add_prefix_space"] = files.settings.flag("add_prefix_space", adds_blank)
    if files.tokenizer_class is _LLAMA and files.settings.values.get("add_prefix_space") is False:
        _take_blank_away(document)
    after = json.dumps([document.get(part) for part in parts])
    if before == after:
        return text
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _take_blank_away(document: dict[str, Any]) -> None:
    """Takes out what puts a blank before a text and, of the decoder, what takes it away."""
    document["normalizer"] = _without(document.get("normalizer"), "normalizers", "Prepend")
    document["decoder"] = _without(document.get("decoder"), "decoders", "Strip")
    first = document.get("pre_tokenizer") or {}
    for part in (first, *first.get("pretokenizers", ()), document["decoder"] or {}):
        if part.get("type") == "Metaspace":
            part.pop("add_prefix_space", None)  # as older files say it
            part["prepend_scheme"] = "never"


def _without(part: Any, key: str, kind: str) -> Any:
    """Returns ``part`` of a tokenizer without parts of ``kind``, which ``key`` lists."""
    if not isinstance(part, dict) or part.get("type") == kind:
        return None
    if part.get("type") != "Sequence":
        return part
    return {**part, key: [inner for inner in part[key] if inner.get("type") != kind]}


def opening_ids(tokenizer: Tokenizer, files: TokenizerFiles) -> tuple[int, ...]:
    """Returns the tokens that transformers puts before a text.

    Tokens that a post-processor puts behind it are left out: a prompt goes on.
    """
    is_stated = any(key in files.settings.values for key in ("add_bos_token", "add_eos_token"))
    adds_bos = files.tokenizer_class.adds_bos
    if files.is_of_version_5:
        adds_bos = False if is_stated else None
    if adds_bos is not None:
        if not files.settings.values.get("add_bos_token", adds_bos):  # null is no
            return ()
        bos = files.roles().get("bos_token")
        if bos is not None and (bos_id := tokenizer.token_to_id(bos)) is not None:
            return (bos_id,)
    return leading_ids(tokenizer)


def leading_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Returns the tokens that a post-processor puts before a text."""
    encoded = tokenizer.encode("a")
    n_leading = next((i for i, added in enumerate(encoded.special_tokens_mask) if not added), 0)
    return tuple(encoded.ids[:n_leading])


def closing_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Returns the tokens that a post-processor puts behind a text."""
    encoded = tokenizer.encode("a")
    mask = encoded.special_tokens_mask
    n_trailing = next((i for i, added in enumerate(reversed(mask)) if not added), 0)
    return tuple(encoded.ids[len(mask) - n_trailing :])


def template_variables(
    tokenizer: Tokenizer, files: TokenizerFiles
) -> dict[str, str | tuple[str, ...]]:
    """Returns what transformers lets a chat template name: the tokens by their roles."""
    roles = files.roles()
    names_padding = files.is_rebuilt and files.tokenizer_class is _GPT2  # as none
    if (
        tokenizer.padding
        and not names_padding
        and "pad_token" not in {**roles, **files.stated_roles()}
    ):
        roles["pad_token"] = tokenizer.padding["pad_token"]
    known = {role: t for role, t in roles.items() if tokenizer.token_to_id(t) is not None}
    more = tuple(files.additional())
    return {**known, **({MORE_ROLES: more} if more else {})}


def token_text(value: Any) -> str | None:
    """Returns the text of a token, which files write as text or as a table."""
    text = value.get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) else None


def _add_tokens(document: dict[str, Any], files: TokenizerFiles, vocab_size: int) -> None:
    """Adds to ``document`` what other files add; their flags replace those of a known token."""
    listed: list[dict[str, Any]] = document.get("added_tokens") or []
    added = {token["content"]: token for token in listed}
    vocabulary = vocabulary_of(document)
    special = {*files.roles().values(), *files.additional()}
    of_roles = files.flags_of_roles()
    more_special = special - {
        *files.stated_roles().values(),
        *files.additional(),
    }  # by the class alone
    for content, flags in stated_tokens(files).items():
        is_known = content in added
        if is_known and flags is None:
            continue
        token_id = added[content]["id"] if is_known else vocabulary.get(content)
        if token_id is None:
            if content in more_special:
                continue
            token_id = max(len(vocabulary), *(token["id"] + 1 for token in added.values()), 0)
        if token_id >= vocab_size:
            continue
        is_ordinary = content in files.added.values and content not in special
        usual = {**dict.fromkeys(_FLAGS, False), "normalized": is_ordinary}
        flags = flags or of_roles.get(content) or usual
        # The library hides a special token from then on.
        was_special = is_known and added[content]["special"] and not files.is_rebuilt
        is_special = flags["special"] or content in special or was_special
        if files.is_rebuilt and files.tokenizer_class is _QWEN2 and content in special:
            flags = dict.fromkeys(_FLAGS, False)
        token = {"id": token_id, "content": content, **flags, "special": is_special}
        if is_known and not files.is_of_version_5:
            # The library of transformers 4 goes on finding a token where the file's entry was.
            in_file = added[content]
            token["normalized"] = in_file["normalized"] and (was_special or flags["normalized"])
        added[content] = token
    document["added_tokens"] = sorted(added.values(), key=lambda token: int(token["id"]))


def stated_tokens(files: TokenizerFiles) -> dict[str, dict[str, bool] | None]:
    """Returns the tokens that files name, in the order in which they are added, and their flags.

    None for flags that no file states.
    """
    flags_by_token: dict[str, dict[str, bool] | None] = {}
    if not files.is_legacy:
        tokens = files.settings.tables("added_tokens_decoder")
        for _, token in sorted(tokens, key=lambda item: int(item[0]) if item[0].isdecimal() else 0):
            flags_by_token[token.text("content")] = _flags(token)
    else:
        ids = {text: files.added.integer(text) for text in files.added.values}
        flags_by_token |= dict.fromkeys(sorted(ids, key=ids.__getitem__))
    flags = {} if files.is_legacy else files.flags_of_roles()
    roles = files.roles()
    more_roles = [text for role, text in roles.items() if role not in ROLES]
    for text in (
        *(roles[role] for role in roles if role in ROLES),
        *files.additional(),
        *more_roles,
    ):
        flags_by_token.setdefault(text, flags.get(text))
    return {**flags_by_token, **files.flags_of_additional()}


def _flags(token: Fields) -> dict[str, bool]:
    defaults = dict.fromkeys(_FLAGS, False)
    defaults["normalized"] = not token.flag("special", False)
    return {flag: token.flag(flag, defaults[flag]) for flag in _FLAGS}


def vocabulary_of(document: Mapping[str, Any]) -> Mapping[str, int]:
    """Returns the ids of a ``tokenizer.json`` by token, without the added ones."""
    vocabulary = document.get("model", {}).get("vocab") or {}
    if isinstance(vocabulary, list):  # Unigram: pieces with scores, in the order of ids
        return {piece: i for i, (piece, _) in enumerate(vocabulary)}
    return dict(vocabulary)
