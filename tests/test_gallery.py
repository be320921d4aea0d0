"""The examples of the gallery run to their ends, without a warning, and draw something."""

import runpy
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
import matplotlib
from matplotlib import pyplot as plt

EXAMPLES = sorted((Path(__file__).parents[1] / "docs" / "gallery").rglob("plot_*.py"))


@pytest.mark.gallery
@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_runs_and_draws(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plt, "show", lambda: None)
    with matplotlib.rc_context({"backend": "agg"}):
        before = dict(matplotlib.rcParams)
        try:
            runpy.run_path(str(path), run_name="__main__")
            figures = [plt.figure(number) for number in plt.get_fignums()]
            assert dict(matplotlib.rcParams) == before  # the site sets the style of all figures
            assert figures
            for figure in figures:
                assert figure.axes
                assert all(ax.has_data() for ax in figure.axes)
                figure.canvas.draw()
        finally:
            plt.close("all")
