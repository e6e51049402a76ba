"""Suggestions in a message that somebody writes in Thunderbird: `make test-desktop`.

EDGEDEC_PICTURES: folder for a picture of it. EDGEDEC_CODER: a bundle that suggests in the picture.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Desktop, needs_programs, wait_for

pytestmark = pytest.mark.toolkits

PREFERENCES: dict[str, str | int | bool] = {
    "mail.accountmanager.accounts": "account1",
    "mail.accountmanager.defaultaccount": "account1",
    "mail.account.account1.identities": "id1",
    "mail.account.account1.server": "server1",
    "mail.identity.id1.fullName": "Bob Smith",
    "mail.identity.id1.useremail": "bob@example.org",
    "mail.identity.id1.valid": True,
    "mail.identity.id1.compose_html": False,
    "mail.identity.id1.showSaveMsgDlg": False,
    "mail.server.server1.type": "pop3",
    "mail.server.server1.hostname": "localhost",
    "mail.server.server1.userName": "bob",
    "mail.server.server1.name": "bob@example.org",
    "mail.server.server1.login_at_startup": False,
    "mail.server.server1.check_new_mail": False,
    "mail.spotlight.firstRunDone": True,
    "mail.shell.checkDefaultClient": False,
    "mail.rights.version": 1,
    "mailnews.start_page.enabled": False,
    "datareporting.policy.dataSubmissionPolicyBypassNotification": True,
    "app.update.enabled": False,
    "network.online": False,
    "offline.startup_state": 3,  # always offline
}
MESSAGE = "to='anna@example.org',subject='Your letter',format='2'"
TEXT = "Dear Anna,\n\nThank you very mu"
PICTURE_TEXT = "Dear Anna,\n\nThank you very much for your kind letter. We look for"
PICTURE = (0, 0, 862, 300)
"""What of the screen is kept: left, top, right, bottom."""


class Message:
    """A window in which a message is written."""

    def __init__(self, desktop: Desktop) -> None:
        self._desktop, self._profile = desktop, desktop.folder / "thunderbird"
        self._profile.mkdir()
        lines = [f'user_pref("{name}", {_script(value)});' for name, value in PREFERENCES.items()]
        (self._profile / "user.js").write_text("\n".join(lines))
        profile = ("--profile", str(self._profile))
        desktop.start("thunderbird", *profile, "--new-instance", "-compose", MESSAGE)
        wait_for(self._is_in_front, "a window for a message")
        desktop.settle()

    def saved(self) -> str:
        """Returns what is in the draft after it is saved, without the signature of its folder."""
        self._desktop.key("ctrl+s")
        drafts = self._profile / "Mail" / "localhost" / "Drafts"
        wait_for(lambda: drafts.exists() and drafts.read_text().strip(), "a saved draft")
        self._desktop.settle()
        return drafts.read_text().rpartition("\n\n")[0].partition("\n\n")[2]

    def _is_in_front(self) -> bool:
        return self._desktop.title(self._desktop.front()).startswith("Write: ")


def _script(value: str | int | bool) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


@pytest.fixture
def desktop(tmp_path: Path) -> Iterator[Desktop]:
    needs_programs()
    if not shutil.which("thunderbird"):
        pytest.skip("needs packages of the system: thunderbird")
    found = Desktop(tmp_path)
    yield found
    found.close()


def test_tab_takes_what_is_shown_in_a_message(desktop: Desktop, smollm2_bundle: Path) -> None:
    desktop.start_type(smollm2_bundle, "--threads", "1")
    message = Message(desktop)
    desktop.type(TEXT, 0.1)
    wait_for(desktop.ghost, "a suggestion")
    desktop.settle()
    ghost = desktop.ghost()
    desktop.key("Tab")
    wait_for(lambda: desktop.ghost() != ghost, "an end of the suggestion")
    desktop.key("Escape")
    desktop.settle()
    assert message.saved() == TEXT + ghost


@pytest.mark.skipif("EDGEDEC_PICTURES" not in os.environ, reason="EDGEDEC_PICTURES is not set")
def test_picture(desktop: Desktop) -> None:
    desktop.start_type(Path(os.environ["EDGEDEC_CODER"]))
    Message(desktop)
    desktop.type(PICTURE_TEXT, 0.1)
    wait_for(desktop.ghost, "a suggestion")
    desktop.settle()
    path = Path(os.environ["EDGEDEC_PICTURES"]) / "type-thunderbird.png"
    desktop.picture().crop(PICTURE).save(path)
