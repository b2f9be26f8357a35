"""docs/diagnose.md says what benchmarks/diagnosis.py found."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FOUND = json.loads((ROOT / "benchmarks" / "results" / "diagnosis.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "diagnose.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("diagnosis_benchmark", ROOT / "benchmarks" / "diagnosis.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_the_page_has_the_table_and_names_every_failure_and_the_rules(script):
    assert "\n".join(script.table(FOUND)) in PAGE
    assert all(line in PAGE for line in script.failures(FOUND))
    assert f"`{FOUND['rules']}`" in PAGE


def test_a_run_is_right_if_the_first_advice_is_an_expected_one():
    for name, outcome in FOUND["runs"].items():
        found, expected = outcome["found"], outcome["expected"]
        assert outcome["right"] == (found[0] in expected if found else not expected), name
        assert bool(outcome["expected"]) == outcome["group"].startswith("made ill"), name


def test_results_of_other_rules_are_not_mixed_in(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "RESULTS", tmp_path / "results.json")
    now = script.rules_version()
    assert script.read_results() == {"rules": now, "runs": {}}
    stored = {"rules": now, "runs": FOUND["runs"]}
    script.RESULTS.write_text(json.dumps(stored))
    assert script.read_results() == stored
    script.RESULTS.write_text(json.dumps(stored | {"rules": "older"}))
    assert script.read_results() == {"rules": now, "runs": {}}
