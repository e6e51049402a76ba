"""What somebody can change while suggestions are made, for the menu that a system has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from edgedec.apps.type.settings import SettingsFile, TypeSettings
from edgedec.models.errors import ConfigError
from edgedec.models.manifest import MANIFEST_NAME

_STEP = 0.1
_PROBABILITIES = (0.1, 0.95)
"""Between which the menu changes what a suggestion needs. The settings' file has no such bounds."""

_MODEL = "model:"


@dataclass(frozen=True)
class MenuItem:
    """A line of a menu.

    key: names it, for `Menu.choose`. is_checked: None if it is no switch. children: the items of a
    submenu; exactly one is checked.
    """

    key: str
    label: str
    is_checked: bool | None = None
    children: tuple[MenuItem, ...] = ()


class Menu:
    """The settings in force, and how somebody changes them.

    Args:
        kept_in: Has the settings, and gets each change.
        bundle: Of the command line. Bundles in the same folder are the models to choose from.
        on_change: Called after each change.
        on_remark: Called with what the user should know.
    """

    def __init__(
        self,
        kept_in: SettingsFile,
        bundle: Path,
        on_change: Callable[[], None],
        on_remark: Callable[[str], None],
    ) -> None:
        self._kept_in, self._bundle = kept_in, bundle
        self._on_change, self._on_remark = on_change, on_remark
        self.settings = kept_in.read()

    @property
    def bundle(self) -> Path:
        """The model that was chosen, or else that of the command line."""
        chosen = Path(self.settings.bundle)
        return chosen if self.settings.bundle and chosen.exists() else self._bundle

    def items(self, application: str) -> tuple[MenuItem, ...]:
        """Returns the menu for the program in front, whose name is empty if unknown."""
        settings = self.settings
        here = MenuItem("here", f"Off in {application}", application.startswith(settings.off_in))
        return (
            MenuItem("on", "Suggest words", settings.is_on),
            *([here] if application else []),
            MenuItem("less", "Suggest less often"),
            MenuItem("more", "Suggest more often"),
            *([self._models()] if self._bundle.parent.is_dir() else []),
        )

    def choose(self, key: str, application: str) -> None:
        """Does what a line of the menu for a program says."""
        settings = self.settings
        match key:
            case "on":
                self._change(replace(settings, is_on=not settings.is_on))
            case "here" if application:
                self._change(_switched(settings, application))
            case "less" | "more":
                step = _STEP if key == "less" else -_STEP
                least, most = _PROBABILITIES
                new = min(max(round(settings.min_probability + step, 2), least), most)
                self._change(replace(settings, min_probability=new))
            case _ if key.startswith(_MODEL):
                self._change(replace(settings, bundle=key.removeprefix(_MODEL)))

    def _models(self) -> MenuItem:
        beside = {path.parent for path in self._bundle.parent.glob(f"*/{MANIFEST_NAME}")}
        bundles = sorted(beside | {self._bundle, self.bundle})
        models = (MenuItem(f"{_MODEL}{b}", b.stem, b == self.bundle) for b in bundles)
        return MenuItem("model", "Model", children=tuple(models))

    def _change(self, settings: TypeSettings) -> None:
        self.settings = settings
        try:
            self._kept_in.write(settings)
        except ConfigError as error:
            self._on_remark(f"{error}; the change holds until the program ends")
        self._on_change()


def _switched(settings: TypeSettings, application: str) -> TypeSettings:
    """Returns settings that have suggestions in a program if these have none, and none if some."""
    off_in = tuple(name for name in settings.off_in if not application.startswith(name))
    if off_in == settings.off_in:
        off_in = (*off_in, application)
    return replace(settings, off_in=off_in)
