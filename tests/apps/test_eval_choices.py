"""Questions with choices: how their forms are read, and what a model's likelihoods come to."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec import Engine
from edgedec.apps.evaluation.choices import ChoiceProblem, encode_choices, read_choices
from edgedec.apps.evaluation.likelihoods import metrics_of
from edgedec.apps.evaluation.samples import Sample
from edgedec.apps.evaluation.scores import calibration_error, flips
from edgedec.apps.evaluation.tasks import METRICS
from edgedec.models.errors import ConfigError

from ..runtime.conftest import backend, make_engine, tokenizer, trained
from .conftest import Cli

__all__ = ["backend", "make_engine", "tokenizer", "trained"]  # fixtures

MMLU = {"question": "What is 2 + 2? ", "choices": ["3", "4", "5", "22"], "answer": 1,
        "subject": "elementary_mathematics"}  # fmt: skip
ARC = {"id": "A1", "question": "Which is a metal?", "answerKey": "C",
       "choices": {"text": ["Wood", "Glass", "Iron"], "label": ["A", "B", "C"]}}  # fmt: skip
ARC_SOURCE = {
    "id": "A2", "answerKey": "2",
    "question": {"stem": "Which one flies?", "choices": [
        {"text": "Stone", "label": "1"}, {"text": "Bird", "label": "2"}]},
}  # fmt: skip
HELLASWAG = {"ind": 7, "activity_label": "Baking", "ctx_a": "She mixes [step] the dough.",
             "ctx_b": "then she", "ctx": "She mixes [step] the dough. then she",
             "endings": ["bakes  it [title] Done", "flies away.", "sings.", "sleeps."],
             "label": "0"}  # fmt: skip
CROWS = {"sent_more": "Old people forget.", "sent_less": "Young people forget."}


def write(path: Path, *rows: object) -> Path:
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(text + "\n" for text in texts))
    return path


def test_public_forms_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", MMLU, ARC, ARC_SOURCE, HELLASWAG, CROWS)
    mmlu, arc, source, hellaswag, crows = read_choices(path)
    assert mmlu.heading == (
        "The following are multiple choice questions (with answers) about elementary "
        "mathematics.\n\n"
    )
    assert mmlu.prompt == "What is 2 + 2?\nA. 3\nB. 4\nC. 5\nD. 22\nAnswer:"
    assert (mmlu.choices, mmlu.right, mmlu.name) == (("A", "B", "C", "D"), 1, "d.jsonl:1")
    assert arc.prompt == "Question: Which is a metal?\nAnswer:"
    assert (arc.choices, arc.right, arc.name) == (("Wood", "Glass", "Iron"), 2, "A1")
    assert (source.choices, source.right, source.labels) == (("Stone", "Bird"), 1, ("1", "2"))
    assert hellaswag.prompt == "Baking: She mixes the dough. Then she"
    assert hellaswag.choices[0] == "bakes it. Done"
    assert (hellaswag.right, hellaswag.name) == (0, "7")
    assert crows.is_pair
    assert crows.choices == (CROWS["sent_more"], CROWS["sent_less"])
    assert len(read_choices(path, 2)) == 2


def test_csv_forms_are_read(tmp_path: Path) -> None:
    (tmp_path / "high_school_biology_test.csv").write_text('"A cell, is",small,big,D\nb,1,2,B\n')
    with pytest.raises(ConfigError, match=r"biology_test.csv, row 1: the right answer is 'D'"):
        read_choices(tmp_path / "high_school_biology_test.csv")
    (tmp_path / "high_school_biology_test.csv").write_text('"A cell, is",small,big,A\nb,1,2,B\n')
    first, second = read_choices(tmp_path / "high_school_biology_test.csv")
    assert first.prompt == "A cell, is\nA. small\nB. big\nAnswer:"
    assert first.heading.endswith("about high school biology.\n\n")
    assert (first.right, second.right) == (0, 1)
    (tmp_path / "crows.csv").write_text(
        ",sent_more,sent_less,bias_type\n0,He leads.,She leads.,g\n"
    )
    (pair,) = read_choices(tmp_path / "crows.csv")
    assert pair.choices == ("He leads.", "She leads.")


ROW = {"question": "Who?", "A": "a", "B": "b", "C": "c", "D": "d", "answer": "B"}


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        # cells that readers of tables take for missing values or numbers
        ("Who?,None,N/A,NA,nan,B\nWho?,null,#N/A,,TRUE,C\nWho?,0.10,1e3,007,-0,A\n",
         ["Who?|None|N/A|NA|nan|B", "Who?|null|#N/A||TRUE|C", "Who?|0.10|1e3|007|-0|A"]),
        ('"He said ""x, y"", \nand left.","a,b",c,d,e,B\n',
         ['He said "x, y", \nand left.|a,b|c|d|e|B']),
        ('"two\r\nlines",a,b,c,d,B\r\nQ,a,b,c,d,A\r\n', ["two\r\nlines|a|b|c|d|B", "Q|a|b|c|d|A"]),
        ('5 \u00d7 6\u2028=?,\u2212030,\'quoted\',"inner ""q""",d,B\n',
         ['5 \u00d7 6\u2028=?|\u2212030|\'quoted\'|inner "q"|d|B']),
        ("  padded  ,a , b,c,d,B\n\n\n", ["  padded  |a | b|c|d|B"]),
        ("Who?,a,b,c,d,B\rQ,a,b,c,d,A\r", ["Who?|a|b|c|d|B", "Q|a|b|c|d|A"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["law_test.csv", "law_test.CSV", "law_test.tsv"])
def test_cells_of_tables_stay_what_they_are(
    tmp_path: Path, text: str, rows: list[str], name: str
) -> None:
    """Cells are those of pandas 3, which MMLU's authors use, with ``keep_default_na=False``."""
    path, table = tmp_path / name, [row.split("|") for row in rows]
    if name.endswith("tsv"):
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, delimiter="\t").writerows(table)
    else:
        path.write_bytes(text.encode())
    problems = read_choices(path)
    assert len(problems) == len(table)
    for problem, (question, *choices, answer) in zip(problems, table, strict=True):
        lines = [f"{letter}. {choice}" for letter, choice in zip("ABCD", choices, strict=True)]
        assert problem.prompt == "\n".join([question.strip(), *lines, "Answer:"])
        assert problem.labels[problem.right] == answer
        assert problem.heading.endswith("about law.\n\n")


