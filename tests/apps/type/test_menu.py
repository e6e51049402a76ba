"""What the menu changes, in the program and in the file of settings."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("dbus_fast", reason="needs the extra type")

from edgedec.apps.type.menu import Menu, MenuItem
from edgedec.apps.type.settings import SettingsFile, TypeSettings
from edgedec.apps.type.text_place import FieldKind


class Rig:
    """A menu over two bundles, its file, and how often it said that something changed."""

    def __init__(self, folder: Path) -> None:
        for name in ("large.edgedec", "small.edgedec"):
            (folder / name).mkdir()
            (folder / name / "manifest.json").write_text("{}")
        self.folder, self.file = folder, SettingsFile(folder / "settings")
        self.remarks: list[str] = []
        self.n_changes = 0
        self.menu = Menu(self.file, folder / "small.edgedec", self._count, self.remarks.append)

    def _count(self) -> None:
        self.n_changes += 1

    def item(self, key: str, application: str = "firefox") -> MenuItem:
        return next(item for item in self.menu.items(application) if item.key == key)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


CHOICES = [
    # keys that are chosen, and what the settings are then
    (["on"], TypeSettings(is_on=False)),
    (["on", "on"], TypeSettings()),
    (["less"], TypeSettings(min_probability=round(TypeSettings().min_probability + 0.1, 2))),
    (["more"], TypeSettings(min_probability=round(TypeSettings().min_probability - 0.1, 2))),
    (["less"] * 9, TypeSettings(min_probability=0.95)),
    (["more"] * 9, TypeSettings(min_probability=0.1)),
    (["here"], TypeSettings(off_in=(*TypeSettings().off_in, "firefox"))),
    (["here", "here"], TypeSettings()),
]


@pytest.mark.parametrize(("keys", "settings"), CHOICES)
def test_choices_are_kept(rig: Rig, keys: list[str], settings: TypeSettings) -> None:
    for key in keys:
        rig.menu.choose(key, "firefox")
    assert rig.menu.settings == rig.file.read() == settings
    assert rig.n_changes == len(keys)


def test_off_in_a_program(rig: Rig) -> None:
    assert rig.item("here").is_checked is False
    rig.menu.choose("here", "firefox")
    assert rig.item("here").is_checked
    assert not rig.menu.settings.allows("firefox", FieldKind.PROSE)
    assert rig.menu.settings.allows("thunderbird", FieldKind.PROSE)
    assert all(item.key != "here" for item in rig.menu.items(""))  # nobody knows which program


def test_models_in_the_same_folder(rig: Rig) -> None:
    children = rig.item("model").children
    assert [(child.label, child.is_checked) for child in children] == [
        ("large", False), ("small", True),
    ]  # fmt: skip
    rig.menu.choose(children[0].key, "")
    assert rig.menu.bundle == rig.folder / "large.edgedec"
    assert [child.is_checked for child in rig.item("model").children] == [True, False]


def test_chosen_model_that_has_gone(rig: Rig) -> None:
    rig.file.write(TypeSettings(bundle=str(rig.folder / "gone.edgedec")))
    menu = Menu(rig.file, rig.folder / "small.edgedec", lambda: None, rig.remarks.append)
    assert menu.bundle == rig.folder / "small.edgedec"


def test_settings_that_cannot_be_written(rig: Rig) -> None:
    (rig.folder / "settings").write_text("a file, not a folder")
    rig.menu.choose("on", "")
    assert not rig.menu.settings.is_on
    (remark,) = rig.remarks
    assert "cannot write" in remark
    assert "until the program ends" in remark
