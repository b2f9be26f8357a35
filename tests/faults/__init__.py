"""What RELIABILITY promises, provoked: real processes, real signals, real disks."""

import pytest

pytest.register_assert_rewrite("tests.faults.runs")