@pytest.mark.parametrize(
    ("text", "n_choices", "name", "about"),
    [
        ("question,A,B,C,D,answer\nWho?,a,b,c,d,B\n", 4, "d.csv, row 2", ""),
        # OpenAI's simple-evals and MMMLU
        (",Question,A,B,C,D,Answer,Subject\n0,Who?,a,b,c,d,B,high_school_law\n", 4,
         "d.csv, row 2", " about high school law"),
        # C-Eval, Kaggle's science exam, a question with fewer choices than others
        ("id,question,A,B,C,D,answer,explanation\n7,Who?,a,b,c,d,B,\n", 4, "7", ""),
        ("id,prompt,A,B,C,D,E,answer\n0,Who?,a,b,c,d,e,B\n", 5, "0", ""),
        ("id,prompt,A,B,C,D,E,answer\n0,Who?,a,b,c,d,,B\n", 4, "0", ""),
        (json.dumps(ROW), 4, "d.jsonl:1", ""),
        (json.dumps({"input": "Who?", "A": "a", "B": "b", "target": "B"}), 2, "d.jsonl:1", ""),
        (json.dumps({**ROW, "E": None, "id": None}), 4, "d.jsonl:1", ""),
        (json.dumps([ROW, {**ROW, "id": 3}], indent=1), 4, "d.jsonl, item 1", ""),
        (json.dumps({"question": "Who?", "choices": ["a", "b", ""], "answer": 1}), 3,
         "d.jsonl:1", ""),
    ],
)  # fmt: skip
def test_choices_by_their_letters(
    tmp_path: Path, text: str, n_choices: int, name: str, about: str
) -> None:
    path = tmp_path / ("d.jsonl" if text[0] in "{[" else "d.csv")
    path.write_text(text)
    problem = read_choices(path)[0]
    assert problem.prompt.startswith("Who?\nA. a\nB. b")
    assert (problem.name, problem.right, len(problem.choices)) == (name, 1, n_choices)
    assert problem.heading == (
        f"The following are multiple choice questions (with answers){about}.\n\n"
    )


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('Who?, "a, b",c,d,e,B\nWho?,a,b,c,d,A\n', "row 2: got 6 cells, expected 7"),
        ("Who?,a,b,c,d,B\nWho?,a,b,C\n", "row 2: got 4 cells, expected 6"),
        ("Who?;a;b;c;d;B\n", "row 1: got 1 cells, expected several"),
        ('Who?,"a"x,b,c,d,B\n', "not valid CSV"),
        ('Who?,"a,b,c,d,B\n', "not valid CSV"),
        ("Who?,a,b,c,d,b\n", "the right answer is 'b'"),
        ("Who?,a,b,c,d,B\n,,,,,\n", "row 2: got '' in place of text"),
        ("question,subject,choices,answer\nWho?,law,\"['a' 'b']\",1\n", "expected a list of 2"),
        ("question,answer\nWho?,B\n", "got the keys answer, question"),
        ("id,question,A,B,answer\n1,Q,a,b,A\n1,Q,a,b,A\n", "row 3: task_id '1' is that of"),
    ],
)
def test_tables_that_cannot_be_read(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "d_test.csv").write_text(text)
    with pytest.raises(ConfigError) as error:
        read_choices(tmp_path / "d_test.csv")
    assert message in str(error.value)


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "d.jsonl:1: got list, expected the keys of MMLU"),
        ("{", "d.jsonl:1: not valid JSON"),
        ({"q": 1}, "got the keys q, expected the keys of MMLU"),
        ({**MMLU, "answer": 4}, "the right answer is 4, of A, B, C, D"),
        ({**MMLU, "answer": True}, "the right answer is True"),
        ({**MMLU, "choices": ["only"]}, "got the choices a list of 1"),
        ({**MMLU, "choices": ["a", 2]}, "got 2 in place of text"),
        ({**MMLU, "question": " "}, "got ' ' in place of text"),
        ({**ARC, "answerKey": "D"}, "the right answer is 'D', of A, B, C"),
        ({**ARC, "choices": 3}, "expected the keys of MMLU"),
        ({"answerKey": "A"}, "'question' is missing"),
        ({**HELLASWAG, "label": ""}, "the right answer is ''"),
        ({"sent_more": "a"}, "'sent_less' is missing"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_choices(write(tmp_path / "d.jsonl", line, MMLU), limit=1)
    assert message in str(error.value)


def test_two_problems_of_a_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"d.jsonl:2: task_id 'A1' is that of d.jsonl:1"):
        read_choices(write(tmp_path / "d.jsonl", ARC, ARC))


