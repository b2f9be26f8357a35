"""Run directories: layout, atomic files, logs, manifest, and reading a run. Imports no torch."""

from surefoot.runs.catalog import Catalog
from surefoot.runs.directory import RunDirectory
from surefoot.runs.index import find_run, list_runs
from surefoot.runs.run import Run

__all__ = ["Catalog", "Run", "RunDirectory", "find_run", "list_runs"]
