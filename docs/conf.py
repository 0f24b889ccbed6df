"""The documentation site: `make docs` builds it into docs/_build/html."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent / "src")]

from palimpsest import __version__  # noqa: E402

project = "palimpsest"
author = "the palimpsest authors"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "api_pages",
    "mathml",
    "outside_links",
]
exclude_patterns = ["_build", "results"]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
suppress_warnings = ["myst.strikethrough"]

html_theme = "furo"
html_title = f"palimpsest {__version__}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_show_sphinx = False
html_math_renderer = "mathml"

autodoc_typehints = "none"  # docstrings state shapes, which annotations cannot
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
python_use_unqualified_type_names = True
napoleon_custom_sections = ["Source", "Legend", ("Class attributes", "params_style")]
