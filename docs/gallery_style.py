"""The look of the gallery's figures, and its square thumbnails. Sphinx-gallery calls `apply` and `scrape`."""

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.text import Text
from PIL import Image, ImageOps
from sphinx_gallery.scrapers import matplotlib_scraper

SIDE = 400  # pixels
# The panel of a script's first figure that shows the point, where it is not the first
PANELS = {
    "plot_deblurring": 1, "plot_denoising": 3, "plot_dynamic_modes": 1, "plot_evidence": 1, "plot_jax_pipeline": 1,
    "plot_kernel": 1, "plot_lifetime_image": 1, "plot_own_set": 2, "plot_perfusion": 1, "plot_ridge": 1,
    "plot_solar_cell": 1, "plot_t2_map": 1, "plot_torch_layer": 1,
}  # fmt: skip


def apply(gallery_conf, fname):
    """Matplotlib's defaults, and gallery.mplstyle on top."""
    plt.rcdefaults()
    plt.style.use(Path(__file__).with_name("gallery.mplstyle"))


def scrape(block, block_vars, gallery_conf):
    """All figures, as sphinx-gallery takes them, and next to the first one the panel that is shown in the overview."""
    images, name = block_vars["image_path_iterator"], Path(block_vars["src_file"]).stem
    if len(images) == 0 and plt.get_fignums():
        panel(
            plt.figure(plt.get_fignums()[0]), PANELS.get(name, 0), Path(images.image_path).with_name(f"{name}_square")
        )
    return matplotlib_scraper(block, block_vars, gallery_conf)


def panel(figure, number, path):
    """A panel of a figure by itself, without its title; a figure of one panel becomes a square."""
    ax, size = figure.axes[number], figure.get_size_inches()
    said = {ax.get_title(place) for place in ("left", "center", "right")} - {""}
    titles = [text for text in ax.findobj(Text) if text.get_text() in said]
    for title in titles:
        title.set_visible(False)
    if len(figure.axes) == 1:
        figure.set_size_inches(4.6, 4.6)
    figure.canvas.draw()
    part = ax.get_tightbbox().transformed(figure.dpi_scale_trans.inverted()).padded(0.05)
    figure.savefig(path.with_suffix(".png"), bbox_inches=part)
    figure.set_size_inches(size)
    for title in titles:
        title.set_visible(True)


def thumbnails(app):
    """Squares in the place of sphinx-gallery's thumbnails, which are whole figures."""
    for path in (Path(app.srcdir) / "auto_gallery").rglob("images/*_square.png"):
        thumbnail = path.parent / "thumb" / f"sphx_glr_{path.stem.removesuffix('_square')}_thumb.png"
        with Image.open(path) as image:
            ImageOps.pad(image.convert("RGB"), (SIDE, SIDE), color="white").save(thumbnail)


def setup(app):
    """Called by Sphinx."""
    app.connect("builder-inited", thumbnails, priority=900)  # after sphinx-gallery's
    return {"parallel_read_safe": True}
