"""The suite that a backend has to pass: the package xvarpro-conformance, under a shorter name."""

try:
    from xvarpro_conformance import (
        Check,
        Exemption,
        Hooks,
        Inapplicable,
        Measured,
        Target,
        check,
        run,
        targets,
    )
except ModuleNotFoundError as error:
    if error.name != "xvarpro_conformance":
        raise
    raise ImportError(
        "xvarpro.conformance needs the package 'xvarpro-conformance', which is not installed: "
        "pip install xvarpro-conformance, or in a clone pip install ./conformance"
    ) from None

__all__ = ["Check", "Exemption", "Hooks", "Inapplicable", "Measured", "Target", "check", "run", "targets"]
