"""The README's Python blocks run, one after the other, as a reader would paste them."""

import re
from pathlib import Path

import numpy as np
import pytest

README = Path(__file__).parents[1] / "README.md"


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", README.read_text(), flags=re.DOTALL | re.MULTILINE)


# the second example selects gates: some end at zero, and the result says so
@pytest.mark.filterwarnings("ignore::xvarpro.DeadUnitsWarning")
def test_every_block_runs_and_gives_what_it_says(capsys):
    space: dict = {}
    first, second, third = blocks()
    exec(first, space)
    assert space["fit"].success
    np.testing.assert_allclose(np.sort(space["fit"].theta), [1.0, 5.0], rtol=1e-4)
    exec(second, space)
    assert space["fit"].value < space["fit"].trace.value[0]
    assert set(space["gradient"]) == {"A", "s"}
    exec(third, space)
    values = [
        float(line.split()[1]) for line in capsys.readouterr().out.splitlines() if line.startswith(("torch", "jax"))
    ]
    assert len(values) == 2
    np.testing.assert_allclose(values, space["fit"].value, rtol=1e-6)


@pytest.mark.parametrize(
    "page",
    [
        "autoencoder.md",
        "deconvolution.md",
        "experiments.md",
        "fewshot.md",
        "layers.md",
        "levels.md",
        "long_runs.md",
        "many.md",
        "models.md",
        "parameters.md",
        "pipelines.md",
        "reproducibility.md",
        "kernels.md",
        "kinetics.md",
        "robust.md",
        "sklearn.md",
        "special.md",
        "statistics.md",
        "stopping.md",
        "streaming.md",
        "threads.md",
    ],
)
def test_blocks_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space: dict = {}
    text = (README.parent / "docs" / page).read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    assert found
    for block in found:
        exec(block, space)
        if "fit" in space or block is found[-1]:
            value = space["fit"].value
            assert np.isfinite(np.asarray(value.detach() if hasattr(value, "detach") else value)).any()
