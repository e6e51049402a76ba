"""What `edgedec bench --prompts` reads and computes, on made-up files and runs."""

from __future__ import annotations

import importlib
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from edgedec.apps.bench.prompts import in_turn
from edgedec.apps.bench.prompts_jobs import TimedOutput, parse_methods
from edgedec.apps.bench.prompts_rows import (
    Round,
    drafter_counts,
    fastest_peer,
    lost_share,
    prompt_row,
    summary_row,
)
from edgedec.apps.measuring.disturbance import MeasuringWindow
from edgedec.apps.peers import find_mode
from edgedec.models.errors import ConfigError
from edgedec.runtime.drafting.stats import DecodeStats, DraftCounts
from edgedec.runtime.engine.prompt_files import FilePrompt, read_prompts
from edgedec.runtime.opening.load import load


def write(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    return path


def test_every_form_of_prompt(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "d"}]
    path = write(
        tmp_path / "some.jsonl",
        {"prompt": "a"},
        "",
        {"turns": ["b", "later"], "category": "writing", "subtask": "mt", "question_id": 3},
        {"task_id": "T/1", "prompt": "c", "category": "code"},
        {"messages": messages, "prompt": ""},
        {"prompt": "e", "suffix": "f"},
        {"prompt": "", "suffix": "g"},
        {"prompt": "h", "prediction": "i"},
    )
    assert read_prompts([path]) == [
        FilePrompt("some.jsonl:1", "some", "some.jsonl:1", "a"),
        FilePrompt("3", "mt", "some.jsonl:3", "b"),
        FilePrompt("T/1", "code", "some.jsonl:4", "c"),
        FilePrompt("some.jsonl:5", "some", "some.jsonl:5", messages),
        FilePrompt("some.jsonl:6", "some", "some.jsonl:6", "e", "f"),
        FilePrompt("some.jsonl:7", "some", "some.jsonl:7", "", "g"),
        FilePrompt("some.jsonl:8", "some", "some.jsonl:8", "h", prediction="i"),
    ]


