"""The README's Python blocks run, one after the other, as a reader would paste them."""

import os
import re
import signal
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import xvarpro as xv

from .support import posix

README = Path(__file__).parents[1] / "README.md"


class Writer:
    """What stands in for TensorBoard's writer where that is not installed: it refuses what is no number."""

    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        assert self.seen

    def add_scalar(self, name, value, step):
        self.seen = name, float(value), int(step)

    def add_histogram(self, name, values, step):
        self.seen = name, np.asarray(values).astype(float), int(step)


def blocks(page: Path = README) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def test_every_block_runs_and_gives_what_it_says():
    pytest.importorskip("sklearn")
    torch = pytest.importorskip("torch")
    space: dict = {}
    first, second, third = blocks()
    exec(first, space)
    assert space["fit"].success
    statistics = space["fit"].statistics()
    assert (abs(space["fit"].theta - np.array([1.0, 5.0])) < 3 * statistics.theta_stderr).all()
    exec(second, space)
    assert space["fit"].success
    assert not space["fit"].verified.dead_units
    exec(third, space)
    right = space["scores"].argmax(1) == torch.tensor(space["label"][500:])
    assert float(right.double().mean()) > 0.85


def test_it_is_short():
    assert len(README.read_text(encoding="utf-8")) < 6000


QUICK = (
    "algorithms", "constraints", "fewshot", "first_fit", "levels", "models", "parameters", "reproducibility", "sets",
    "special", "stopping", "threads", "two_levels",
)  # fmt: skip
# about a second each, or more
LONG = (
    "autoencoder", "backends", "callbacks", "certificate", "components", "deconvolution", "experiments", "index",
    "kernels", "kinetics", "layers", "long_runs", "many", "marginal", "matrices", "minibatches", "modules", "networks",
    "performance", "pipelines", "robust", "scale", "statistics", "streaming",
)  # fmt: skip
SKLEARN = sorted((README.parent / "docs" / "sklearn").glob("*.md"))


def run(page):
    """The blocks of a page one after the other, and a finite value of each `fit`."""
    space: dict = {}
    found = blocks(README.parent / "docs" / f"{page}.md")
    assert found
    for block in found:
        exec(block, space)
        if "fit" in space or block is found[-1]:
            value = space["fit"].value
            assert np.isfinite(np.asarray(value.detach() if hasattr(value, "detach") else value)).any()


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty folder to write to, and a writer for TensorBoard."""
    monkeypatch.chdir(tmp_path)
    if find_spec("tensorboard") is None:
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))


def test_blocks_of_a_page_run_one_after_the_other(elsewhere, subtests):
    for page in QUICK:
        with subtests.test(page), warnings.catch_warnings():
            if page == "two_levels":
                warnings.simplefilter("ignore", xv.DeadUnitsWarning)  # of gates
            run(page)


@posix
def test_the_script_of_long_runs_goes_on_after_sigterm(elsewhere):
    first, *_, script = blocks(README.parent / "docs" / "long_runs.md")
    space, seen = {}, []
    exec(first, space)
    whole = space["fit"]
    os.remove(space["path"])

    def end(info):
        seen.append(info.iteration)
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    space["method"]["callback"] = end
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit, match="143"):
        exec(script, space)
    assert signal.getsignal(signal.SIGTERM) is before
    exec(script, space)
    assert seen == sorted(set(seen))  # none anew
    assert space["fit"].theta.tobytes() == whole.theta.tobytes()


@pytest.mark.gallery
@pytest.mark.parametrize("page", LONG)
def test_blocks_of_a_long_page_run_one_after_the_other(page, elsewhere):
    run(page)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=() if page.stem == "regressor" else pytest.mark.gallery) for page in SKLEARN],
    ids=lambda page: page.stem,
)
def test_the_page_of_an_estimator_draws_its_picture(page, tmp_path, monkeypatch):
    """Its fits converge: a warning is an error."""
    monkeypatch.chdir(tmp_path)
    space: dict = {}
    for block in blocks(page):
        exec(block, space)
    (picture,) = tmp_path.iterdir()
    assert f"]({picture.name})" in page.read_text(encoding="utf-8")
    assert (page.parent / picture.name).exists()
