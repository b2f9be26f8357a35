"""An environment examined before it is trained on: what is wrong, what it is like, and which flags suit it.

Each check stands alone: one that raises becomes a finding, and the others go on. Everything is seeded.
"""

from surefoot.doctor.examination import examine
from surefoot.doctor.report import Finding, Report

__all__ = ["Finding", "Report", "examine"]
