"""What the conformance suite needs of a backend, and a solve does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import numpy as np

from xvarpro.backends.interface import Backend
from xvarpro.core.struct import Array

Fixture: TypeAlias = Callable[[], tuple[Array, np.ndarray]]


class SuiteHooks:
    """A mixin for backends; every member has a default.

    Attributes
    ----------
    exemptions : tuple of xvarpro.conformance.Exemption
        Where the framework is less exact than the suite requires, and why.
    """

    exemptions: ClassVar[tuple[Any, ...]] = ()

    def array_fixtures(self) -> dict[str, Fixture]:
        """Arrays that users of the framework have and that are not plain: views, rare dtypes, parts of a graph.

        Each name has a function that makes the array and its values. The suite moves them to every backend and back.
        """
        return {}

    def settings(self) -> dict[str, object]:
        """Settings of the framework that belong to the caller: nothing that the package does may change them."""
        return {}


def hooks(backend: Backend) -> SuiteHooks:
    """The hooks of a backend, or the defaults."""
    return backend if isinstance(backend, SuiteHooks) else SuiteHooks()
