"""Goes through the problems, every setting in turn on each of them, and keeps the samples.

Settings that draft or switch have an engine each, so that none finds in its drafters or its draft
model what another one just wrote; they keep what they learn from problem to problem, as in use. The
KV cache of the target model is empty before every sample. The order of the settings turns around
from problem to problem. Where several problems are answered at a time, settings come one after the
other, each over all problems; a single setting computes what prompts begin with in common once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace

from edgedec.apps.console.terminal import note
from edgedec.apps.evaluation.samples import Sample, SampleFile, Setting
from edgedec.apps.evaluation.work import Work
from edgedec.models.errors import ConfigError, EdgedecError

Report = Callable[[str, int, int], None]


def walk(
    work: Work,
    settings: Sequence[Setting],
    file: SampleFile,
    report: Report,
    parallel: int | None = None,
) -> BaseException | None:
    """Takes the samples that ``file`` does not hold; returns what ended it early, if anything did.

    parallel: how many are taken at a time; the work chooses when None.

    Raises:
        ConfigError: A setting makes no sense here.
    """
    names = work.names
    missing = [
        [setting for setting in settings if (setting.fingerprint, name) not in file.held.samples]
        for name in names
    ]
    if n_held := sum(len(settings) - len(some) for some in missing):
        note(f"{n_held} of {len(names) * len(settings)} samples are there already")
    try:
        needed = [setting for setting in settings if any(setting in some for some in missing)]
        for i, setting in enumerate(needed):
            report("warm-up", i, len(needed))
            work.warm_up(setting)
        n_at_once = work.n_at_once(needed, parallel) if needed else 1
        if n_at_once > 1:
            _take_beside(work, missing, file, report, n_at_once)
        else:
            _take_in_turn(work, missing, file, report)
    except ConfigError:
        raise
    except (KeyboardInterrupt, EdgedecError) as error:
        return error
    return None


def _take_in_turn(
    work: Work, missing: Sequence[Sequence[Setting]], file: SampleFile, report: Report
) -> None:
    names = work.names
    for i, some in enumerate(missing):
        report("problem", i, len(names))
        lines = []
        for setting in some if i % 2 == 0 else reversed(some):
            sample = work.take(setting, i)
            file.add(sample)
            lines.append(sample_line(setting, sample))
        if lines:
            note(f"[{i + 1}/{len(names)}] {names[i]}: {'; '.join(lines)}")


def _take_beside(
    work: Work,
    missing: Sequence[Sequence[Setting]],
    file: SampleFile,
    report: Report,
    n_at_once: int,
) -> None:
    """Takes ``n_at_once`` samples of a setting at a time, and keeps them as they are done."""
    names = work.names
    for setting in {setting.fingerprint: setting for some in missing for setting in some}.values():
        places = [i for i, some in enumerate(missing) if setting in some]
        with ThreadPoolExecutor(n_at_once) as pool:
            jobs = {pool.submit(work.take, setting, i): i for i in places}
            try:
                for n_done, job in enumerate(as_completed(jobs)):
                    report("problem", n_done, len(places))
                    file.add(sample := replace(job.result(), n_at_once=n_at_once))
                    line = sample_line(setting, sample)
                    note(f"[{n_done + 1}/{len(places)}] {names[jobs[job]]}: {line}")
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                work.stop()
                raise


def sample_line(setting: Setting, sample: Sample) -> str:
    """Returns what became of a sample, for a person who waits."""
    if "nats" in sample.metrics:
        return f"{setting.label} {sample.metrics['nats']:.3f} nats, {sample.seconds:.1f} s"
    outcome = "passed" if sample.reason is None else f"failed ({sample.reason})"
    return f"{setting.label} {outcome}, {sample.n_new_tokens} tokens, {sample.seconds:.1f} s"
