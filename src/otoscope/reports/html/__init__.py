"""The page: one HTML file that opens offline, with a run's numbers, its charts and every sample.

::

    page        runs -> HTML: render_html()
    ├── words       both languages' texts, marked so that the page can switch between them
    ├── numbers     how numbers are written
    ├── tables      the rows of the tables
    ├── headline    what stands at the top, and why a number is not available
    ├── method      what was asked, sent and observed
    ├── comparing   two runs -> their comparison, or why there is none
    ├── rows        outcomes -> what the page knows of each sample
    └── clips       where a clip is found from the page, or its bytes
    *.html.j2   the templates; style.css; the page's scripts, in the order of page.SCRIPTS
"""

from otoscope.reports.html.clips import Clips
from otoscope.reports.html.comparing import compared
from otoscope.reports.html.page import render_html
from otoscope.reports.html.rows import Book

__all__ = ["Book", "Clips", "compared", "render_html"]
