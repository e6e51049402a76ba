"""A bundle as a model of lm-evaluation-harness: scores, texts, and tasks of a local file."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgedec.models.errors import ConfigError, EdgedecError

lm_eval = pytest.importorskip("lm_eval", reason="needs the extra harness")

from lm_eval.api.instance import Instance  # noqa: E402

from edgedec.apps.evaluation.harness import BundleLM  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs/evaluate.md"
CONTEXT = 64
NEAR = 1e-3  # the KV cache is float16, that of transformers float32
ENDS = [" iron", " wood and water", " a very long answer about metals of all kinds"]


@pytest.fixture(scope="module")
def model(small_bundle: Path) -> Iterator[Any]:
    found = BundleLM(str(small_bundle), context=CONTEXT, batch_size=1, device="cuda:0")
    yield found
    found.engine.close()


def instances(kind: Any, *arguments: tuple[Any, ...]) -> list[Any]:
    return [Instance(kind, {}, each, i) for i, each in enumerate(arguments)]


@pytest.fixture(scope="module")
def oracle(small_model: Path) -> Any:
    """The harness's own model of transformers, in float32, on what the bundle was exported from.

    Its window of inputs is one token shorter: that of a bundle counts the last token as well.
    """
    huggingface = pytest.importorskip("lm_eval.models.huggingface", reason="needs the dev extra")
    return huggingface.HFLM(
        pretrained=str(small_model), device="cpu", dtype="float32", max_length=CONTEXT - 1,
        batch_size=1, add_bos_token=True,
    )  # fmt: skip


def test_likelihoods_are_those_of_transformers(model: Any, oracle: Any) -> None:
    contexts = ["Which is a metal?", "Which is a metal?", "", "Say: ", "x " * 100]
    pairs = [(context, end) for context in contexts for end in ENDS]
    asked = instances("loglikelihood", *pairs)
    found, expected = model.loglikelihood(asked), oracle.loglikelihood(asked)
    assert [log_prob for log_prob, _ in found] == pytest.approx(
        [log_prob for log_prob, _ in expected], rel=NEAR
    )
    assert [is_greedy for _, is_greedy in found] == [is_greedy for _, is_greedy in expected]


def test_what_greedy_decoding_writes_is_greedy(model: Any) -> None:
    prompt = model.engine.encode("Once upon a time")
    ids = list(model.engine.generate(prompt, max_new_tokens=4, temperature=0.0).token_ids)
    other = [*ids[:-1], (ids[-1] + 1) % 1000]
    requests = [(("", ""), prompt, ids), (("", ""), prompt, other)]
    (_, is_greedy), (_, is_other) = model._loglikelihood_tokens(requests)
    assert (is_greedy, is_other) == (True, False)


def test_long_texts_are_as_likely_as_transformers_says(
    model: Any, oracle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [("The quick brown fox.",), ("The dog does not mind at all. " * 20,)]
    asked = instances("loglikelihood_rolling", *texts)
    assert len(model.engine.encode(texts[1][0])) > 2 * CONTEXT
    monkeypatch.setattr(oracle, "add_bos_token", False)  # it would follow another
    expected = oracle.loglikelihood_rolling(asked)
    assert model.loglikelihood_rolling(asked) == pytest.approx(expected, rel=NEAR)


def test_texts_end_where_the_task_says(model: Any, oracle: Any) -> None:
    settings = {"until": ["\n"], "max_gen_toks": 8}
    sampled = {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "max_gen_toks": 5}
    asked = [("Once upon", settings), ("A time", settings), ("Once upon", sampled)]
    texts = model.generate_until(instances("generate_until", *asked))
    assert len(texts) == 3
    greedy = instances("generate_until", *asked[:2])
    assert texts[:2] == oracle.generate_until(greedy)


def test_what_a_model_or_a_task_cannot_ask(model: Any, small_bundle: Path) -> None:
    with pytest.raises(ConfigError, match="got layers, expected bundle, method"):
        BundleLM(str(small_bundle), layers=3)
    for settings, said in (
        ({"num_beams": 4}, "the task asks for num_beams"),
        ({"max_gen_toks": 999}, "999 new tokens, the context is 64"),
    ):
        with pytest.raises(ConfigError, match=said):
            model.generate_until(instances("generate_until", ("a", settings)))
    with pytest.raises(EdgedecError, match="a continuation has 70 tokens"):
        model._loglikelihood_tokens([(("", ""), [1], [5] * 70)])


@pytest.mark.e2e
def test_the_page_s_task_runs(
    smollm2_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"^```(?:yaml|text)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    _, task, command = blocks
    (tmp_path / "local_mmlu.yaml").write_text(task)
    lines = [
        {"question": "Which is a metal?", "choices": ["wood", "iron", "tea", "air"], "answer": 1},
        {"question": "What is 7 - 7?", "choices": ["0", "1", "2", "3"], "answer": 0},
    ]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "smollm2.edgedec").symlink_to(smollm2_bundle)
    _, *arguments = shlex.split(command)
    for name in ("HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    done = subprocess.run(
        [sys.executable, *arguments, "--output_path", "out", "--log_samples"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("out/**/samples_local_mmlu_*.jsonl")
    samples = [json.loads(line) for line in path.read_text().splitlines()]
    assert [sample["target"] for sample in samples] == ["1", "0"]
    for sample in samples:
        assert sample["arguments"]["gen_args_0"]["arg_0"].endswith("Answer:")
        log_probs = [float(log_prob) for ((log_prob, _),) in sample["resps"]]
        best = log_probs.index(max(log_probs))
        assert sample["acc"] == float(best == int(sample["target"]))


def test_a_conversation_is_the_template_s(model: Any) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    asked = model.apply_chat_template(messages)
    assert asked.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    begun = [*messages, {"role": "assistant", "content": "Well"}]
    assert model.apply_chat_template(begun, add_generation_prompt=False) == asked + "Well"
    assert model.tok_encode(asked) == model.engine.encode(messages)
    model._is_chat = False
