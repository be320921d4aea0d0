"""The README's Python blocks run, one after the other, as a reader would paste them."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

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


@pytest.mark.parametrize(
    "page",
    [
        "autoencoder.md",
        "backends.md",
        "callbacks.md",
        "constraints.md",
        "deconvolution.md",
        "experiments.md",
        "fewshot.md",
        "first_fit.md",
        "layers.md",
        "levels.md",
        "long_runs.md",
        "many.md",
        "matrices.md",
        "minibatches.md",
        "models.md",
        "modules.md",
        "networks.md",
        "parameters.md",
        "pipelines.md",
        "reproducibility.md",
        "kernels.md",
        "kinetics.md",
        "robust.md",
        "scale.md",
        "special.md",
        "statistics.md",
        "stopping.md",
        "streaming.md",
        "threads.md",
        pytest.param("two_levels.md", marks=pytest.mark.filterwarnings("ignore::xvarpro.DeadUnitsWarning")),  # of gates
    ],
)
def test_blocks_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if find_spec("tensorboard") is None:
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    space: dict = {}
    found = blocks(README.parent / "docs" / page)
    assert found
    for block in found:
        exec(block, space)
        if "fit" in space or block is found[-1]:
            value = space["fit"].value
            assert np.isfinite(np.asarray(value.detach() if hasattr(value, "detach") else value)).any()


@pytest.mark.parametrize("page", sorted((README.parent / "docs" / "sklearn").glob("*.md")), ids=lambda page: page.stem)
def test_the_page_of_an_estimator_draws_its_picture(page, tmp_path, monkeypatch):
    """Its fits converge: a warning is an error."""
    monkeypatch.chdir(tmp_path)
    space: dict = {}
    for block in blocks(page):
        exec(block, space)
    (picture,) = tmp_path.iterdir()
    assert f"]({picture.name})" in page.read_text(encoding="utf-8")
    assert (page.parent / picture.name).exists()
