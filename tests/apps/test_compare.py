"""`edgedec compare`: result files, ratios and their intervals, and how they are written."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.apps.compare.columns import ResultFile
from edgedec.apps.compare.comparison import make_comparison
from edgedec.apps.compare.tables import write_markdown
from edgedec.apps.results.result import Quantity, Result, read_result, to_document, write_result
from edgedec.models.errors import ConfigError
from edgedec.system.device import Device, DeviceState

STATE = DeviceState(("performance",), (2400.0, 2400.0), 55.0, 0, False, False)
DEVICE = Device(
    "Board One", "", "Cortex-A76", "aarch64", {"Cortex-A76": 4}, 4, ("asimddp",), 8 << 30,
    "Linux", "6.6.31", "glibc 2.36",
)  # fmt: skip
RESULT = Result(
    kind="passes",
    created="2026-01-02T03:04:05Z",
    label=None,
    device=DEVICE,
    before=STATE,
    after=STATE,
    build={"edgedec": "0.1.0", "kernels_sha256": "0" * 16, "isa": "neon"},
    bundle={"name": "smol", "quantization": "q4", "target": "cpu", "sha256": "0" * 64},
    threads=4,
    workload={},
    quantities=(Quantity("edgedec", "tg16", "ms", True, (10.0, 11.0, 12.0), work=(1000, 9000)),),
    lost_share=0.01,
    lost_share_bound=0.05,
    is_noisy=False,
    limits={"isa": "neon", "read_gb_s": 12.5, "int8_gmac_s": 90.0},
)

Make = Callable[..., ResultFile]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Returns a function that writes a result with other fields, and reads it."""

    def made(name: str = "one.json", **fields: Any) -> ResultFile:
        path = write_result(dataclasses.replace(RESULT, **fields), tmp_path / name)
        return ResultFile(path, read_result(path))

    return made


def times(*values: float, subject: str = "edgedec", **more: Any) -> Quantity:
    return Quantity(subject, "tg16", "ms", True, values, **more)


def test_what_is_written_is_read(make: Make) -> None:
    assert make().result == RESULT


def test_a_folder_gets_a_file_with_a_name(tmp_path: Path) -> None:
    result = dataclasses.replace(RESULT, label="../shelf 3")
    path = write_result(result, tmp_path)
    assert path == tmp_path / "20260102T030405Z-.._shelf_3-smol-passes.json"
    assert read_result(path) == result
    other = write_result(dataclasses.replace(result, threads=1), tmp_path)
    assert other == path.with_stem(f"{path.stem}-2")
    assert read_result(path) == result


@pytest.mark.parametrize(
    ("content", "reported"),
    [
        (b"", "not a result file, or was cut off"),
        (b'{"format": "edgedec-result", "version": 1', "cut off"),
        (b"[" * 100_000, "not a result file"),
        (b"\xff\xfe", "not a result file"),
        (b"[]", "not a result of edgedec"),
        (b'{"rows": []}', "not a result of edgedec"),
        (b'{"format": "edgedec-result", "version": 2}', "has version 2, expected 1"),
        (b'{"format": "edgedec-result", "version": 1}', "damaged or was edited"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, reported: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=reported):
        read_result(path)


def test_a_folder_is_no_result_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is a folder, expected result files: .*\*\.json"):
        read_result(tmp_path)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (("threads",), 0),
        (("threads",), "4"),
        (("created",), "yesterday"),
        (("serial_number",), "10000000deadbeef"),
        (("device", "hostname"), "kitchen"),
        (("bundle", "sha256"), "0"),
        (("quantities",), []),
        (("quantities", 0, "values"), []),
        (("quantities", 0, "values"), [1.0, None]),
        (("quantities", 0, "values"), [float("nan")]),
        (("quantities", 0, "unit"), "furlongs"),
        (("quantities", 0, "work"), {"bytes": 0, "macs": 1}),
        (("limits", "read_gb_s"), -1),
    ],
)
def test_edited_fields_are_refused(tmp_path: Path, at: tuple[Any, ...], value: object) -> None:
    document = to_document(RESULT)
    *places, last = at
    inner: Any = document
    for place in places:
        inner = inner[place]
    inner[last] = value
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=r"edited\.json (is damaged|is not a result)"):
        read_result(path)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write"):
        write_result(RESULT, tmp_path / "missing" / "one.json")
    assert list(tmp_path.iterdir()) == []


