"""The documentation site: `sphinx-build -W docs build/site`. Its pages are plain Markdown."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

import surefoot

project = "surefoot"
author = "The surefoot authors"
copyright = author
version = release = surefoot.__version__

extensions = ["myst_nb", "formulas", "reference", "course", "scores", "sources"]
exclude_patterns = ["extensions", "course/notebooks"]
nb_execution_mode = "auto"  # the chapters of the course; pages without code cells are plain Markdown
nb_execution_timeout = 900
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_ipywidgets_js = {}  # the site loads nothing from elsewhere
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # a code block may be shortened with …

html_theme = "furo"
html_title = f"surefoot {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "../surefoot/dashboard/static/icon.svg"
html_math_renderer = "katex"
html_copy_source = False
html_show_sphinx = False
