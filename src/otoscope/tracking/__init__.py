"""Runs told to an experiment tracker such as MLflow: from the run directory alone, as often as one likes.

The tracker's library works in a process of its own, so that it may hang, or fill memory, at nobody's cost.
A run is found again by its id: what is told of it twice is told once.

::

    process     the process that tells a tracker of runs, as this one sees it
    __main__    that process; where the tracker is chosen
    logged      what of a run is told, in names and values
    tracker     what a tracker has to be able to do
    mlflow      MLflow
"""

from otoscope.tracking.process import SECONDS, NotTracked, Tracked, require, track, track_and_tell

__all__ = ["SECONDS", "NotTracked", "Tracked", "require", "track", "track_and_tell"]
