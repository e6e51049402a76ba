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
    SessionError,
)
from edgedec.kernels import library as kernel_library
from edgedec.models.manifest import read_manifest
from edgedec.runtime import backends
from edgedec.runtime.opening.bundle_parts import identity

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


def restate(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes what the manifest states; ``bundle`` is a `mutable_copy`."""
    path = bundle / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.unlink()
    path.write_text(json.dumps(manifest))


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("config vocab_size", 49153, "logits of shape [1, ?, 49152], the manifest's config"),
        ("config n_layers", 31, "k_cache of shape [30, 3, ?, 64, 16]"),
        ("config n_kv_heads", 9, "k_cache of shape [30, 3, ?, 64, 16]"),
        (
            "config head_size",
            32,
            "rope.cos of shape [?, 32], the manifest's config makes it [?, 16]",
        ),
        ("config max_positions", 4096, "context is 8192, expected at most the model's 4096"),
        ("context", 10**9, "context is 1000000000, expected at most the model's 8192 positions"),
        ("contract kv row_nbytes", 7, "keeps 23040 bytes of a token"),
        ("contract kv block_nbytes", 7, "in blocks of 2048, the manifest states 23040 and 7"),
    ],
)
def test_what_contradicts_the_graph_is_refused(
    smollm2_bundle: Path, tmp_path: Path, path: str, value: int, message: str
) -> None:
    bundle = mutable_copy(smollm2_bundle, tmp_path / "b")

    def change(manifest: dict[str, Any]) -> None:
        table = manifest["models"]["target"]
        *way, last = path.split()
        for key in way:
            table = table[key]
        table[last] = value

    restate(bundle, change)
    with pytest.raises(BundleError, match=r"^[^\n]*$") as caught:
        edgedec.load(bundle)
    assert message in str(caught.value)


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ({"method": 5}, "defaults.method is 5, expected a method's name"),
        ({"method": "auto", "switch": [1]}, "defaults.switch is a list of 1, expected a table"),
    ],
)
def test_defaults_of_another_type_are_refused(
    smollm2_bundle: Path, tmp_path: Path, defaults: dict[str, Any], message: str
) -> None:
    bundle = mutable_copy(smollm2_bundle, tmp_path / "b")
    restate(bundle, lambda manifest: manifest.update(defaults=defaults))
    with pytest.raises(BundleError, match=message):
        edgedec.load(bundle)


@pytest.mark.robustness
def test_a_context_without_room_is_refused(smollm2_bundle: Path, tmp_path: Path) -> None:
    bundle = mutable_copy(smollm2_bundle, tmp_path / "b")

    def change(manifest: dict[str, Any]) -> None:
        model = manifest["models"]["target"]
        model["context"] = model["config"]["max_positions"] = 2**31 - 1

    restate(bundle, change)
    with (
        edgedec.load(bundle) as engine,
        pytest.raises(edgedec.SessionError, match=r"no room for a KV cache.* smaller --context"),
    ):
        engine.generate("hi", GREEDY)


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, "lists no tokenizer.json"),
        ("tokenizer.json", b"{}", "is not a tokenizer"),
        ("chat_template.jinja", b"\xff\xfe", "cannot read"),
        ("generation_config.json", b"{", "generation_config.json"),
        ("generation_config.json", b'{"do_sample": true, "temperature": -2}', "temperature is -2"),
        ("target/model.onnx", b"broken", "is not an ONNX graph"),
    ],
)
def test_broken_parts(
    smollm2_bundle: Path, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    bundle = mutable_copy(smollm2_bundle, tmp_path / "copy")
    replace(bundle, name, content)
    before = n_users()
    with pytest.raises(BundleError, match=r"^[^\n]*$") as caught:
        edgedec.load(bundle)
    assert message in str(caught.value)
    assert n_users() == before


def n_users() -> int:
    """Returns how often models of this process were opened and not given back."""
    return sum(shared.n_users for shared in backends._open.values())


def test_a_broken_template_keeps_no_plain_text_out(smollm2_bundle: Path, tmp_path: Path) -> None:
    bundle = mutable_copy(smollm2_bundle, tmp_path / "copy")
    replace(bundle, "chat_template.jinja", b"{% for %}")
    with edgedec.load(bundle) as engine:
        assert engine.generate("Hi", GenerationConfig(max_new_tokens=2)).token_ids
        with pytest.raises(SessionError, match=r"chat_template\.jinja: the chat template failed"):
            engine.generate([{"role": "user", "content": "Hi"}])


@pytest.mark.e2e
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
        (lambda path: edgedec.load(path, EngineOptions(head="no")), "head is 'no'"),
        (lambda path: edgedec.load(path, EngineOptions(context=10**6)), "exported for 8192"),
    ],
)
def test_bad_options(smollm2_bundle: Path, call: Callable[[Path], Engine], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call(smollm2_bundle)


def test_costs_are_not_those_of_other_kernels(
    smollm2_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, cpu = read_manifest(smollm2_bundle), ("CPUExecutionProvider",)
    library = tmp_path / "kernels.so"
    library.touch()
    monkeypatch.setattr(kernel_library, "library_path", lambda: library)
    before = identity(manifest, 2, cpu)
    assert identity(manifest, 2, cpu) == before
    assert identity(manifest, 1, cpu) != before
    os.utime(library, ns=(1, 1))  # built at another time
    assert identity(manifest, 2, cpu) != before


def test_not_a_bundle(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(BundleError, match=r"^[^\n]*$"):
            edgedec.load(path)