def test_a_few_of_each_category_and_files_with_the_same_names(tmp_path: Path) -> None:
    lines = [{"prompt": f"p{i}", "kind": "ab"[i % 2], "id": i} for i in range(6)]
    one, two = write(tmp_path / "one.jsonl", *lines), write(tmp_path / "two.jsonl", *lines)
    found = read_prompts([one], "kind", per_category=2)
    assert [(p.name, p.category) for p in found] == [("0", "a"), ("1", "b"), ("2", "a"), ("3", "b")]
    names = [prompt.name for prompt in read_prompts([one, two])]
    assert names[0] == "one.jsonl:1"
    assert len(set(names)) == 12
    (tmp_path / "other").mkdir()
    namesake = write(tmp_path / "other" / "one.jsonl", *lines)
    names = [prompt.name for prompt in read_prompts([one, namesake])]
    assert names[0] == f"{one}:1"
    assert len(set(names)) == 12


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "bad.jsonl:2: not valid JSON"),
        ("[" * 100_000, "bad.jsonl:2: not valid JSON"),
        ("[1]", "bad.jsonl:2: no prompt"),
        ('{"prompt": "  "}', "bad.jsonl:2: no prompt"),
        ('{"turns": []}', "bad.jsonl:2: no prompt"),
        ('{"turns": [5]}', "bad.jsonl:2: no prompt"),
        ('{"messages": [{"role": "user"}]}', "bad.jsonl:2: no prompt"),
        ('{"question": "x"}', "expected"),
        ('{"prompt": "x", "suffix": 5}', "bad.jsonl:2: a suffix is a text beside a prompt"),
        ('{"prompt": "x", "prediction": 5}', "bad.jsonl:2: prediction is 5, expected text"),
        ('{"turns": ["x"], "suffix": "y"}', "bad.jsonl:2: a suffix is a text beside a prompt"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = write(tmp_path / "bad.jsonl", {"prompt": "fine"}, line)
    with pytest.raises(ConfigError, match=words):
        read_prompts([path])


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no prompts"):
        read_prompts([write(tmp_path / "empty.jsonl", "", "")])
    with pytest.raises(ConfigError, match="No such file"):
        read_prompts([tmp_path / "missing.jsonl"])
    (tmp_path / "latin1.jsonl").write_bytes(b'{"prompt": "caf\xe9"}')
    with pytest.raises(ConfigError, match="UTF-8"):
        read_prompts([tmp_path / "latin1.jsonl"])


def test_plain_is_always_there_and_first() -> None:
    assert parse_methods("auto, lookup,plain") == ("plain", "auto", "lookup")
    assert parse_methods("plain,auto,auto") == ("plain", "auto")


def test_the_order_turns_around() -> None:
    names: list[Any] = ["plain", "a", "b"]
    orders: dict[tuple[int, int], list[Any]] = {
        (r, i): in_turn(names, i, r) for r in (0, 1) for i in (0, 1)
    }
    assert orders[0, 0] == ["plain", "a", "b"]
    assert orders[0, 1] == ["plain", "b", "a"]
    assert orders[1, 0] == ["b", "a", "plain"]
    assert orders[1, 1] == ["plain", "a", "b"]


def test_names_of_peers() -> None:
    for text in ("llama.cpp", "ik_llama.cpp+draft8", "openvino+lookup", "onnxruntime-genai"):
        assert find_mode(text).name == text
    mode = find_mode("ik_llama.cpp+draft8")
    assert (mode.runtime.name, mode.kind, mode.n_drafted) == ("ik_llama.cpp", "draft", 8)
    for text in ("", "+draft", "llama.cpp+", "llama.cpp+draft0", "llama.cpp+draft-1", "edgedec"):
        with pytest.raises(ConfigError, match="--against got"):
            find_mode(text)


PROMPT = FilePrompt("p", "c", "f:1", "text")


def made(tokens_per_s: float, n: int = 11, first_s: float = 0.5, **counts: int) -> TimedOutput:
    """Returns a run of ``n`` tokens; ``counts``: evaluated and accepted drafts, passes."""
    stats = DecodeStats(n_passes=counts.get("passes", 10), n_pass_tokens=n - 1)
    if "evaluated" in counts:
        drafts = DraftCounts(counts["evaluated"] + 1, counts["evaluated"], counts["accepted"])
        stats.drafted = {"lookup": [drafts]}
    return TimedOutput(tuple(range(n)), first_s, (n - 1) / tokens_per_s, 0.0, stats)


def test_ratios_are_medians_of_ratios_within_a_round() -> None:
    speeds = [(10.0, 40.0), (20.0, 30.0), (5.0, 10.0)]
    rounds = [Round(0, i, {"plain": made(a), "x": made(b)}) for i, (a, b) in enumerate(speeds)]
    row = prompt_row("x", PROMPT, rounds, [])
    assert row is not None
    assert row["tokens_per_s"] == pytest.approx(30.0)
    assert row["speedup"] == pytest.approx(2.0)  # of 4, 1.5 and 2, though medians are 30 and 10
    times = [(0.5 + 10 / a) / (0.5 + 10 / b) for a, b in speeds]
    assert row["request_speedup"] == pytest.approx(statistics.median(times))
    assert row["first_ms"] == pytest.approx(500)
    assert (row["n_identical"], row["over_fastest_peer"]) == (1, None)


def test_other_tokens_are_not_identical_and_rates_are_per_token() -> None:
    shorter = made(20.0, n=6)
    rounds = [Round(0, 0, {"plain": made(10.0), "x": shorter})]
    row = prompt_row("x", PROMPT, rounds, [])
    assert row is not None
    assert row["n_identical"] == 0
    assert row["speedup"] == pytest.approx(2.0)
    assert row["request_speedup"] == pytest.approx((1.5 / 11) / (0.75 / 6))
    late = [Round(0, 0, {"plain": made(10.0)}), Round(0, 1, {"plain": made(1.0), "x": shorter})]
    found = prompt_row("x", PROMPT, late, [])
    assert found is not None
    assert found["speedup"] == pytest.approx(20.0)
    assert prompt_row("y", PROMPT, rounds, []) is None


def test_the_fastest_peer_is_chosen_per_prompt() -> None:
    def one(repetition: int, a: float, b: float) -> Round:
        runs = {"plain": made(10.0), "x": made(30.0), "a": made(a), "b": made(b)}
        return Round(0, repetition, runs)

    rounds = [one(0, 15.0, 10.0), one(1, 15.0, 12.0), one(2, 10.0, 60.0)]
    assert fastest_peer(rounds, ["a", "b"]) == "a"
    row = prompt_row("x", PROMPT, rounds, ["a", "b"])
    assert row is not None
    assert row["over_fastest_peer"] == pytest.approx(2.0)
    assert fastest_peer(rounds, []) is None


def test_prompts_are_summed_up_by_geometric_means_and_sums() -> None:
    def row(name: str, speed: float, evaluated: int, accepted: int, passes: int) -> Any:
        run = made(speed, evaluated=evaluated, accepted=accepted, passes=passes)
        prompt = FilePrompt(name, "c", "f:1", "text")
        return prompt_row("x", prompt, [Round(0, 0, {"plain": made(10.0), "x": run})], [])

    rows = [row("p", 20.0, 10, 9, 2), row("q", 80.0, 30, 3, 8)]
    whole = summary_row("category", rows)
    assert whole["speedup"] == pytest.approx(4.0)
    assert whole["tokens_per_s"] == pytest.approx(40.0)
    assert (whole["worst_speedup"], whole["worst_prompt"]) == (pytest.approx(2.0), "p")
    assert whole["acceptance_rate"] == pytest.approx(12 / 40)
    assert whole["block_efficiency"] == pytest.approx(20 / 10)
    assert (whole["n_prompts"], whole["n_identical"], whole["n_new_tokens"]) == (2, 2, 22)
    assert (whole["category"], whole["prompt"]) == ("c", None)


def test_a_single_token_has_no_speed() -> None:
    rounds = [
        Round(
            0,
            0,
            {"plain": TimedOutput((5,), 0.5, 0.0, 0.0), "x": TimedOutput((5,), 0.25, 0.0, 0.0)},
        )
    ]
    row = prompt_row("x", PROMPT, rounds, [])
    assert row is not None
    assert row["speedup"] is None
    assert row["request_speedup"] == pytest.approx(2.0)
    whole = summary_row("all", [row])
    assert (whole["speedup"], whole["worst_prompt"], whole["n_proposed"]) == (None, None, None)


def test_drafters_and_disturbance_are_summed() -> None:
    runs = {"plain": made(1.0), "x": made(1.0, evaluated=4, accepted=3)}
    window = MeasuringWindow(wanted_s=1.0, own_s=0.5, others_s=0.2, stolen_s=0.0, spare_s=0.0)
    rounds = [Round(0, i, runs, (window, window)) for i in range(2)]
    counts = drafter_counts(rounds)
    assert counts == {"x": {"lookup": DraftCounts(10, 8, 6).to_dict()}}
    assert lost_share(rounds) == pytest.approx(0.2)
    assert lost_share([Round(0, 0, runs)]) is None


class ToyContext:
    """Stands in for a llama.cpp context: each token follows from all before, by a formula."""

    def __init__(self, noise: int = 0) -> None:
        self.tokens: list[int] = []
        self.noise = noise
        self.rows: list[int] = []

    @property
    def n_past(self) -> int:
        return len(self.tokens)

    def drop(self, depth: int) -> None:
        assert depth <= len(self.tokens)
        del self.tokens[depth:]

    def feed(self, ids: list[int], logits_from: int) -> None:
        assert ids
        self.rows = []
        for i, token in enumerate(ids):
            self.tokens.append(token)
            if i >= logits_from:
                self.rows.append(self.next_token())

    def next_token(self) -> int:
        *_, before, last = [0, *self.tokens]
        token = (3 * last + before) % 7
        is_wrong = self.noise and len(self.tokens) % self.noise == 0
        return token + 1 if is_wrong else token

    def likeliest(self, row: int) -> int:
        return self.rows[row]


@pytest.mark.parametrize("n_drafted", [1, 2, 4, 8])
@pytest.mark.parametrize("noise", [0, 2, 3, 5])
def test_llama_cpp_speculates_without_loss(n_drafted: int, noise: int) -> None:
    adapter = importlib.import_module("edgedec.apps.peers.ggml_adapter")
    drafters = {
        "draft": adapter.ModelDrafts(ToyContext(noise)),
        "lookup": adapter.CopiedDrafts(),
    }
    for prompt in ([1, 2, 3], [5], [4, 6, 6, 1]):
        for n in (1, 2, 30):
            target = ToyContext()
            expected, *_ = adapter.generate(target, None, prompt, n, n_drafted)
            n_plain_passes = n
            assert len(expected) == n
            for drafter in drafters.values():
                counted = Counting()
                tokens, first_s, rest_s = adapter.generate(counted, drafter, prompt, n, n_drafted)
                assert tokens == expected
                assert min(first_s, rest_s) >= 0
                assert counted.tokens == target.tokens
                assert counted.n_feeds <= n_plain_passes
        # The toy repeats itself, so that copies are right.
        assert counted.n_feeds < n_plain_passes


class Counting(ToyContext):
    def __init__(self) -> None:
        super().__init__()
        self.n_feeds = 0

    def feed(self, ids: list[int], logits_from: int) -> None:
        self.n_feeds += 1
        super().feed(ids, logits_from)


def test_lookup_copies_what_followed_the_latest_occurrence() -> None:
    drafts = importlib.import_module("edgedec.apps.peers.ggml_adapter").CopiedDrafts()
    drafts.begin([])
    tokens = [1, 2, 3, 9, 1, 2, 3, 8, 8, 1, 2, 3]
    assert drafts.propose(tokens, 2) == [8, 8]
    assert drafts.propose(tokens, 5) == [8, 8, 1, 2, 3]
    assert drafts.propose([*tokens, 7], 4) == []
    assert drafts.propose([*tokens, 7, 5, 2, 3], 3) == [7, 5, 2]
    drafts.begin([])
    assert drafts.propose([2, 3], 4) == []


USER, REPLY = {"role": "user", "content": "d"}, {"role": "assistant", "content": "e"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
RESULT = {"role": "tool", "content": "3", "tool_call_id": "1"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def shared(*turns: tuple[str, str], by: str = "from") -> dict[str, Any]:
    """Returns a line of ShareGPT."""
    return {"conversations": [{by: speaker, "value": text} for speaker, text in turns]}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (shared(("human", "d"), ("gpt", "e"), ("human", "f")), [USER]),
        (shared(("system", "s"), ("human", "d"), ("gpt", "e")),
         [{"role": "system", "content": "s"}, USER]),
        (shared(("user", "d"), ("assistant", "e"), by="role"), [USER]),
        ({"conversations": [USER, REPLY]}, [USER]),
        ({**shared(("human", "d")), "system": "s"}, [{"role": "system", "content": "s"}, USER]),
        ({"prompt": [USER]}, [USER]),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "d"}]}]}, [USER]),
        ({"messages": [USER, CALL, RESULT]}, [USER, CALL, RESULT]),
        ({"messages": [USER, {**REPLY, "name": None}]}, [USER, REPLY]),
        ({"prompt": "\ud83d hi", "id": None, "category": None, "suffix": None}, "\ufffd hi"),
        ({"prompt": "\ud83d\ude00"}, "\U0001f600"),
        ({"prompt": "a\u2028b\x85c"}, "a\u2028b\x85c"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_list", [False, True])
def test_prompts_as_others_keep_them(
    tmp_path: Path, line: dict[str, Any], text: object, is_list: bool
) -> None:
    path = write(tmp_path / "some.json", json.dumps([line], indent=1) if is_list else line)
    (prompt,) = read_prompts([path])
    assert prompt.text == text
    place = "some.json, item 1" if is_list else "some.json:1"
    assert (prompt.name, prompt.category, prompt.place) == (place, "some", place)


def test_tools_beside_messages_are_part_of_the_prompt(tmp_path: Path, small_bundle: Path) -> None:
    (prompt,) = read_prompts([write(tmp_path / "p.jsonl", {"messages": [USER], "tools": [TOOL]})])
    assert prompt.tools == (TOOL,)
    with load(small_bundle) as engine, pytest.raises(ConfigError, match="leave them out"):
        prompt.encode(engine, is_chat=True)  # SmolLM2's template shows no tools


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"PAR1\x15\x04\xff", "a Parquet table; write it as JSON lines"),
        (b"\x1f\x8b\x08", "gzip data; unpack it"),
        (b"PK\x03\x04\xff", "a ZIP archive or a spreadsheet; unpack it"),
        (b'{"prompt": "a", "system": "b"}', "a system text stands in messages"),
        (b'{"prompt": ["a"]}', "a message is 'a', expected a mapping"),
        (b'{"conversations": [{"from": "human"}]}', "role is None"),
        (b'{"prompt": "a", "tools": {"name": "f"}}', "tools are .*, expected a list"),
        (b'[{"prompt": "a"}, 3]', "p.json:1: no prompt"),
        (b'[{"prompt": "a"},', "p.json:1: not valid JSON"),
    ],
)
def test_prompts_that_cannot_be_read(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "p.json").write_bytes(data)
    with pytest.raises(ConfigError, match=words):
        read_prompts([tmp_path / "p.json"])
