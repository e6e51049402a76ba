"""Tasks: how problems are read, what becomes of answers, and how a text is cut and scored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from edgedec.apps.evaluation.gsm8k import Gsm8k, final_number, right_number
from edgedec.apps.evaluation.human_eval import HumanEval
from edgedec.apps.evaluation.infill import Infill
from edgedec.apps.evaluation.perplexity import cut, score
from edgedec.apps.evaluation.tasks import Problem, read_problems
from edgedec.apps.options.text_files import stated_text
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.prompt_files import read_prompts
from edgedec.runtime.text.infill import find_infill_tokens
from edgedec.system.sandbox.programs import Limits
from edgedec.training.features import corpus
from edgedec.training.features.reading import own_prompts

from ..runtime.conftest import ToySession

LIMITS = Limits(seconds=30)
ADD = Problem(
    "HumanEval/add",
    "file:1",
    {
        "prompt": "from typing import List\n\ndef one() -> int:\n    return 1\n\n\n"
        'def add(values: List[int]) -> int:\n    """Adds them, and one."""\n',
        "test": "def check(candidate):\n    assert candidate([2, 3]) == 6\n",
        "entry_point": "add",
    },
)


def write_lines(path: Path, *lines: object) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts), encoding="utf-8")
    return path


def test_problems_are_read(tmp_path: Path) -> None:
    one, two = {"q": "a\u2028b", "n": 3, "task_id": "T/1"}, {"q": "c"}
    path = write_lines(tmp_path / "d.jsonl", one, "", two)
    assert read_problems(path, ["q"]) == [
        Problem("T/1", "d.jsonl:1", {"q": "a\u2028b", "task_id": "T/1"}),
        Problem("d.jsonl:3", "d.jsonl:3", {"q": "c"}),
    ]
    assert len(read_problems(path, ["q"], 1)) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"q": ', "d.jsonl:2: not valid JSON"),
        ("[" * 100_000, "d.jsonl:2: not valid JSON"),
        ("[1]", "d.jsonl:2: got list, expected an object with the texts q"),
        ('{"p": "x"}', "d.jsonl:2: q is None"),
        ('{"q": 7}', "d.jsonl:2: q is 7"),
        ('{"q": "x", "task_id": "T/1"}', "d.jsonl:2: task_id 'T/1' is that of d.jsonl:1"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = write_lines(tmp_path / "d.jsonl", {"q": "a", "task_id": "T/1"}, line)
    with pytest.raises(ConfigError) as error:
        read_problems(path, ["q"], limit=1)  # even beyond the limit
    assert message in str(error.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_problems(tmp_path / "nowhere", ["q"])
    (tmp_path / "latin1").write_bytes(b'{"q": "caf\xe9"}')
    with pytest.raises(ConfigError, match="UTF-8"):
        read_problems(tmp_path / "latin1", ["q"])
    with pytest.raises(ConfigError, match="no problems"):
        read_problems(write_lines(tmp_path / "empty", "", ""), ["q"])


@pytest.mark.parametrize(
    ("text", "is_passed"),
    [
        ("def add(values):\n    return sum(values) + one()", True),  # leaves out the helper
        ("from typing import List\ndef add(values: List[int]):\n    return sum(values) + 1", True),
        ("    return sum(values) + 1", True),  # the body alone
        ("def add(values):\n    return sum(values)", False),
        ("def sub(values):\n    return sum(values) + 1", False),
        ("def add(values):\n    return undefined(values)", False),
        ("def add(values):\n    raise SystemExit(0)", False),
        ("def add(values):\n    import os\n    os._exit(0)", False),
        ("def check(candidate):\n    pass\ndef add(values): ...", False),
        ("", False),
    ],
)
def test_functions_are_judged_by_their_tests(text: str, is_passed: bool) -> None:
    judgement = HumanEval(is_chat=True, limits=LIMITS).judge(ADD, text)
    assert judgement.metrics == {"passed": float(is_passed)}
    assert (judgement.reason is None) == is_passed
    assert judgement.answer == text


def test_a_continued_prompt_is_judged() -> None:
    task = HumanEval(is_chat=False, limits=LIMITS)
    assert task.judge(ADD, "    return sum(values) + one()\n").metrics["passed"] == 1
    assert task.judge(ADD, "    return sum(values)\n").metrics["passed"] == 0
    base = GenerationConfig(stop=("mine",))
    stops = task.request(cast(Engine, None), ADD, base).stop
    assert stops[0] == "mine"
    assert {"\nclass ", "\ndef ", "\n#", "\nif ", "\nprint"} <= set(stops)
    in_chat = HumanEval(is_chat=True, limits=LIMITS).request(cast(Engine, None), ADD, base).stop
    assert {"\n```\n", "\nassert "} <= set(in_chat)  # its own tests are no part of an answer
    assert not {"\nclass ", "\ndef "} & set(in_chat)  # helpers are


class WordTokenizer:
    """Special tokens are single ids, other text is one id per character."""

    def __init__(self, special: Sequence[str]) -> None:
        self.special_texts = tuple(special)

    def encode(self, text: str) -> list[int]:
        return [1000 + ord(character) for character in text]

    def encode_rendered(self, text: str, restore: dict[int, str]) -> list[int]:
        return [self.special_texts.index(text)] if text in self.special_texts else self.encode(text)


class WordEngine:
    def __init__(self, *special: str) -> None:
        self.tokenizer = WordTokenizer(special)
        self.asked: Any = None
        self.encoder = SimpleNamespace(opening=())

    def encode(self, prompt: Any) -> list[int]:
        self.asked = prompt
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else [7]


def as_engine(engine: WordEngine) -> Engine:
    return cast(Engine, engine)


def text_of(ids: Sequence[int]) -> str:
    return "".join(chr(i - 1000) for i in ids if i >= 1000)


def test_a_chat_begins_the_answer() -> None:
    engine = WordEngine()
    ids = HumanEval(is_chat=True, limits=LIMITS).encode(as_engine(engine), ADD)
    (message,) = engine.asked
    assert message["role"] == "user"
    assert ADD["prompt"].strip() in message["content"]
    assert ids[0] == 7
    assert text_of(ids).endswith("```python\n")
    ids = HumanEval(is_chat=False, limits=LIMITS).encode(as_engine(engine), ADD)
    assert text_of(ids) == ADD["prompt"]


FIM = ("<|end|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
SPAN = Problem(
    "RandomSpan/1",
    "file:1",
    {
        "prompt": "def f(x):\n    y = ",
        "suffix": " + 1\n    return y\n",
        "canonical_solution": "x",
        "test": "def check(candidate):\n    assert candidate(1) == 2\n",
        "entry_point": "f",
    },
)
LINE = Problem(
    "SingleLineInfilling/1",
    "file:2",
    {
        **SPAN.fields,
        "prompt": "def f(x):\n",
        "suffix": "    return y\n",
        "canonical_solution": "    y = x + 1\n",
    },
)


def test_infilling_uses_the_models_tokens() -> None:
    engine, task = as_engine(WordEngine(*FIM)), Infill(LIMITS)
    encode = engine.tokenizer.encode
    expected = [1, *encode(SPAN["prompt"]), 3, *encode(SPAN["suffix"]), 2]
    assert task.encode(engine, SPAN) == expected
    request = task.request(engine, SPAN, GenerationConfig(stop_token_ids=(9,)))
    assert request.stop_token_ids == (9, 0, 1, 2, 3)
    assert request.stop == ()
    assert task.request(engine, LINE, GenerationConfig()).stop == ("\n",)
    engine.encoder.opening = (5,)  # type: ignore[misc]
    assert task.encode(engine, SPAN) == [5, *expected]
    star = as_engine(WordEngine("<fim_prefix>", "<fim_middle>", "<fim_suffix>"))
    tokens = find_infill_tokens(star.tokenizer)
    assert tokens is not None
    assert tokens.suffix == 2


def test_prompts_with_a_suffix_are_filled_in(tmp_path: Path) -> None:
    engine = as_engine(WordEngine(*FIM))
    encode = engine.tokenizer.encode
    (tmp_path / "p.jsonl").write_text(f"{json.dumps(SPAN.fields)}\n" * 2)
    prompts = read_prompts([tmp_path / "p.jsonl"])
    before, after = encode(SPAN["prompt"]), encode(SPAN["suffix"])
    asked = [1, *before, 3, *after, 2]
    assert [prompt.encode(engine, True) for prompt in prompts] == [asked, asked]
    engine.has_chat_template = False  # type: ignore[misc]
    # Trainings ask for every second one as an editor does while somebody types.
    written = own_prompts([], [tmp_path / "p.jsonl"], engine)
    assert next(written) == asked
    assert next(written) == [1, 3, *after, 2, *before]
    other = as_engine(WordEngine("<|end|>"))
    with pytest.raises(ConfigError, match=r"p.jsonl:1 has a suffix, but the model cannot fill in"):
        prompts[0].encode(other, False)


def test_infilling_needs_such_tokens() -> None:
    with pytest.raises(ConfigError, match="fim_prefix"):
        Infill(LIMITS).encode(as_engine(WordEngine("<|end|>")), SPAN)


@pytest.mark.parametrize(
    ("problem", "text", "passed", "exact"),
    [
        (SPAN, "x", 1, 1),
        (SPAN, "1 * x", 1, 0),
        (SPAN, "2 * x", 0, 0),
        (SPAN, " x", 1, 0),
        (LINE, "    y = x + 1", 1, 1),
        (LINE, "    y = x + 1  ", 1, 1),
        (LINE, "    y = 1 + x", 1, 0),
        (LINE, "y = x + 1", 0, 0),
    ],
)
def test_what_was_filled_in(problem: Problem, text: str, passed: int, exact: int) -> None:
    judgement = Infill(LIMITS).judge(problem, text)
    assert judgement.metrics == {"passed": passed, "exact": exact}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 3 + 4 = 7\n#### 7", "7"),
        ("#### 1\nno, wait\n#### 2", "2"),
        ("#### $1,234.50 dollars, not 9", "1234.5"),
        ("#### -3", "-3"),
        ("#### - 3", "-3"),
        ("####\n18.", "18"),
        ("the answer is 18.00", "18"),
        ("first 5, then 12", "12"),
        ("16-3", "3"),
        ("it is x-3", "3"),
        ("it is 7 - 3", "3"),
        ("it falls to -3 degrees", "-3"),
        (r"so it is \boxed{L - 8}", "8"),
        ("1,000,000 people", "1000000"),
        ("5,12", "12"),
        ("1,0000", "0"),
        (r"\boxed{42}", "42"),
        (r"\boxed{\$1,200} in 3 weeks", "1200"),
        (r"\boxed{1} and #### 2 then", "2"),
        ("**42**", "42"),
        ("about .5", ".5"),
        ("7 #### none", "7"),
        ("4 eggs for $2 = $8 per day.", "8"),
        ("no number", None),
        ("", None),
        ("####", None),
    ],
)
def test_the_final_number(text: str, number: str | None) -> None:
    assert final_number(text) == (None if number is None else Decimal(number))


def test_maths_is_judged_by_value() -> None:
    task = Gsm8k(is_chat=True)
    problem = Problem(
        "1", "f:1", {"question": "How many?", "answer": "2 * 9 = <<2*9=18>>\n#### 18"}
    )
    assert right_number(problem) == 18
    assert task.judge(problem, "#### 18.0").metrics == {"exact": 1}
    assert task.judge(problem, "#### 17").reason == "got 17, expected 18"
    assert task.judge(problem, "I do not know").reason == "no number, expected 18"
    engine = WordEngine()
    task.encode(as_engine(engine), problem)
    assert "How many?" in engine.asked[0]["content"]
    Gsm8k(is_chat=False).encode(as_engine(engine), problem)
    assert engine.asked == "Question: How many?\nAnswer:"
    broken = Problem("2", "f:2", {"question": "How many?", "answer": "18"})
    with pytest.raises(ConfigError, match="f:2: no number after ####"):
        task.encode(as_engine(engine), broken)


@pytest.mark.parametrize("has_start", [False, True])
@pytest.mark.parametrize(("window", "stride"), [(8, 4), (8, 1), (8, 7), (5, 2), (2, 1)])
@pytest.mark.parametrize("n_tokens", [2, 3, 7, 8, 9, 31, 32])
def test_every_token_is_scored_once(
    n_tokens: int, window: int, stride: int, has_start: bool
) -> None:
    scored: list[int] = []
    for i, one in enumerate(cut(n_tokens, window, stride, has_start)):
        assert 0 <= one.start <= one.scored < one.end <= n_tokens
        assert one.end - one.start + has_start <= window
        assert one.scored > one.start or has_start
        if i:
            assert one.n_scored <= stride
            assert one.scored - one.start + has_start >= window - stride
        scored += range(one.scored, one.end)
    assert scored == list(range(0 if has_start else 1, n_tokens))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((9, 8, 8, False), "--stride is 8"),
        ((9, 8, 0, False), "--stride is 0"),
        ((1, 8, 4, False), "the text has 1 tokens"),
        ((0, 8, 4, True), "the text has 0 tokens"),
        ((9, 1, 1, False), "--window is 1"),
    ],
)
def test_windows_that_make_no_sense(arguments: tuple[int, int, int, bool], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        list(cut(*arguments))


def hash_row(tokens: Sequence[int]) -> npt.NDArray[np.float32]:
    """Returns logits that are a function of all tokens before."""
    rng = np.random.default_rng([len(tokens), *tokens])
    return (3 * rng.standard_normal(11)).astype(np.float32)


@pytest.mark.parametrize("opening", [(), (3,), (3, 5)])
@pytest.mark.parametrize(
    ("n_tokens", "window", "stride"), [(300, 130, 65), (140, 140, 3), (9, 4, 2)]
)
def test_scores_are_those_of_float64(
    n_tokens: int, window: int, stride: int, opening: tuple[int, ...]
) -> None:
    tokens = [int(i) for i in np.random.default_rng(1).integers(0, 11, n_tokens)]
    session = ToySession(11, window, hash_row)
    lead = list(opening)
    for one in cut(n_tokens, window, stride, len(opening)):
        nats, seconds = score(session, tokens, one, opening)
        expected = 0.0
        for i in range(one.scored, one.end):
            row = hash_row([*lead, *tokens[one.start : i]]).astype(np.float64)
            expected -= row[tokens[i]] - np.log(np.exp(row).sum())
        assert nats == pytest.approx(expected, rel=1e-6, abs=1e-5)
        assert seconds > 0


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("It falls to \u22125.", "-5"),
        (r"so \boxed{1{,}234}", "1234"),
        (r"\[\boxed{10,\!000}\]", "10000"),
        (r"it is $1,\!234,\!567.50$", "1234567.50"),
        ("The town has 3 000 people.", "3000"),
        ("The town has 3\u00a0000\u00a0000 people.", "3000000"),
        ("It weighs 1\u202f234.5 kg", "1234.5"),
        (r"\boxed{12\,345}", "12345"),
        ("1'234'567", "1234567"),
        ("1\u2019234", "1234"),
        (r"\boxed{\$1{,}000.50}", "1000.50"),
        ("#### \u2212$2,500", "-2500"),
        ("from 2020 to 2021", "2021"),
        ("7 - 3 = 4", "4"),
        ("1, 2, 300", "300"),
        (r"\fbox{42}, with 3 left", "42"),
        ("#### 12, no: #### 15", "15"),
        ("#### 12 ####", "12"),
    ],
)
def test_numbers_as_people_and_latex_write_them(text: str, number: str) -> None:
    assert final_number(text) == Decimal(number)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The total cost is $29.00.", "29"),
        ("#### 18\n\nQuestion: Tom has 3.\nAnswer: 5\n#### 5", "18"),
        ("\\boxed{\\frac{1}{2}}", "0.5"),
        ("\\boxed{-\\dfrac{7}{2}}", "-3.5"),
        ("so \\boxed{\\tfrac72}", "3.5"),
        ("The answer is 3/4.", "0.75"),
        ("\\boxed{1.5 \\times 10^3}", "1500"),
        ("= 3.2e5", "320000"),
        ("1.234,56 Euro", "1234.56"),
        ("It costs $1.2 million", "1200000"),
        ("The answer is 18 dollars, since 2023 was a leap year", "18"),
        ("ANSWER IS 7. Note that 3 is wrong", "7"),
        ("**Answer:**\n18\n\nCheck: 9*2", "18"),
        ("#### 5 + 3 = 8", "8"),
        ("\\boxed{5+3=8}", "8"),
        ("Answer: 5 + 3 = 8", "8"),
        ("12,34,567 rupees", "1234567"),
        ("1_000_000", "1000000"),
        ("<answer>18</answer> (confidence 1.0)", "18"),
        ("18½ miles", "18.5"),
        ("about ¾", "0.75"),
        ("\\boxed{18 \\text{ cm}^2}", "18"),
        ("\\boxed{\\text{18 dollars}}", "18"),
        ("$\\boxed 18$", "18"),
        ("10/12/2023", "2023"),
        ("450/90=5", "5"),
        ("He has 24 eggs in 2 rows. Final answer: **24**", "24"),
        ("\\[ \\boxed{42} \\]", "42"),
        ("#### 70000", "70000"),
        ("I paid €1.500,00 for it", "1500"),
        ("The answer: -4", "-4"),
        ("the answer is $-4", "-4"),
        ("\\boxed{\\$1{,}000.50}", "1000.50"),
        ("5 million people and 3 cats", "3"),
        ("x = 10", "10"),
        ("It takes 2.5 hours.", "2.5"),
        ("the answer is 1.5.", "1.5"),
        ("#### 10%", "10"),
        ("Answer = 12 apples", "12"),
        ("1 1/2", "1.5"),
        ("1\\frac{1}{2}", "1.5"),
        ("it is 2 \\frac{3}{4} cups", "2.75"),
        ("on 2023/10/12, 5", "5"),
        ("3/4 of 20 is 15", "15"),
        ("The answer is obtained by adding 5 and 3, which gives 8", "8"),
        ("The answer is A, 5 of 9", "9"),
        ("2x 10^3 = 7", "7"),
        ("3 x 10^2", "300"),
        ("The final answer is $\\boxed{3}$.", "3"),
    ],
)
def test_numbers_as_models_write_them(text: str, number: str) -> None:
    assert final_number(text) == Decimal(number)


BODY = "def add(a, b):\n    return a + b\n"


def test_code_that_an_answer_splits_is_put_together() -> None:
    text = "def one():\n    return 1\n```\nAnd:\n```\ndef add(a, b):\n    return one() + b\n```"
    add = replace(ADD, fields={**ADD.fields, "entry_point": "add"})
    program = HumanEval(is_chat=True, limits=LIMITS).program(add, text)
    names: dict[str, Any] = {}
    exec(program.partition("\ncheck(")[0], names)
    assert names["add"](5, 2) == 3


@pytest.mark.parametrize(
    "text",
    [
        f"```python\n{BODY}```",
        f"Here is the script:\n```python\n{BODY}```",
        f"Sure!\n\n```\n{BODY}```\nIt adds.",
        f"from __future__ import annotations\n\n{BODY}",
        f"```py\nfrom __future__ import annotations\nimport math\n{BODY}```",
        f"{BODY}```",
        f"{BODY}```\n\nThis adds the numbers:\n```python\nadd(1, 2)\n```",
        f"import math\n```\nThen:\n```python\n{BODY}```",
        # without fences, with prose before and behind
        f"{BODY}\nThis function adds two numbers. It's simple.",
        f"Here is the function, which isn't long:\n\nimport math\n\n{BODY}",
        f"Sure! Let's go:\n{BODY}\n\n### Explanation\n\n1. It adds.\n2. That's all.",
        f"{BODY}\nExample: add(1, 2) -> 3\n{BODY.replace('add', 'other')}",
        # other fences
        f"~~~python\n{BODY}~~~\nDone.",
        "1. Write it:\n\n   ```python\n   def add(a, b):\n       return a + b\n   ```\n",
        "- ```python\n  def add(a, b):\n      return a + b\n  ```",
        f"``` python {{.numberLines}}\n{BODY}```",
        f"\n\n{BODY}\n\n```\n\nNote: isn't tested.",
        f"{BODY}\n# Output:\n# 3\n~~~",
        # helpers in blocks of their own
        f"def one():\n    return 1\n```\nAnd:\n```python\n{BODY}```",
        f"```python\nimport os\n```\n```python\nX = 1\n```\nprose\n```python\n{BODY}```\n",
        # two versions: the first one counts
        f"{BODY}```\nShorter:\n```python\nadd = sum\n```",
    ],
)
def test_code_is_judged_however_it_is_fenced(text: str) -> None:
    add = replace(ADD, fields={**ADD.fields, "entry_point": "add"})
    program = HumanEval(is_chat=True, limits=LIMITS).program(add, text)
    compile(program, "answer", "exec")
    assert BODY in program
    assert "```" not in program


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"question": "a", "subject": "s", "choices": ["b", "c"], "answer": 0}, "mmlu"),
        ({"question": "a", "choices": {"text": [], "label": []}, "answerKey": "A"}, "arc_easy"),
        ({"ctx": "a", "endings": ["b"], "label": "0"}, "hellaswag"),
        ({"goal": "a", "sol1": "b", "sol2": "c", "label": 0}, "piqa"),
        ({"question_stem": "a", "choices": {}, "answerKey": "A"}, "openbookqa"),
        ({"question": "a", "options": [], "answer": "A", "answer_index": 0}, "mmlu_pro"),
    ],
)
def test_other_benchmarks_are_named(tmp_path: Path, fields: dict[str, Any], name: str) -> None:
    path = write_lines(tmp_path / "other.jsonl", fields)
    with pytest.raises(ConfigError, match=rf"a line of {name}: .*harness .*--tasks {name}$"):
        read_problems(path, ("prompt", "test", "entry_point"))


def test_texts_of_files_keep_their_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\n")
    assert stated_text(path) == "one\r\ntwo\rthree\n"


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_positions_are_those_of_the_file(tmp_path: Path, ends: str) -> None:
    lines = [f"line {i}" for i in range(44)]
    path = tmp_path / "lines.txt"
    path.write_bytes(ends.join([*lines, "the last"]).encode("utf-8-sig"))
    assert stated_text(path).index("the last") == sum(map(len, lines)) + 44 * len(ends)
    (prompt,) = read_prompts([write_marked(tmp_path / "p.jsonl", {"prompt": "Who?"})])
    assert prompt.text == "Who?"


def write_marked(path: Path, line: dict[str, str]) -> Path:
    path.write_bytes(json.dumps(line).encode("utf-8-sig"))
    return path


def test_texts_to_learn_from_have_no_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfHello\r\n")
    assert corpus.text_of(path) == "Hello\r\n"
