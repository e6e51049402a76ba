"""From what `edgedec bench` measured to the quantities of a result file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgedec.apps.bench.jobs import MULTIPLY, READ, job_name
from edgedec.apps.bench.prompts_report import Outcome as PromptsOutcome
from edgedec.apps.bench.prompts_rows import lost_share
from edgedec.apps.bench.report import Outcome
from edgedec.apps.bench.typing_job import Typed
from edgedec.apps.bench.work import read_work
from edgedec.apps.measuring.facts import build_facts
from edgedec.apps.measuring.loop import Measurement
from edgedec.apps.results.recording import RunMeasurement, texts_sha256
from edgedec.apps.results.result import Quantity, Scalar
from edgedec.kernels import cpu


def measured_passes(outcome: Outcome) -> RunMeasurement:
    """Returns the times of passes: of a whole prefill, per decoded token, of a verify pass."""
    measurement, work = outcome.measurement, read_work(outcome.manifest.target)
    noisy = measurement.noisy()
    quantities = []
    for test in outcome.tests:
        for runtime in outcome.loaded:
            series = measurement.series.get(job_name(runtime, test))
            if series is None:
                continue
            quantities.append(
                Quantity(
                    subject=runtime,
                    name=test.name,
                    unit="ms",
                    is_lower_better=True,
                    values=tuple(1000 * sample.value for sample in series.samples),
                    is_noisy=series.name in noisy,
                    joules=series.joules,
                    work=work.of(test) if work is not None and runtime == "edgedec" else None,
                )
            )
    return RunMeasurement(
        kind="passes",
        threads=outcome.plan.n_threads,
        workload={},
        quantities=quantities,
        build=build_facts(),
        lost_share=measurement.lost_share,
        bound=measurement.bounds.lost_share,
        limits={
            "isa": cpu.active_isa(),
            "read_gb_s": measurement.series[READ].summary.maximum,
            "int8_gmac_s": measurement.series[MULTIPLY].summary.maximum,
        },
        energy_by=outcome.energy_by,
    )


def measured_prompts(outcome: PromptsOutcome) -> RunMeasurement:
    """Returns decoding speeds: of every contestant on every prompt, one for each repetition."""
    bound = outcome.plan.bounds.lost_share
    quantities = []
    for i, prompt in enumerate(outcome.prompts):
        rounds = [round_ for round_ in outcome.rounds if round_.i_prompt == i]
        share = lost_share(rounds)
        for name in [facts["name"] for facts in outcome.contestants]:
            speeds = [round_.runs[name].tokens_per_s for round_ in rounds if name in round_.runs]
            known = tuple(speed for speed in speeds if speed is not None)
            if known and len(known) == len(rounds):
                is_noisy = share is not None and share > bound
                quantities.append(Quantity(name, prompt.name, "tokens/s", False, known, is_noisy))
    settings = outcome.settings
    names = ("max_new_tokens", "template", "ignore_eos", "temperature", "seed", "learning")
    return RunMeasurement(
        kind="prompts",
        threads=outcome.plan.n_threads,
        workload={
            "texts_sha256": texts_sha256([prompt.text for prompt in outcome.prompts]),
            **{key: settings[key] for key in names},
        },
        quantities=quantities,
        build=build_facts(),
        lost_share=lost_share(outcome.rounds),
        bound=bound,
    )


def measured_typing(
    passages: Mapping[str, Sequence[Typed]],
    n_threads: int,
    workload: Mapping[str, Scalar],
    lost_share: float | None,
) -> RunMeasurement:
    """Returns what typing came to, by method: times of all keys, the rest by file.

    found: method -> what came of each file. lost_share: CPU time that others took.
    """
    quantities = []
    for method, typed in passages.items():
        per_file = {
            ("keys saved", "share", False): [1 - t.n_keys / t.n_characters for t in typed],
            ("CPU time of 1,000 characters", "ms", True): [
                1e6 * t.cpu_s / t.n_characters for t in typed
            ],
        }
        first_ms = [ms for part in typed for ms in part.first_ms]
        if first_ms:
            quantities.append(Quantity(method, "first suggestion", "ms", True, tuple(first_ms)))
        quantities += [
            Quantity(method, name, unit, is_lower_better, tuple(values))
            for (name, unit, is_lower_better), values in per_file.items()
        ]
    return RunMeasurement("typing", n_threads, workload, quantities, build_facts(), lost_share)


def measured_ttft(
    rows: Mapping[int, Mapping[str, Sequence[float]]],
    measurement: Measurement,
    n_threads: int,
    workload: Mapping[str, Scalar],
) -> RunMeasurement:
    """Returns times to first tokens. rows: length of the prompt -> subject -> times in ms."""
    is_noisy = bool(measurement.noisy())
    quantities = [
        Quantity(subject, f"ttft{n}", "ms", True, tuple(values), is_noisy)
        for n, subjects in rows.items()
        for subject, values in subjects.items()
    ]
    share, bound = measurement.lost_share, measurement.bounds.lost_share
    return RunMeasurement("ttft", n_threads, workload, quantities, build_facts(), share, bound)