Cli = Callable[..., Any]
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def cells(document: dict[str, Any], name: str = "tg16") -> list[Any]:
    return next(row["cells"] for row in document["rows"] if row["name"] == name)


def test_runtimes_of_one_run_are_paired(make: Make) -> None:
    """Times drift by a factor of two, and yet one runtime takes twice the other's each time."""
    peers = (times(10, 20, 15), times(20, 40, 30, subject="llama.cpp"))
    (_, other) = cells(make_comparison([make(quantities=peers)], 0, False))
    assert other["ratio"]["value"] == pytest.approx(0.5)
    assert (other["ratio"]["low"], other["ratio"]["high"]) == pytest.approx((0.5, 0.5))
    assert other["ratio"]["basis"] == "measured side by side"


@pytest.mark.slow
def test_a_ratio_that_is_not_of_the_medians_says_what_it_is_of(make: Make) -> None:
    """Medians are equal here, and the pairs' ratios are 1, 1 and 8: their geometric mean is 2."""
    path = make(quantities=(times(8.0, 8.0, 8.0), times(8.0, 8.0, 1.0, subject="llama.cpp")))
    document = make_comparison([path], 0, False)
    mine, other = cells(document)
    assert mine["value"] == other["value"]
    assert other["ratio"]["value"] == pytest.approx(2.0)
    assert "ratios are geometric means of the ratios of single repetitions" in (
        write_markdown(document)
    )


def test_intervals_cover_what_they_promise(make: Make) -> None:
    """95 of 100 intervals hold the truth: 400 simulated runs of 5 repetitions each."""
    rng = np.random.default_rng(1)
    n_held = 0
    for _ in range(400):
        a, b = np.exp(rng.normal(0, 0.05, 5)), 1.25 * np.exp(rng.normal(0, 0.05, 5))
        given = make(quantities=(times(*a.tolist()), times(*b.tolist(), subject="other")))
        found = cells(make_comparison([given], 0, False))[1]["ratio"]
        n_held += found["low"] <= 1 / 1.25 <= found["high"]
    assert 366 <= n_held <= 394  # four standard deviations around 380


def test_separate_runs_have_no_interval_and_three_each_have_one(make: Make) -> None:
    slow = dataclasses.replace(DEVICE, model="Board Two")
    ours = [make(f"a{i}.json", quantities=(times(10.0 + i),)) for i in range(3)]
    theirs = [make(f"b{i}.json", quantities=(times(20.0 + i),), device=slow) for i in range(3)]
    one = cells(make_comparison([ours[0], theirs[0]], 0, False))[1]["ratio"]
    assert (one["low"], one["basis"]) == (None, "across devices")
    all_runs = make_comparison([*ours, *theirs], 0, False)
    found = cells(all_runs)[1]["ratio"]
    assert found["low"] < found["value"] < found["high"]
    assert found["basis"] == "over several runs"
    assert [column["name"] for column in all_runs["columns"]] == ["Board One", "Board Two"]
    build = {**ours[0].result.build, "kernels_sha256": "1" * 16}
    other = make("c.json", build=build)
    assert cells(make_comparison([ours[0], other], 0, False))[1]["ratio"]["basis"] == (
        "separate runs"
    )


def test_scores_differ_over_the_same_problems(make: Make) -> None:
    def passed(subject: str, *values: float) -> Quantity:
        return Quantity(subject, "pass@1", "share", False, values, weights=(1.0,) * len(values))

    given = make(kind="eval", quantities=(passed("a", 0, 1, 1, 0), passed("b", 1, 1, 1, 0)))
    (first, other) = cells(make_comparison([given], 0, False), "pass@1")
    assert (first["value"], other["value"]) == (0.5, 0.75)
    assert other["ratio"]["value"] == pytest.approx(0.25)
    assert other["ratio"]["is_difference"]
    assert other["ratio"]["low"] <= 0.25 <= other["ratio"]["high"]


