"""The run directory: layout, atomic files, metrics log, manifest. Imports no torch."""

from surefoot.runs.directory import RunDirectory
from surefoot.runs.index import find_run, list_runs

__all__ = ["RunDirectory", "find_run", "list_runs"]
