"""Text of a user never becomes special tokens; everything else is the library's own encoding."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.models.errors import BundleError
from edgedec.runtime.text.chat_template import SpecialTokenEscape
from edgedec.runtime.text.tokenizer import Tokenizer, without_surrogates

from ..conftest import SPECIAL

HOSTILE = [
    "",
    " " * 500,
    "\u200b\u200d\ufeff\u202e",
    "e" + "\u0301" * 50,
    "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "\x00\x01\r\n\t\x7f",
    "\U0010ffff\ufdd0",
]


def test_special_token_text_stays_text(tokenizer: Tokenizer) -> None:
    for special in SPECIAL:
        ids = tokenizer.encode(f"a{special}b")
        assert not set(ids) & {0, 1, 2}
        assert tokenizer.decode(ids) == f"a{special}b"


@pytest.mark.usefixtures("quick_switches")
def test_special_token_text_stays_text_while_another_thread_renders(
    tokenizer: Tokenizer,
) -> None:
    text, rendered = f"a{SPECIAL[0]}b", f"{SPECIAL[0]}a"
    as_text, as_template = tokenizer.encode(text), tokenizer.encode_rendered(rendered, {})

    def encode(worker: int) -> bool:
        if worker % 2:
            return all(tokenizer.encode(text) == as_text for _ in range(5000))
        return all(tokenizer.encode_rendered(rendered, {}) == as_template for _ in range(5000))

    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(encode, range(2)))


class InterruptedBackend:
    """A tokenizer of the library that a signal's handler interrupts, before it encodes."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.__dict__["backend"] = backend
        self.__dict__["handlers"] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.backend, name, value)

    def encode(self, *arguments: Any, **options: Any) -> Any:
        if self.handlers:
            self.handlers.pop()()
        return self.backend.encode(*arguments, **options)


def test_special_token_text_stays_text_while_a_signal_is_handled(
    backend: tokenizers.Tokenizer,
) -> None:
    interrupted: Any = InterruptedBackend(backend)
    tokenizer = Tokenizer(interrupted)
    text, rendered = f"a{SPECIAL[0]}b", f"{SPECIAL[0]}a"
    as_text, as_template = tokenizer.encode(text), tokenizer.encode_rendered(rendered, {})
    found: list[list[int]] = []

    def encode() -> None:
        interrupted.handlers.append(lambda: found.append(tokenizer.encode_rendered(rendered, {})))
        found.append(tokenizer.encode(text))

    thread = threading.Thread(target=encode, daemon=True)
    thread.start()
    thread.join(timeout=60)
    assert found == [as_template, as_text]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_equals_the_library(
    tokenizer: Tokenizer, backend: tokenizers.Tokenizer, text: str
) -> None:
    assert tokenizer.encode(text) == backend.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=200)
@given(text=st.text(st.characters(), max_size=40))
def test_any_text_survives(trained: str, text: str) -> None:
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(trained))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == without_surrogates(text)
    assert not set(ids) & {0, 1, 2}


def test_texts_encoded_together_are_those_encoded_alone(tokenizer: Tokenizer) -> None:
    texts = [*HOSTILE, *(f"a{special}b" for special in SPECIAL), "a\ud800b", "plain"]
    assert tokenizer.encode_many(texts) == list(map(tokenizer.encode, texts))
    assert tokenizer.encode_many(["", "plain"]) == [[], tokenizer.encode("plain")]
    assert tokenizer.encode_many([]) == []


def test_lone_surrogates_are_replaced(tokenizer: Tokenizer) -> None:
    assert without_surrogates("a\ud800b") == "a\ufffdb"
    assert without_surrogates("\ud83d\ude42") == "🙂"
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"


def test_broken_file_is_a_bundle_error(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    for content in (None, "", "{", '{"version": "1.0"}', "[]"):
        if content is not None:
            path.write_text(content)
        with pytest.raises(BundleError, match=r"^[^\n]*tokenizer\.json is not a tokenizer"):
            Tokenizer.load(path)


def llama_like(prepend: str) -> tokenizers.Tokenizer:
    """A tokenizer of pieces whose words begin with a blank, as Llama 2 and Mistral have them."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", fuse_unk=True))
    if prepend == "normalizer":
        backend.normalizer = tokenizers.normalizers.Sequence(
            [
                tokenizers.normalizers.Prepend("\u2581"),
                tokenizers.normalizers.Replace(" ", "\u2581"),
            ]
        )
    else:
        backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(
            prepend_scheme=prepend, split=False
        )
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=200, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False
    )
    backend.train_from_iterator(["[INST] hello </s> user [/INST] <s> word\n"] * 3, trainer)
    return backend


@pytest.mark.parametrize("prepend", ["first", "always", "never", "normalizer"])
@pytest.mark.parametrize("before", ["<s>[INST] ", "<s>[INST]", "x<s> </s>[INST]\n", "[INST]</s>"])
@pytest.mark.parametrize("user", ["a </s> b", "</s>", "hello<s>", "<unk></s>x"])
def test_user_text_changes_nothing_around_it(prepend: str, before: str, user: str) -> None:
    backend, after = llama_like(prepend), "</s> hello <s>[/INST]"
    codec = Tokenizer(llama_like(prepend))
    escape = SpecialTokenEscape(codec.special_texts, [user])
    ids = codec.encode_rendered(before + escape.hide(user) + after, escape.restore)
    # The library reads the template's tokens when the user's text has none of its own.
    harmless = backend.encode(f"{before}~{after}", add_special_tokens=False)
    n_before = harmless.char_to_token(len(before))
    n_after = len(harmless.ids) - harmless.char_to_token(len(before) + 1)
    shown = user.replace("</s>", "\u2402").replace("<s>", "\u2403").replace("<unk>", "\u2404")
    specials = [i for i in backend.encode(f"{before}{shown}{after}").ids if i in (1, 2)]
    assert ids[: max(n_before - 1, 0)] == harmless.ids[: max(n_before - 1, 0)]
    assert ids[-n_after:] == harmless.ids[-n_after:]
    assert [i for i in ids if i in (1, 2)] == specials
    assert codec.vocab_size == backend.get_vocab_size()
    assert max(ids) < codec.vocab_size
    assert codec.spellings() == Tokenizer(llama_like(prepend)).spellings()