def test_noise_is_no_ratio_unless_asked_for(make: Make) -> None:
    given = [make(quantities=(times(1, 2, 3, is_noisy=True), times(2, 3, 4, subject="b")))]
    assert cells(make_comparison(given, 0, False))[1]["no_ratio_because"] == "noisy"
    assert cells(make_comparison(given, 0, True))[1]["ratio"] is not None


@pytest.mark.parametrize(
    ("fields", "reported"),
    [
        ({"kind": "ttft"}, r"measured passes, .*two\.json ttft: compare results of one kind"),
        ({"workload": {"seed": 1}}, r"seed is None in .* and 1 in .*: measure both with the same"),
        ({"quantities": (Quantity("edgedec", "tg16", "tokens/s", False, (1.0,)),)}, "was edited"),
        ({"quantities": (Quantity("edgedec", "tg32", "ms", True, (1.0,)),),
          "label": "other"}, "no test in common"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused(
    make: Make, fields: dict[str, Any], reported: str
) -> None:
    with pytest.raises(ConfigError, match=reported):
        make_comparison([make(), make("two.json", **fields)], 0, False)


def test_what_slowed_a_run_is_said(make: Make) -> None:
    hot = dataclasses.replace(STATE, n_throttled=7, on_battery=True, governors=("powersave",))
    (column,) = make_comparison([make(after=hot)], 0, False)["columns"]
    assert column["warnings"] == [
        "the processor slowed down for heat during the run: one.json",
        "on battery: one.json",
        "the governor powersave kept the processor slow: one.json",
    ]


def test_formats_agree(make: Make, cli: Cli) -> None:
    paths = [make("a.json", label="a").path, make("b.json", label="b").path]
    document = cli("compare", *paths, "-o", "json").json
    rows = list(csv.DictReader(io.StringIO(cli("compare", *paths, "-o", "csv").out)))
    assert [row["column"] for row in rows] == ["a", "b"]
    assert [float(row["value"]) for row in rows] == [c["value"] for c in cells(document)]
    shown = cli("compare", *paths).out
    assert "| tg16 " in shown
    assert "no interval" in shown


def test_many_columns_are_listed_downwards(make: Make, cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    pytest.importorskip("matplotlib")
    speeds = (10.0, 5.0, 20.0, 40.0, 8.0, 4.0, 16.0)
    paths = [
        make(f"{i}.json", label=f"board {i}", quantities=(times(speed),)).path
        for i, speed in enumerate(speeds)
    ]
    lines = cli("compare", *paths).out.splitlines()
    values = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "board" in line]
    assert values[:7] == [[f"board {i}", f"{1000 / ms:.4g}"] for i, ms in enumerate(speeds)]
    assert values[7] == ["against board 0", "tg16"]
    assert values[8] == ["board 1", "2.000"]
    page = cli("compare", *paths, "-o", "html").out
    assert [row.count("<td") for row in page.split("<tbody>")[1].split("</tr>")[:-1]] == [2] * 7
    done = cli("compare", *paths, "--plot", tmp_path / "all.png")
    assert done.exit_code == 0, done.err


def test_against_the_last_result(make: Make, cli: Cli, tmp_path: Path) -> None:
    make("old.json", created="2026-01-01T00:00:00Z", quantities=(times(1, 1, 1),))
    make("last.json", created="2026-01-02T00:00:00Z")
    make("other.json", created="2026-01-02T12:00:00Z", threads=2)
    (tmp_path / "junk.json").write_text("{}")
    slower = (times(20.0, 22.0, 24.0),)
    new = make("new.json", created="2026-01-03T00:00:00Z", quantities=slower).path
    done = cli("compare", new, "--against-last", tmp_path, "--band", "0.95")
    assert done.exit_code == 1
    assert "out of the band 0.95 to inf: tg16 of 2026-01-03T00:00:00Z 0.500" in done.err
    assert cli("compare", new, "--against-last", tmp_path, "--band", "0.4").exit_code == 0
    at_once = make("at-once.json", created="2026-01-03T00:00:00Z").path
    assert cli("compare", at_once, "--against-last", tmp_path, "--band", "1.5").exit_code == 0
    first = tmp_path / "old.json"
    assert "no earlier result" in cli("compare", first, "--against-last", tmp_path).error
    assert "one file" in cli("compare", new, first, "--against-last", tmp_path).error


@pytest.mark.parametrize("band", ["", "fast", "0", "2,1", "-1"])
def test_a_band_that_is_none(make: Make, cli: Cli, band: str) -> None:
    assert cli("compare", make().path, "--band", band).exit_code == 2


def test_a_base_that_is_not_there(make: Make, cli: Cli) -> None:
    assert "--base is 3, expected 1 to 1" in cli("compare", make().path, "--base", 3).error


@pytest.mark.slow
def test_the_page_runs_nothing_of_a_file(make: Make, cli: Cli, tmp_path: Path) -> None:
    """Names of a hostile file are text; the plots are drawn, and a click sorts the table."""
    pytest.importorskip("plotly")
    hostile = "<script>document.title = 'taken'</script><img src=x onerror=alert(1)></script>"
    quantities = (
        times(10, 11, 12, work=(1000, 9000)),
        Quantity("edgedec", "verify8", "ms", True, (5.0, 6.0, 7.0), work=(1000, 72000)),
    )
    paths = [
        make("a.json", label=hostile, quantities=quantities).path,
        make("b.json", label="tame", quantities=quantities).path,
    ]
    page = tmp_path / "page.html"
    page.write_text(cli("compare", *paths, "-o", "html").out)
    assert not re.search(r'(src|href)="?(https?:)?//', page.read_text().split("</head>")[1][:2000])
    if CHROMIUM is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    clicks = "<script>document.querySelectorAll('th')[2].click()</script>"
    page.write_text(page.read_text().replace("</body>", clicks + "</body>"))
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000",
         f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    shown = done.stdout
    assert "<title>edgedec: passes of 2 columns</title>" in shown
    assert shown.count('class="main-svg"') >= 2
    body = shown.split("<tbody>")[1].split("</tbody>")[0]
    assert body.index("verify8") < body.index("tg16")  # 6 ms before 11
    assert "<img" not in shown.split("</table>")[0]


def test_a_picture(make: Make, cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = [make("a.json", label="a").path, make("b.json", label="b").path]
    done = cli("compare", *paths, "--plot", tmp_path / "both.png")
    assert done.exit_code == 0, done.err
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("n_columns", [3, 12], ids=["bars", "lines"])
def test_names_of_columns_hide_nothing_that_is_drawn(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_columns: int
) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from edgedec.apps.compare.plot import draw

    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path: drawn.append(figure))
    name = "a machine with a long name that no line of a picture holds, nor its legend"
    paths = [make(f"{i}.json", label=f"{name} {i}").path for i in range(n_columns)]
    sources = [ResultFile(path, read_result(path)) for path in paths]
    draw(make_comparison(sources, 0, False, True), tmp_path / "names.png")
    (figure,) = drawn
    figure.draw_without_rendering()
    for axes in figure.axes:
        legend = axes.get_legend().get_window_extent()
        assert legend.y1 < axes.get_window_extent().y0
        assert figure.bbox.x0 <= legend.x0 < legend.x1 <= figure.bbox.x1
        assert legend.y1 < axes.xaxis.get_tightbbox().y0
        assert axes.get_window_extent().width > 3 * figure.dpi
        names = [label.get_window_extent() for label in axes.get_yticklabels()]
        assert not any(one.overlaps(other) for one, other in pairwise(names))


@pytest.mark.parametrize("is_noisy", [False, True])
@pytest.mark.parametrize("n_columns", [1, 2, 8], ids=["roofline", "bars", "lines"])
def test_noisy_results_are_marked_in_pictures(
    make: Make, cli: Cli, tmp_path: Path, is_noisy: bool, n_columns: int
) -> None:
    pytest.importorskip("matplotlib")
    fields = {"is_noisy": is_noisy, "limits": RESULT.limits if n_columns == 1 else None}
    quantities = (times(10.0, 11.0, 12.0, is_noisy=is_noisy, work=(1000, 9000)),)
    paths = [
        make(f"{i}.json", label=f"l{i}", quantities=quantities, **fields).path
        for i in range(n_columns)
    ]
    done = cli("compare", *paths, "--allow-noise", "--plot", tmp_path / "all.svg")
    assert done.exit_code == 0, done.err
    assert ("noisy: other programs ran" in (tmp_path / "all.svg").read_text()) is is_noisy


@pytest.mark.parametrize("is_noisy", [False, True])
def test_noisy_evaluations_are_marked_in_pictures(
    make: Make, cli: Cli, tmp_path: Path, is_noisy: bool
) -> None:
    pytest.importorskip("matplotlib")
    score = Quantity("plain", "pass@1", "share", False, (1.0, 0.0), weights=(1.0, 1.0))
    quantities = (Quantity("plain", "time", "ms", True, (900.0, 1100.0)), score)
    path = make(kind="eval", quantities=quantities, is_noisy=is_noisy, limits=None).path
    done = cli("compare", path, "--plot", tmp_path / "scores.svg")
    assert done.exit_code == 0, done.err
    assert ("noisy: other programs ran" in (tmp_path / "scores.svg").read_text()) is is_noisy


@pytest.mark.e2e
@pytest.mark.usefixtures("hasty_bench")
def test_a_bench_is_kept_and_compared(cli: Cli, small_bundle: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    command = ["bench", small_bundle, "-p", 8, "-n", 2, "-m", 1, "-r", 2, "--allow-noise"]
    done = cli(*command, "--save", kept, "--label", "mine", "-o", "json")
    assert done.exit_code == 0, done.err
    (path,) = kept.iterdir()
    saved = json.loads(path.read_text())
    assert [q["name"] for q in saved["quantities"]] == ["pp8", "tg2", "verify1"]
    for row, quantity in zip(done.json["rows"], saved["quantities"], strict=True):
        assert np.median(quantity["values"]) == pytest.approx(row["ms"]["median"])
    assert str(small_bundle.parent) not in path.read_text()
    shown = cli("compare", path, "--allow-noise")
    assert shown.exit_code == 0, shown.err
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Count from one to five."}\n')
    asked = ["--prompts", prompts, "--methods", "plain,lookup", "--max-new-tokens", 8, "-r", 1]
    done = cli("bench", small_bundle, *asked, "--allow-noise", "--save", tmp_path / "p.json")
    assert done.exit_code == 0, done.err
    found = cli("compare", tmp_path / "p.json", "--allow-noise", "-o", "json").json
    assert [column["name"] for column in found["columns"]] == ["plain", "lookup"]
    reported = cli("compare", path, tmp_path / "p.json").error
    assert "compare results of one kind" in reported


@pytest.mark.e2e
def test_an_evaluation_is_kept(cli: Cli, small_bundle: Path, tmp_path: Path) -> None:
    data = tmp_path / "text.txt"
    data.write_text("One two three four five six seven eight nine ten. " * 8)
    command = ["eval", small_bundle, "--task", "perplexity", "--data", data, "--window", 32]
    done = cli(*command, "--json", "--save", tmp_path / "e.json")
    assert done.exit_code == 0, done.err
    found = cli("compare", tmp_path / "e.json", "-o", "json").json
    value = next(row for row in found["rows"] if row["name"] == "bits per token")["cells"][0]
    reported = done.json["settings"][0]["metrics"]["bits per token"]["value"]
    assert value["value"] == pytest.approx(reported)
    assert "add BUNDLE" in cli("eval", "--compare", data, "--save", tmp_path / "x.json").error
