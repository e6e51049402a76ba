"""Loading a bundle: SmolLM2 from file to tokens, and bundles that lack or break something."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgedec
from edgedec import (
    BundleError,
    ConfigError,
    Engine,
    EngineOptions,
    GenerationConfig,
    SamplingConfig,
)

USER = [{"role": "user", "content": "What is 2+2?"}]
GREEDY = GenerationConfig(max_new_tokens=24)


@pytest.fixture(scope="module")
def engine(smollm2_bundle: Path) -> Any:
    with edgedec.load(smollm2_bundle, EngineOptions(threads=2)) as engine:
        yield engine


@pytest.mark.e2e
def test_greedy_answer(engine: Engine) -> None:
    result = engine.generate(USER, GREEDY)
    assert "4" in result.text
    assert result.finish_reason == "stop"
    assert result.token_ids[-1] in engine.stop_token_ids
    assert "".join(engine.stream(USER, GREEDY)) == result.text


@pytest.mark.e2e
def test_tokens_do_not_depend_on_what_was_cached(engine: Engine) -> None:
    sampling = SamplingConfig(temperature=0.9, top_p=0.95)
    config = GenerationConfig(max_new_tokens=16, seed=5, ignore_eos=True, sampling=sampling)
    texts = set()
    for warm_up in ("", "Once upon a time there", "Once upon a time there was a fox who"):
        engine.forget_prompts()
        if warm_up:
            engine.generate(warm_up, GenerationConfig(max_new_tokens=3))
        texts.add(engine.generate("Once upon a time there was a", config).text)
    assert len(texts) == 1


@pytest.mark.e2e
def test_conversation_reuses_the_first_turn(engine: Engine) -> None:
    conversation = engine.conversation()
    first = conversation.send("Name one planet.", GREEDY)
    list(first)
    second = conversation.send("Another one.", GREEDY)
    list(second)
    n_before = first.result.n_prompt_tokens + first.result.n_new_tokens - 1
    assert second.result.stats.n_reused_tokens == n_before
    assert len(conversation.messages) == 4


@pytest.mark.e2e
def test_progress_and_context(smollm2_bundle: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    report = lambda *step: seen.append(step)  # noqa: E731
    options = EngineOptions(threads=1, context=64)
    with edgedec.load(smollm2_bundle, options, report) as engine:
        assert seen[0][:2] == ("load", 0)
        assert seen[-1][1] == seen[-1][2]
        assert engine.context == 64
        assert engine.generate("Once", GenerationConfig(ignore_eos=True)).finish_reason == "context"


def mutable_copy(bundle: Path, destination: Path) -> Path:
    """Returns a copy of ``bundle`` whose files share their bytes with it until replaced."""
    for path in bundle.rglob("*"):
        if path.is_file():
            copy = destination / path.relative_to(bundle)
            copy.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, copy)
    return destination


def replace(bundle: Path, name: str, content: bytes | None) -> None:
    """Replaces or removes a file of ``bundle``, and its line in the manifest."""
    manifest_path = bundle / "manifest.json"
    manifest = json.loads(manifest_path.read_text())
    (bundle / name).unlink()
    if content is None:
        del manifest["files"][name]
    else:
        (bundle / name).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        manifest["files"][name] = {"n_bytes": len(content), "sha256": digest}
    manifest_path.unlink()
    manifest_path.write_text(json.dumps(manifest))


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, "lists no tokenizer.json"),
        ("tokenizer.json", b"{}", "is no tokenizer"),
        ("chat_template.jinja", b"{% for %}", "chat template failed"),
        ("chat_template.jinja", b"\xff\xfe", "cannot read"),
        ("generation_config.json", b"{", "generation_config.json"),
        ("generation_config.json", b'{"do_sample": true, "temperature": -2}', "temperature is -2"),
        ("target/model.onnx", b"broken", "is no ONNX graph"),
    ],
)
def test_broken_parts(
    smollm2_bundle: Path, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    bundle = mutable_copy(smollm2_bundle, tmp_path / "copy")
    replace(bundle, name, content)
    with pytest.raises(BundleError, match=r"^[^\n]*$") as caught:
        edgedec.load(bundle)
    assert message in str(caught.value)


def test_bundle_without_template_still_completes_text(smollm2_bundle: Path, tmp_path: Path) -> None:
    bundle = mutable_copy(smollm2_bundle, tmp_path / "copy")
    replace(bundle, "chat_template.jinja", None)
    with edgedec.load(bundle) as engine:
        assert not engine.has_chat_template
        assert engine.generate("One, two,", GenerationConfig(max_new_tokens=2)).n_new_tokens == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda path: edgedec.load(path, EngineOptions(threads=0)), "threads is 0"),
        (lambda path: edgedec.load(path, EngineOptions(threads=100_000)), "expected at most"),
        (lambda path: edgedec.load(path, EngineOptions(threads=1.5)), "threads is 1.5"),
        (lambda path: edgedec.load(path, EngineOptions(context=-1)), "context is -1"),
        (lambda path: edgedec.load(path, EngineOptions(context=10**6)), "exported for 8192"),
    ],
)
def test_bad_options(smollm2_bundle: Path, call: Callable[[Path], Engine], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call(smollm2_bundle)


def test_not_a_bundle(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(BundleError, match=r"^[^\n]*$"):
            edgedec.load(path)
