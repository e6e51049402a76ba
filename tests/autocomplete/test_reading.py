"""What was read of documents: of the latest of them, for whichever thread asks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from edgedec.autocomplete.reading import ReadPrompts


def test_the_latest_documents_are_known() -> None:
    reading = ReadPrompts()
    for n in [*range(10), 3]:
        reading.begin(f"{n}.txt", [n])
    assert list(reading.prompts) == [f"{n}.txt" for n in (2, 4, 5, 6, 7, 8, 9, 3)]
    assert reading.prompts["3.txt"] == [3]


@pytest.mark.usefixtures("quick_switches")
def test_another_thread_may_ask_while_documents_are_read() -> None:
    reading = ReadPrompts()

    def read() -> None:
        for n in range(20_000):
            reading.begin(f"{n % 12}.txt", [n])

    with ThreadPoolExecutor(1) as threads:
        is_done = threads.submit(read)
        while not is_done.done():
            assert len(reading.prompts) <= 8
    is_done.result()