PROBLEM = ChoiceProblem("p", "f:1", "Q:", ("ab", "abcd", "a"), ("A", "B", "C"), 1)


def test_metrics_are_those_of_the_harness() -> None:
    found = metrics_of(PROBLEM, [-2.0, -3.0, -4.0])
    assert (found["acc"], found["acc_norm"]) == (0.0, 1.0)  # -1, -0.75 and -4 for a character
    assert found["confidence"] == pytest.approx(1 / (1 + math.exp(-1) + math.exp(-2)))
    pair = ChoiceProblem("p", "f:1", "", ("x", "y"), ("more", "less"), 0, space="")
    assert metrics_of(pair, [-1.0, -2.0]) == {"stereotype": 1.0}
    assert metrics_of(pair, [-2.0, -1.0]) == {"stereotype": 0.0}


def sample(acc: float, confidence: float) -> Sample:
    return Sample(fingerprint="f", name="n", metrics={"acc": acc, "confidence": confidence})


def test_calibration_error_by_bins() -> None:
    # One bin is right in half of its cases at 0.75; the other is always right at 0.95.
    samples = [sample(1, 0.75), sample(0, 0.75), sample(1, 0.95), sample(1, 0.95)]
    found = calibration_error(samples)
    assert found is not None
    assert (found.confidence, found.right) == (pytest.approx(0.85), 0.75)
    assert found.expected == pytest.approx((0.25 + 0.05) / 2)
    sure = calibration_error([sample(1, 1.0)] * 3)
    assert sure is not None
    assert sure.expected == 0
    assert calibration_error([Sample(fingerprint="f", name="n", metrics={"acc": 1})]) is None


def test_flips_count_both_directions() -> None:
    metric = METRICS["multiple_choice"][0]
    first = [sample(acc, 1) for acc in (1, 1, 0, 0)]
    other = [sample(acc, 1) for acc in (1, 0, 1, 0)]
    found = flips(first, other, metric)
    assert found is not None
    assert found["value"] == 0.5  # the scores are equal
    assert flips(first, other, METRICS["perplexity"][0]) is None


def test_examples_of_the_subject_come_first(
    make_engine: Callable[..., Engine], tmp_path: Path
) -> None:
    other = {**MMLU, "question": "Why?", "subject": "philosophy"}
    problem, example, _ = read_choices(
        write(tmp_path / "d.jsonl", MMLU, {**MMLU, "question": "1 + 3?"}, other)
    )
    engine = make_engine(context=1024)
    found = encode_choices(engine, problem, (), read_choices(tmp_path / "d.jsonl")[1:])
    text = engine.tokenizer.decode(found.prompt)
    assert text == f"{problem.heading}{example.prompt} B\n\n{problem.prompt}"
    assert [engine.tokenizer.decode(end) for end in found.ends] == [" A", " B", " C", " D"]


