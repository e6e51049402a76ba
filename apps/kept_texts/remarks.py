"""What verbs say at the first use of a place that keeps texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edgedec.apps.console.terminal import note
from edgedec.apps.user_paths import user_path


def note_kept(
    n_prefix_mb: int,
    store: Path | None,
    replay: Path | None,
    session: Path | None = None,
    history: Path | None = None,
) -> None:
    """Notes what will be kept in files that are used for the first time."""
    if not n_prefix_mb and not any((store, replay, session, history)):
        return
    from edgedec.apps.kept_texts.places import remember, remember_prefixes

    named = (
        ("stores", store, "8 MB, if the store is new"),
        ("replays", replay, "1,000,000 tokens"),
        ("sessions", session, "one context"),
        ("histories", history, "1,000 lines"),
    )
    remarks = [remember(kind, path, bound) for kind, path, bound in named if path is not None]
    for remark in (remember_prefixes(n_prefix_mb), *remarks):
        if remark:
            note(remark)


def remember_typing(learn: str, session: str, adapt: str = "") -> Iterator[str | None]:
    """Puts places of suggestions into the register; yields a remark for each first use."""
    from edgedec.apps.kept_texts.places import remember

    if adapt:
        yield remember("replays", user_path(adapt), "1,000,000 tokens")
    if learn:
        yield remember("learned", user_path(learn), "8 MB per tokenizer")
    if session:
        yield remember("sessions", user_path(session), "537 MB")
