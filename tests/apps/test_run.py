"""`edgedec run`: prompts from everywhere, text and JSON, interrupts."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgedec.apps.console.output import visible
from edgedec.apps.console.terminal import bytes_text
from edgedec.apps.options.template_variables import parse_template_variables

from ..passes_reported import TELLING_PASSES, wait_for_passes

Cli = Callable[..., Any]
PROMPT = "Why is the sky blue?"
PROGRAM = [sys.executable, "-c", "from edgedec.apps.cli import main; main()"]

pytestmark = pytest.mark.e2e


def test_text_goes_to_stdout_and_the_rest_to_stderr(cli: Cli, smollm2_bundle: Path) -> None:
    done = cli("run", smollm2_bundle, PROMPT, "-n", 12)
    assert done.exit_code == 0
    assert len(done.out.split()) > 5
    assert done.out.endswith("\n")
    assert "12 new tokens (length)" in done.err
    assert "tokens/s" in done.err


def test_json_has_the_promised_keys(cli: Cli, smollm2_bundle: Path) -> None:
    done = cli("run", smollm2_bundle, PROMPT, "-n", 8, "--json")
    assert done.exit_code == 0
    assert done.err == ""
    document = done.json
    assert set(document) == {
        "text", "reasoning", "token_ids", "origins", "finish_reason", "stop_text", "stop_token",
        "n_prompt_tokens", "n_new_tokens", "n_reasoning_tokens", "load_ms", "ttft_ms",
        "provisional_ms", "tpot_ms", "tokens_per_s", "peak_rss_mb", "method", "lossless",
        "largest_gap", "stats", "switch",
    }  # fmt: skip
    assert {"n_proposed", "n_accepted", "n_rounds", "acceptance_rate"} <= set(document["stats"])
    assert document["n_new_tokens"] == len(document["token_ids"]) == 8
    assert (document["method"], document["lossless"]) == ("auto", True)


def test_the_prompt_may_come_from_anywhere(
    cli: Cli, smollm2_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = cli("run", smollm2_bundle, PROMPT, "-n", 8, "--json").json["token_ids"]
    (tmp_path / "prompt").write_text(PROMPT + "\n")
    done = cli("run", smollm2_bundle, "--prompt-file", tmp_path / "prompt", "-n", 8, "--json")
    assert done.json["token_ids"] == expected
    stdin = io.TextIOWrapper(io.BytesIO(PROMPT.encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert cli("run", smollm2_bundle, "-", "-n", 8, "--json").json["token_ids"] == expected
    stdin.seek(0)
    assert cli("run", smollm2_bundle, "-n", 8, "--json").json["token_ids"] == expected
    for given in ([], [""], [" \n"]):  # by now nothing is left to read
        refused = cli("run", smollm2_bundle, *given)
        assert (refused.exit_code, refused.error.split(":")[1]) == (1, " the prompt is empty")


def test_a_prompt_in_the_place_of_the_bundle_is_noticed(cli: Cli) -> None:
    refused = cli("run", "Why is the sky blue?", "smollm2.edgedec")
    assert refused.exit_code == 1
    assert refused.error.endswith("name the bundle before it, as in: smollm2-135m-instruct PROMPT")


def test_bad_prompts(cli: Cli, smollm2_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "latin1").write_bytes(b"caf\xe9")
    done = cli("run", smollm2_bundle, "--prompt-file", tmp_path / "latin1")
    assert "UTF-8" in done.error
    done = cli("run", smollm2_bundle, "--prompt-file", tmp_path / "nowhere")
    assert "cannot read the prompt" in done.error
    done = cli("run", smollm2_bundle, "word " * 9000)
    assert done.exit_code == 1
    assert "8192" in done.error


def test_raw_is_not_chat(cli: Cli, smollm2_bundle: Path) -> None:
    raw = cli("run", smollm2_bundle, "--raw", "Once upon a time", "-n", 4, "--json").json
    chat = cli("run", smollm2_bundle, "--chat", "Once upon a time", "-n", 4, "--json").json
    assert raw["n_prompt_tokens"] == 4
    assert chat["n_prompt_tokens"] > 20


@pytest.mark.parametrize("verb", ["run", "chat"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["enable_thinking=false"], "reads no such variable"),
        (["enable_thinking"], "enable_thinking=false"),
        (["a=1", "a=2"], "each NAME=VALUE once"),
    ],
)
def test_template_variables_that_nothing_reads(
    cli: Cli, smollm2_bundle: Path, verb: str, given: list[str], said: str
) -> None:
    options = [part for pair in given for part in ("--template-var", pair)]
    result = cli(verb, smollm2_bundle, *(["fox"] if verb == "run" else []), *options)
    assert result.exit_code != 0
    assert said in " ".join(result.err.replace("│", " ").split())


def test_template_variables_are_json_or_text() -> None:
    given = ["a=false", "b=high", "c=[1]", 'd="2"', "e=x=y", "f="]
    assert parse_template_variables(given) == {
        "a": False, "b": "high", "c": [1], "d": "2", "e": "x=y", "f": ""
    }  # fmt: skip


def test_options_reach_the_sampler(cli: Cli, smollm2_bundle: Path) -> None:
    def tokens(*options: object) -> list[int]:
        done = cli("run", smollm2_bundle, PROMPT, "-n", 10, "--json", *options)
        assert done.exit_code == 0, done.err
        return list(done.json["token_ids"])

    greedy = tokens()
    assert tokens("--threads", 1) == greedy
    sampled = tokens("--temperature", 1.5, "--seed", 5)
    assert sampled != greedy
    assert tokens("--temperature", 1.5, "--seed", 5) == sampled
    assert tokens("--temperature", 1.5, "--seed", 6) != sampled
    assert tokens("--temperature", 1.5, "--seed", 5, "--top-k", 1) == greedy
    assert tokens("--logit-bias", f"{greedy[0]}=-100")[0] != greedy[0]
    assert tokens("--stop-token", greedy[3]) == greedy[: greedy.index(greedy[3]) + 1]
    assert tokens("--repetition-penalty", 1.9) != greedy


def test_stop_text(cli: Cli, smollm2_bundle: Path) -> None:
    whole = cli("run", smollm2_bundle, PROMPT, "-n", 20, "--json").json["text"]
    word = whole.split()[4]
    done = cli("run", smollm2_bundle, PROMPT, "-n", 20, "--json", "--stop", word).json
    assert done["text"] == whole[: whole.index(word)]
    assert done["finish_reason"] == "stop"


def test_context_beyond_the_bundle(cli: Cli, smollm2_bundle: Path) -> None:
    done = cli("run", smollm2_bundle, PROMPT, "--context", 9000)
    assert done.exit_code == 1
    assert "9000" in done.error
    assert "8192" in done.error


def hear_interrupts() -> None:
    """To be called in a child: jobs in the background of a plain shell ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_ctrl_c_keeps_what_was_generated(smollm2_bundle: Path) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "run", str(smollm2_bundle), PROMPT, "-n", "4000", "--ignore-eos"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=hear_interrupts,
    )
    assert process.stdout is not None
    first = process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(first + rest) > 20
    assert rest.endswith(b"\n")
    assert b"cancelled" in err
    assert b"Traceback" not in err


def test_ctrl_c_with_json_still_prints_one_document(smollm2_bundle: Path) -> None:
    process = subprocess.Popen(
        [*TELLING_PASSES, "run", str(smollm2_bundle), PROMPT, "-n", "4000", "--ignore-eos",
         "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hear_interrupts,
    )  # fmt: skip
    wait_for_passes(process, 5)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert json.loads(out)["finish_reason"] == "cancelled"
    assert process.returncode == 130


def test_a_reader_that_leaves_is_no_accident(smollm2_bundle: Path) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "run", str(smollm2_bundle), PROMPT, "-n", "200", "--ignore-eos"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(5)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=60) == 1
    assert b"Traceback" not in err
    assert b"Exception" not in err


def test_generated_text_cannot_steer_the_terminal() -> None:
    assert visible("a\x1b[2Jb\x9bc\r\n\té🙂") == "a�[2Jb�c�\n\té🙂"
    assert visible("plain") == "plain"


def test_sizes_for_people() -> None:
    assert [bytes_text(n) for n in (0, 999, 1000, 98_100_000, 1_120_000_000)] == [
        "0 B", "999 B", "1.0 kB", "98.1 MB", "1.12 GB",
    ]  # fmt: skip