def harness_scores(model: Any, tokenizer: Any, problems: Sequence[Any]) -> list[list[float]]:
    """Returns log-probabilities as lm-evaluation-harness has transformers compute them."""
    import torch

    scores = []
    for context, choices in problems:
        own = []
        for choice in choices:
            whole = tokenizer.encode(f"{context} {choice}", add_special_tokens=False).ids
            n_context = len(tokenizer.encode(context, add_special_tokens=False).ids)
            with torch.no_grad():
                logits = model(torch.tensor([whole[:-1]])).logits[0].double()
            log_probs = torch.log_softmax(logits[n_context - 1 :], -1)
            own.append(float(log_probs.gather(1, torch.tensor(whole[n_context:])[:, None]).sum()))
        scores.append(own)
    return scores


@pytest.mark.parity
def test_choices_are_those_of_transformers(
    make_engine: Callable[..., Engine], backend: Any, tmp_path: Path
) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=backend.get_vocab_size(), hidden_size=32, intermediate_size=64,
            num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=512,
        )
    ).eval()  # fmt: skip

    def rule(prefix: Sequence[int]) -> Any:
        with torch.no_grad():
            return model(torch.tensor([list(prefix)])).logits[0, -1].numpy()

    path = write(tmp_path / "d.jsonl", ARC, ARC_SOURCE, HELLASWAG)
    problems = read_choices(path)
    expected = harness_scores(model, backend, [(one.prompt, one.choices) for one in problems])
    engine = make_engine(rule, context=512)
    for problem, log_probs in zip(problems, expected, strict=True):
        encoded = encode_choices(engine, problem, ())
        found = engine.score_continuations(encoded.prompt, encoded.ends)
        assert found == pytest.approx(log_probs, abs=1e-3)
        assert int(np.argmax(found)) == int(np.argmax(log_probs))


@pytest.mark.e2e
def test_a_model_answers_and_two_bundles_are_compared(
    cli: Cli, smollm2_bundle: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / "d.jsonl", ARC, ARC_SOURCE, HELLASWAG, MMLU)
    command = ["eval", smollm2_bundle, "--task", "multiple_choice", "--data", path]
    done = cli(*command, "-o", tmp_path / "one.jsonl", "--json")
    assert done.exit_code == 0, done.err
    (row,) = done.json["settings"]
    assert row["n_samples"] == 4
    assert set(row["metrics"]) == {"acc", "acc_norm"}
    assert 0 <= row["calibration_error"]["expected"] <= 1
    assert done.json["samples"][0]["answer"] in ARC["choices"]["label"]  # type: ignore[index]
    shots = write(tmp_path / "shots.jsonl", {**MMLU, "question": "1 + 3?"})
    assert cli(*command, "--shots", shots, "-o", tmp_path / "two.jsonl").exit_code == 0
    files = [
        option for name in ("one", "one") for option in ("--compare", tmp_path / f"{name}.jsonl")
    ]
    assert "expected calibration error" in cli("eval", *files).out
    other = cli("eval", "--compare", tmp_path / "one.jsonl", "--compare", tmp_path / "two.jsonl")
    assert "cannot compare samples of different" in other.error


@pytest.mark.e2e
def test_pairs_are_read_as_bias(cli: Cli, smollm2_bundle: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.jsonl", CROWS)
    done = cli("eval", smollm2_bundle, "--task", "bias", "--data", path, "--json")
    assert done.exit_code == 0, done.err
    assert done.json["settings"][0]["metrics"]["stereotype preferred"]["value"] in (0, 1)
    wrong = cli("eval", smollm2_bundle, "--task", "multiple_choice", "--data", path)
    assert "these are pairs of sentences: evaluate them as --task bias" in wrong.error


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--methods", "plain,auto"], "multiple_choice generates nothing: leave out the method"),
        (["--best-of", "4"], "--best-of is for tasks with answers"),
        (["--chat"], "does not use --chat"),
        (["--parallel", "4"], "choices share passes already"),
        (["--shots", "nowhere.jsonl"], "cannot read nowhere.jsonl"),
    ],
)
def test_options_that_make_no_sense(
    cli: Cli, smollm2_bundle: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    path = write(tmp_path / "d.jsonl", ARC)
    done = cli("eval", smollm2_bundle, "--task", "multiple_choice", "--data", path, *options)
    assert done.exit_code != 0
    assert message in done.error
