"""One result file of an evaluation that several hosts shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgedec.apps.evaluation.results import measured_answers
from edgedec.apps.fleet.evaluate import Evaluated
from edgedec.apps.fleet.store import TaskResult
from edgedec.apps.results.recording import bundle_facts
from edgedec.apps.results.result import Result, utc_now
from edgedec.models.errors import EdgedecError
from edgedec.models.manifest import BundleManifest
from edgedec.system.device import Device, DeviceState

_MAX_TEXT = 300


def combined_result(
    evaluated: Evaluated, bundle: Path, manifest: BundleManifest, label: str | None
) -> Result:
    """Returns the result of all hosts together.

    Its device has the cores and the memory of all. Its states are the worst that any host was in.

    Raises:
        EdgedecError: There are no samples.
    """
    measured = measured_answers(evaluated.document)
    if measured is None:
        raise EdgedecError("no host found anything: there is no result to write")
    hosts: dict[str, list[TaskResult]] = {}
    for answer in evaluated.answers:
        hosts.setdefault(answer.host, []).append(answer)
    device = combined_device([answers[0].device for answers in hosts.values()])
    return Result(
        kind=measured.kind,
        created=utc_now(),
        label=label or f"fleet of {len(hosts)}",
        device=device,
        before=worst_state([answers[0].state for answers in hosts.values()]),
        after=worst_state([answer.state for answer in evaluated.answers]),
        build=measured.build,
        bundle=bundle_facts(bundle, manifest),
        threads=device.n_usable,
        workload=measured.workload,
        quantities=tuple(measured.quantities),
        lost_share=None,
        lost_share_bound=measured.bound,
        is_noisy=False,
    )


def combined_device(devices: Sequence[Mapping[str, Any]]) -> Device:
    """Returns what several devices are together."""
    cores: Counter[str] = Counter()
    for device in devices:
        cores.update(device["cores"])
    flags = [set(device["flags"]) for device in devices]
    names = ("model", "soc", "cpu", "architecture", "system", "kernel", "libc")
    return Device(
        **{name: _joined(device[name] for device in devices) for name in names},
        cores=dict(cores),
        n_usable=sum(device["n_usable"] for device in devices),
        flags=tuple(sorted(set.intersection(*flags))),
        memory_bytes=sum(device["memory_bytes"] for device in devices),
    )


def _joined(texts: Iterable[str]) -> str:
    return " + ".join(text for text in dict.fromkeys(texts) if text)[:_MAX_TEXT]


def worst_state(states: Sequence[Mapping[str, Any]]) -> DeviceState:
    """Returns the state that says the worst of each thing that one of several states says."""

    def known(name: str) -> list[Any]:
        return [state[name] for state in states if state[name] is not None]

    mhz = [value for pair in known("mhz") for value in pair]
    return DeviceState(
        governors=tuple(sorted({name for state in states for name in state["governors"]})),
        mhz=(min(mhz), max(mhz)) if mhz else None,
        max_celsius=max(known("max_celsius"), default=None),
        n_throttled=max(known("n_throttled"), default=None),
        is_throttled=any(known("is_throttled")) if known("is_throttled") else None,
        on_battery=any(state["on_battery"] for state in states),
    )
