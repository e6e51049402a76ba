"""Writes the tables of docs/results.md and README.md from the result files in docs/results.

    python tools/docs/results_page.py [--check]

A table stands between `<!-- NAME -->` and `<!-- end -->`. --check writes nothing, and exits with 1
if a table differs from what its files say.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import geometric_mean, median

from edgedec.apps.results.result import Quantity, Result, read_result

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "docs/results"

Lines = list[list[str]]


def results(kind: str) -> Iterator[Result]:
    """Yields the results of one kind, by the names of their files."""
    for path in sorted(FILES.glob("*.json")):
        result = read_result(path)
        if result.kind == kind:
            yield result


def subject(result: Result) -> str:
    """Returns model and instruction set, the label of another machine, and whether it was noisy."""
    machine = f", {result.label}" if result.label else ""
    mark = " (noisy)" if result.is_noisy else ""
    return f"{result.bundle['name']}, {result.build['isa']}{machine}{mark}"


def passes(result: Result, depth: str) -> dict[int, float]:
    """Returns rows of a pass -> median ms. depth: how a test ends, such as ` @ d16384`."""
    rows = {}
    for quantity in result.quantities:
        name = re.fullmatch(rf"verify(\d+){depth}", quantity.name)
        if name:
            rows[int(name[1])] = median(quantity.values)
    return rows


def price() -> Lines:
    """Returns the price of checking drafts: the time of a pass over that of one row."""
    measured = [(subject(result), passes(result, "")) for result in results("passes")]
    return pass_lines([(name, ms) for name, ms in measured if len(ms) > 3])


def contexts() -> Lines:
    """Returns the same with a full KV cache."""
    lines = []
    for result in results("passes"):
        ends = {quantity.name.partition(" @ d")[2] for quantity in result.quantities} - {""}
        for depth in sorted(ends, key=int):
            ms = passes(result, f" @ d{depth}")
            lines.append((f"{subject(result)}, {int(depth):,} tokens before", ms))
    return pass_lines(lines)


def pass_lines(measured: list[tuple[str, dict[int, float]]]) -> Lines:
    """Returns a line for each, with the time of one row and multiples of it."""
    sizes = sorted({m for _, ms in measured for m in ms})
    lines = [["tokens in a pass", *map(str, sizes)]]
    for name, ms in measured:
        ms_of_one = ms[1]
        cells = ["" if m not in ms else f"× {ms[m] / ms_of_one:.2f}" for m in sizes]
        cells[sizes.index(1)] = f"{ms_of_one:.1f} ms"
        lines.append([name, *cells])
    return lines


def speculation() -> Lines:
    """Returns speeds of methods over plain decoding on prompts."""
    lines = [["method", "prompts", "HumanEval", "Spec-Bench", "worst prompt"]]
    for result in results("prompts"):
        speeds: dict[str, dict[str, Quantity]] = {}
        for quantity in result.quantities:
            speeds.setdefault(quantity.subject, {})[quantity.name] = quantity
        plain = speeds.pop("plain")
        for method, of_method in speeds.items():
            over = {
                name: median(of_method[name].values) / median(plain[name].values)
                for name in of_method
            }
            sets: dict[str, list[float]] = {"HumanEval": [], "Spec-Bench": []}
            for name, ratio in over.items():
                sets["HumanEval" if name.startswith("HumanEval/") else "Spec-Bench"].append(ratio)
            means = [f"{geometric_mean(r):.2f}" if r else "" for r in sets.values()]
            worst = f"{min(over.values()):.2f}"
            lines.append([f"{method}; {subject(result)}", str(len(over)), *means, worst])
    return lines


def texts() -> Lines:
    """Returns tokens per second of one text and of several at once, of each runtime."""
    lines = [["model", "runtime", "1 text", "8 texts", "8 over 1"]]
    for result in results("passes"):
        ms: dict[str, dict[bool, float]] = {}
        for quantity in result.quantities:
            if name := re.fullmatch(r"tg\d+( x8)?", quantity.name):
                ms.setdefault(quantity.subject, {})[bool(name[1])] = median(quantity.values)
        for runtime, of_runtime in ms.items():
            if len(of_runtime) == 2:
                speeds = [f"{1000 / of_runtime[several]:,.0f}" for several in (False, True)]
                ratio = f"{of_runtime[False] / of_runtime[True]:.1f}"
                lines.append([subject(result), runtime, *speeds, ratio])
    return lines


def prefill() -> Lines:
    """Returns tokens per second of reading a prompt, of each runtime."""
    lines = [["model", "runtime", "tokens read", "tokens/s", "edgedec over it"]]
    for result in results("passes"):
        ms: dict[int, dict[str, float]] = {}
        for quantity in result.quantities:
            if name := re.fullmatch(r"pp(\d+)", quantity.name):
                ms.setdefault(int(name[1]), {})[quantity.subject] = median(quantity.values)
        for n_tokens, of_runtime in sorted(ms.items()):
            for runtime, value in of_runtime.items():
                over = "" if runtime == "edgedec" else f"{value / of_runtime['edgedec']:.2f}"
                speed = f"{n_tokens * 1000 / value:,.0f}"
                lines.append([subject(result), runtime, f"{n_tokens:,}", speed, over])
    return lines


Tables = dict[str, Callable[[], Lines]]
PAGES: dict[str, Tables] = {
    "docs/results.md": {
        "price": price, "contexts": contexts, "prefill": prefill, "speculation": speculation,
        "texts": texts,
    },
    "README.md": {"price": price},
}  # fmt: skip


def write_tables(where: str, page: str) -> str:
    """Returns the page with all tables as their files say."""
    for name, lines in PAGES[where].items():
        head, *body = lines()
        table = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
        table += [f"| {' | '.join(line)} |" for line in body]
        text = "\n".join([f"<!-- {name} -->", *table, "<!-- end -->"])
        place = re.compile(rf"<!-- {name} -->\n.*?<!-- end -->", re.DOTALL)
        if len(place.findall(page)) != 1:
            sys.exit(f"{where} needs one place for the table {name}")
        page = place.sub(text.replace("\\", r"\\"), page)
    return page


def main() -> None:
    """Does what the command line asks for."""
    for where in PAGES:
        page = (ROOT / where).read_text(encoding="utf-8")
        written = write_tables(where, page)
        if sys.argv[1:] != ["--check"]:
            (ROOT / where).write_text(written, encoding="utf-8")
        elif written != page:
            sys.exit(f"{where} differs from docs/results: run python tools/docs/results_page.py")


if __name__ == "__main__":
    main()
