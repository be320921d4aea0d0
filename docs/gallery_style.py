"""The look of the gallery's figures: sphinx-gallery calls `apply` before every script."""

from pathlib import Path

import matplotlib.pyplot as plt


def apply(gallery_conf, fname):
    """Matplotlib's defaults, and gallery.mplstyle on top."""
    plt.rcdefaults()
    plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
