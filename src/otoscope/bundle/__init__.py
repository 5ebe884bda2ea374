"""A run in one file to share: without hosts, paths and user names, and where asked without the data's texts.

::

    exporting    export_bundle(): reads a run, writes the file, and checks that its numbers are the same
    scrubbing    names of machines, folders and people, in whatever a run stores
    withholding  texts in place of the data's and of those that quote them, with the same numbers
"""

from otoscope.bundle.exporting import Bundled, export_bundle

__all__ = ["Bundled", "export_bundle"]
