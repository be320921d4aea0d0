"""What errors of frameworks mean to the author of a model, which they are raised in."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from xvarpro.backends.interface import Backend
from xvarpro.errors import BackendNotInstalledError, ModelError, ProblemError

ADVICE = "Inside it, compute with xp = xv.array_namespace(theta) and take arrays from `data` only"


@contextmanager
def model_failures(
    backend: Backend,
    advice: str = ADVICE,
    values: Callable[[], tuple[type[Exception], ...]] = tuple,
    what: str = "a model function",
    argument: str = "theta",
) -> Iterator[None]:
    """Turn what a user's function, `what`, raises inside into a `ModelError` that ends with `advice`.

    Exceptions of the types that `values` returns pass: they are taken for NaN further up.
    """
    try:
        yield
    except values():
        raise
    except (ProblemError, ModelError, BackendNotInstalledError):
        raise
    except Exception as error:
        if _met_numpy(error, backend):
            raise ModelError(
                f"{what} must compute with functions of its arrays' namespace; got a call or an array of NumPy's next "
                f"to one that the {backend.name} backend differentiates or compiles. Take arrays from `data` "
                f"only. In the place of np.exp, write xp.exp with xp = xv.array_namespace({argument}). A function of "
                f"SciPy's goes into xv.special.external(fun, {argument}): fun reads NumPy arrays of its own, not those "
                "of data"
            ) from error
        for name, said in (("jax", "valid JAX type|an abstract array"), ("torch", "be Tensor|expected Tensor")):
            if name != backend.name and re.search(said, str(error)):  # which may print all of an array
                raise ModelError(
                    f'Pass backend="{name}", since {what} calls functions of {name}; got arrays of the {backend.name} '
                    f"backend, that of theta0 or backend=. Or compute with xp = xv.array_namespace({argument})"
                ) from error
        if any(dates in str(error) for dates in ("DateTime64", "<M8[")):
            advice = "Dates are no numbers: pass the time since one, such as (t - t.min()) / np.timedelta64(1, 'h')"
        if advice is ADVICE and any(word in str(error) for word in ("shape", "dimension")):
            advice += (
                ". M is called once, with all of data, and returns all rows, (m, n): a function of one sample is "
                "mapped over them by the vmap of its framework"
            )
        if re.search("Long|long int|int32|int64|Integers", str(error)) and not re.search("index|indices", str(error)):
            advice += ". Integers of data stay integers: of what is computed with pass x.astype(float) or x.double()"
        if ".forward() takes" in str(error):
            advice = "A module is given as theta0, and M calls it: M = lambda net, x: net(x)"
        elif "positional argument" in str(error):
            advice = "M is called as M(theta, data), and R as R(theta)" if what == "a model function" else advice
            advice += ". Functions of the standard take options by name: xp.stack([a, b], axis=-1)"
        if "Inference tensors" in str(error):
            advice = (
                "PyTorch takes no derivatives through arrays that were made inside torch.inference_mode(), such as one "
                f"that {what} finds outside of its arguments: call solve outside of it, or inside torch.no_grad()"
            )
        if "'dict' object is not callable" in str(error):
            advice = "Of a module that was read without it, theta is a dict: xv.Result.load(path, like=net)"
        elif advice is ADVICE and _is_own(error):
            advice = "It comes from lines of your own, which the traceback has"
        raise ModelError(
            f"{what} failed on the {backend.name} backend: {type(error).__name__}: {error}. {advice}"
        ) from error


def _is_own(error: Exception) -> bool:
    """Whether no library raised it: a key that is missing, or a line that says ``raise`` outside of packages."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    library = "-packages" in frame.f_code.co_filename or frame.f_globals.get("__name__", "").startswith("xvarpro.")
    said = linecache.getline(frame.f_code.co_filename, line).lstrip()
    return isinstance(error, KeyError) or (said.startswith("raise") and not library)


def _met_numpy(error: Exception, backend: Backend) -> bool:
    """Whether NumPy was refused a protocol, `__array__` or `__array_ufunc__`, or a framework refused NumPy's array."""
    asked = f"{error} {traceback.extract_tb(error.__traceback__)[-1].name}"
    return "__array_" in asked or (
        backend.name != "numpy" and "numpy.ndarray" in asked and "unhashable type" not in asked
    )
