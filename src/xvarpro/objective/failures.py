"""What a user's model function raises, as an error that names it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from xvarpro.backends import Backend
from xvarpro.errors import BackendNotInstalledError, ModelError, ProblemError

ADVICE = "Inside it, compute with xp = xv.array_namespace(theta) and take arrays from `data` only"


@contextmanager
def model_failures(
    backend: Backend,
    advice: str = ADVICE,
    values: tuple[type[Exception], ...] = (),
    what: str = "a model function",
    argument: str = "theta",
) -> Iterator[None]:
    """Turn what a user's function, `what`, raises inside into a `ModelError` that ends with `advice`.

    Exceptions of the types in `values` pass: they are taken for NaN further up.
    """
    try:
        yield
    except values:
        raise
    except (ProblemError, ModelError, BackendNotInstalledError):
        raise
    except Exception as error:
        if _called_numpy(error):
            raise ModelError(
                f"{what} must compute with functions of its arrays' namespace; got a call of NumPy's on an array that "
                f"the {backend.name} backend differentiates or compiles. In the place of np.exp, write xp.exp with "
                f"xp = xv.array_namespace({argument})"
            ) from error
        if any(dates in str(error) for dates in ("DateTime64", "<M8[")):
            advice = "Dates are no numbers: pass the time since one, such as (t - t.min()) / np.timedelta64(1, 'h')"
        if "Inference tensors" in str(error):
            advice = (
                "PyTorch takes no derivatives through arrays that were made inside torch.inference_mode(), such as one "
                f"that {what} finds outside of its arguments: call solve outside of it, or inside torch.no_grad()"
            )
        raise ModelError(
            f"{what} failed on the {backend.name} backend: {type(error).__name__}: {error}. {advice}"
        ) from error


def _called_numpy(error: Exception) -> bool:
    """Whether NumPy asked an array for one of its protocols, `__array__` or `__array_ufunc__`, and was refused."""
    return "__array_" in f"{error} {traceback.extract_tb(error.__traceback__)[-1].name}"
