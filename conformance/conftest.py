import pytest

from xvarpro import backends


def available(name: str) -> bool:
    if not backends.installed(name):
        return False
    try:
        return bool(backends.get(name).devices())
    except Exception:  # a framework that is installed but broken, such as CuPy without a driver
        return False


@pytest.fixture(params=[name for name in backends.known() if name != "numpy"])
def backend(request):
    if not available(request.param):
        pytest.skip(f"{request.param} is not installed here, or has no device")
    return request.param
