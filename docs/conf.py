"""The site, built offline by `sphinx-build -W --keep-going docs docs/_build`: warnings and broken links are errors."""

import html
import inspect
import os
import re
import sys
import textwrap
from importlib.metadata import metadata
from pathlib import Path

from docutils.nodes import Admonition, paragraph
from numpydoc.xref import DEFAULT_LINKS

import xvarpro

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for gallery_style
# programs of the gallery run once and need no optimised code
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")


def exported(module, name):
    """Full name and value of all that a module, and what modules it exports, have for their users."""
    for key in module.__all__:
        value = getattr(module, key)
        if inspect.ismodule(value):
            yield from exported(value, f"{name}.{key}")
        else:
            yield f"{name}.{key}", value


PUBLIC = dict(exported(xvarpro, "xvarpro"))

project = "xvarpro"
version = release = xvarpro.__version__
extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "gallery_style",
]
exclude_patterns = ["_build", "gallery"]
templates_path = ["_templates"]
default_role = "py:obj"  # `Box` in a docstring is a link where there is such a name, and code where there is none

myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say what is taken, with shapes
# what scikit-learn adds to its estimators
autodoc_default_options = {"exclude-members": "set_fit_request, set_predict_request, set_score_request"}
numpydoc_show_class_members = False
numpydoc_xref_param_type = True  # `Problem` as the type of a parameter is a link
numpydoc_xref_ignore = "all"
numpydoc_xref_aliases = {word: word for word in DEFAULT_LINKS}  # into other sites: left as words
numpydoc_xref_aliases |= {name.rpartition(".")[2]: name for name, it in PUBLIC.items() if isinstance(it, type)}

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "reset_modules": ("gallery_style.apply",),
    "image_scrapers": ("gallery_style.scrape",),
    "subsection_order": [
        f"gallery/{field}"
        for field in ("spectroscopy", "imaging", "factorisation", "learning", "signals", "statistics", "scale")
    ],
    "backreferences_dir": "reference/generated/examples",
    "doc_module": ("xvarpro",),
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_signature": False,
    "ignore_repr_types": "matplotlib",  # figures are shown, not printed
    "min_reported_time": 1e9,
}

html_theme = "pydata_sphinx_theme"
html_title = "xvarpro"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "xvarpro"},
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "footer_start": [],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}

REPOSITORY = dict(entry.split(", ") for entry in metadata("xvarpro").get_all("Project-URL", ())).get("Repository")


def leave(app, docname, source):
    """Links that a repository's web page resolves: to scripts of the gallery, and out of docs/.

    The first lead to what Sphinx makes of the script; the others to the repository, or, where the package does not say
    where that is, they name the file.
    """
    here = (HERE / docname).parent

    def link(match):
        path = (here / match["path"]).resolve()
        if path.is_relative_to(HERE / "gallery"):
            script = path.relative_to(HERE / "gallery").with_suffix(".rst").as_posix()
            return f"[{match['text']}](/auto_gallery/{script})"
        if path.is_relative_to(HERE) or not path.exists():
            return match[0]
        name = path.relative_to(HERE.parent).as_posix()
        return f"[{match['text']}]({REPOSITORY}/blob/main/{name})" if REPOSITORY else f"{match['text']} (`{name}`)"

    source[0] = re.sub(r"\[(?P<text>[^]]+)\]\((?P<path>[^)#:]+)\)", link, source[0])


def by_last_name(app, env, node, contnode):
    """`Box` is xvarpro.sets.Box everywhere, `Result.save` a method: the public name that ends so, the shortest."""
    if node.get("refdomain") != "py":
        return None
    domain = env.get_domain("py")
    target = node["reftarget"].removeprefix("xv.")
    kinds = ("class", "exception", "function")  # a lone `lower` is a parameter, and no attribute of another class
    found = sorted(
        (name.count("."), name)
        for name, entry in domain.objects.items()
        if name.endswith("." + target) and not entry.aliased and ("." in target or entry.objtype in kinds)
    )
    if not found or (len(found) > 1 and found[0][0] == found[1][0]):
        return None
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", found[0][1], node, contnode)


def plain(app, what, name, obj, options, lines):
    """Docstrings mark code, names, sections and lists; stars, bars and underscores in their text are no markup.

    The head of the Notes, lines ``Name : text``, is a list of fields.
    """
    notes = len(lines)
    for i, line in enumerate(lines):
        if line == "Notes":
            notes = i
        if i > notes:
            line = re.sub(r"^([A-Z][A-Za-z ]*) : (?=\S)", r":\1: ", line)
        if not line.lstrip().startswith((">>>", "...")):
            parts = re.split(r"(``.+?``|`[^`]+`)", line)
            parts[::2] = [re.sub(r"(\*|\||_(?!\w))", r"\\\1", part) for part in parts[::2]]
            lines[i] = "".join(parts)


def public_bases(app, name, obj, options, bases):
    """A class derives, for its readers, from the nearest classes that have a page, or are of another package."""
    for i, base in enumerate(bases):
        if base.__module__.startswith("xvarpro."):
            near = (cls for cls in base.__mro__ if cls in PUBLIC.values() or not cls.__module__.startswith("xvarpro."))
            bases[i] = next(near)
    bases[:] = dict.fromkeys(bases)


def without_private_fields(app, what, name, obj, options, signature, returned):
    """Fields that only the package passes are no arguments."""
    return signature and re.sub(r", _\w+=[^,)]+", "", signature), returned


def described(app, page, template, context, doctree):
    """What a search engine shows: the first paragraph, and of the first page a title that says what it is."""
    found = doctree.findall(paragraph) if doctree else ()
    texts = (each.astext() for each in found if not isinstance(each.parent, Admonition))
    text = next((text for text in texts if not text.startswith("Bases: ")), "")
    if text:
        text = html.escape(textwrap.shorten(text, 160, placeholder=" ..."))
        context["metatags"] = context.get("metatags", "") + f'<meta name="description" content="{text}" />'
    if page == "index":
        context["title"] = "Constrained variable projection"


def setup(app):
    """Called by Sphinx."""
    app.connect("html-page-context", described)
    app.connect("source-read", leave)
    app.connect("autodoc-process-docstring", plain, priority=400)  # before numpydoc
    app.connect("autodoc-process-bases", public_bases)
    app.connect("autodoc-process-signature", without_private_fields)
    app.connect("missing-reference", by_last_name)
