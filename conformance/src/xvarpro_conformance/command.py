"""The suite by pytest: what ``xvarpro conformance`` hands over to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# neither the configuration nor the cache of the folder that it is called in
ALONE = ("-c", str(HERE / "command.ini"), "--noconftest", "-p", "no:cacheprovider")


def main(arguments: Sequence[str] = ()) -> int:
    """Run the suite with options of `plugin` and of pytest; returns pytest's exit status."""
    return int(pytest.main([*ALONE, "-p", f"{__package__}.plugin", str(HERE / "test_suite.py"), *arguments]))
