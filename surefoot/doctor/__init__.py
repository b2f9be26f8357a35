"""Examines an environment before training: what is wrong with it, what it is like, and which flags suit it.

Checks are independent: one that raises becomes a finding, and the others continue. Everything is seeded.
"""

from surefoot.doctor.examination import examine
from surefoot.doctor.report import Finding, Report

__all__ = ["Finding", "Report", "examine"]
