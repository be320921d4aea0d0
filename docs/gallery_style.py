"""The look of the gallery's figures, and its square thumbnails. Sphinx-gallery calls `apply` and `scrape`."""

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.transforms import Bbox
from PIL import Image, ImageOps
from sphinx_gallery.scrapers import matplotlib_scraper

SIDE = 400  # pixels
# What of a script's pictures shows the point: the figure, and its panels; all of the first figure where nothing is said
SHOWN = {
    "plot_archetypes": (0, (0,)),
    "plot_autoencoder": (0, (0,)),
    "plot_boundary_layer": (0, (0,)),
    "plot_compare": (0, (0,)),
    "plot_deblurring": (0, (0, 1)),
    "plot_deconvolution": (0, (0,)),
    "plot_denoising": (0, (2,)),
    "plot_dictionary": (0, (0,)),
    "plot_dynamic_modes": (0, (1,)),
    "plot_evidence": (0, (1,)),
    "plot_jax_pipeline": (0, (1,)),
    "plot_kernel": (0, (1,)),
    "plot_kinetics": (0, (0,)),
    "plot_lifetime_image": (0, (1,)),
    "plot_magnetic_resonance": (0, (0,)),
    "plot_nmf": (0, (0,)),
    "plot_own_set": (0, (2,)),
    "plot_perfusion": (0, (1,)),
    "plot_predator_prey": (0, (0,)),
    "plot_profile": (0, (0,)),
    "plot_ridge": (0, (1,)),
    "plot_solar_cell": (0, (1,)),
    "plot_sparse_identification": (0, (0,)),
    "plot_spectra_series": (0, (0,)),
    "plot_stable_poles": (0, (0,)),
    "plot_streaming": (0, (0,)),
    "plot_t2_map": (0, (1,)),
    "plot_torch_layer": (0, (1,)),
}


def apply(gallery_conf, fname):
    """Matplotlib's defaults, and gallery.mplstyle on top."""
    plt.rcdefaults()
    plt.style.use(Path(__file__).with_name("gallery.mplstyle"))


def scrape(block, block_vars, gallery_conf):
    """All figures, as sphinx-gallery takes them, and next to them the part that is shown in the overview."""
    images, source = block_vars["image_path_iterator"], Path(block_vars["src_file"]).stem
    number, panels = SHOWN.get(source, (0, ()))
    for i, known in enumerate(plt.get_fignums(), start=len(images)):
        if i == number:
            shown(plt.figure(known), panels, Path(images.image_path).with_name(f"{source}_square.png"))
    return matplotlib_scraper(block, block_vars, gallery_conf)


def shown(figure, panels, path):
    """A figure's panels alone; a figure of one panel becomes a square, so that its letters can be read."""
    before = figure.get_size_inches()
    if len(figure.axes) == 1:
        figure.set_size_inches(3.4, 3.4)
    figure.canvas.draw()
    boxes = [figure.axes[i].get_tightbbox() for i in panels]
    part = Bbox.union(boxes).transformed(figure.dpi_scale_trans.inverted()).padded(0.05) if boxes else None
    figure.savefig(path, bbox_inches=part)
    figure.set_size_inches(before)


def thumbnails(app):
    """Squares in the place of sphinx-gallery's thumbnails, which are whole figures."""
    for path in (Path(app.srcdir) / "auto_gallery").glob("*/images/*_square.png"):
        thumbnail = path.parent / "thumb" / f"sphx_glr_{path.stem.removesuffix('_square')}_thumb.png"
        with Image.open(path) as image:
            ImageOps.pad(image.convert("RGB"), (SIDE, SIDE), color="white").save(thumbnail)


def setup(app):
    """Called by Sphinx."""
    app.connect("builder-inited", thumbnails, priority=900)  # after sphinx-gallery's
    return {"parallel_read_safe": True}
