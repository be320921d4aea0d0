"""array-api-strict, which has a device whose arrays refuse to meet those of the host."""

from __future__ import annotations

import array_api_strict as xp

from xvarpro_conformance.frameworks import Fixture, Hooks, usual


class StrictHooks(Hooks):
    """Of array-api-strict."""

    suite_devices = ("cpu", "device1")

    def array_fixtures(self) -> dict[str, Fixture]:
        return usual(xp.asarray, ("float32", "complex128", "int64", "bool"))
