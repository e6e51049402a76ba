"""What `edgedec doctor` says of a device whose graphs run in one of several places."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from edgedec.models.installation import package_version
from edgedec.targets import device_target, missing_places


@dataclass(frozen=True)
class PlacesReport:
    """Reads and words such a report.

    package: whose version is meant. places: what the package calls them. place: what doctor calls
    one that is missing.
    """

    target: str
    package: str
    places: str
    place: str

    def report(self, here: Collection[str] | None) -> dict[str, Any]:
        """Returns version and places, each with what brings it, None if it is ``here``.

        here: None if the package is not, so that nobody knows of the places.
        """
        places = {} if here is None else missing_places(device_target(self.target), here)
        return {"version": package_version(self.package), self.places: places}

    def line(self, facts: dict[str, Any]) -> str:
        """Returns what people read of a report."""
        here = ", ".join(name for name, install in facts[self.places].items() if install is None)
        return f"{facts['version'] or 'missing'}: {self.places} {here or 'none'}"

    def installs(self, facts: dict[str, Any]) -> dict[str, str]:
        """Returns what is missing, and the command that brings it."""
        return {f"{self.place} {name}": how for name, how in facts[self.places].items() if how}
