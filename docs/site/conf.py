"""The site of the documentation: `make docs` builds it from docs/**/*.md into build/site."""

project = "Fractile"
author = "The authors of Fractile"
html_title = "Fractile"

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["site"]

myst_heading_anchors = 4  # the anchors that GitHub makes, for links between pages
html_theme = "furo"
html_show_copyright = False
html_show_sphinx = False
