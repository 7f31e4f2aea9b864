"""Result files."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from apus import results

FILE: dict[str, Any] = {
    "schema": "apus-result/1",
    "command": "apus sim run",
    "machine": {"cpu": "x"},
    "started": "2026-11-28T08:02:15Z",
    "rows": [
        {"transport": "apus", "bench": "sim slowdown", "workload": "w3", "load": 0.5, "decile": "01 to 36 B", "p99_slowdown": 2.1},
        {"transport": "apus", "bench": "sim run", "workload": "w3", "goodput_gbps": None, "messages": 306},
    ],
    "series": [
        {"name": "w3", "transport": "apus", "x_label": "x", "x_scale": "log", "y_label": "y", "y_scale": "log", "points": [[3.0, 1.1], [4.0, 1.2]]}
    ],
}


@pytest.fixture(scope="session")
def program() -> str:
    """The program `apus`."""
    found = os.environ.get("APUS_TEST_PROGRAM") or shutil.which("apus")
    if not found:
        pytest.skip("skipped: results: APUS_TEST_PROGRAM does not name the program, and it is not installed")
    return found


def test_rows_and_curves_are_read(tmp_path: Path) -> None:
    path = tmp_path / "w3.json"
    path.write_text(json.dumps(FILE))
    result = results.read(path)
    assert result.rows_of(bench="sim slowdown") == FILE["rows"][:1] and result.rows_of(load=0.9) == []
    assert (result.plan, result.warnings, result.source) == (None, [], str(path))
    assert result.curves[0].points == [(3.0, 1.1), (4.0, 1.2)] and result.curves[0].x_scale == "log"
    assert [file.started for file in results.read_all(str(tmp_path / "*.json"))] == ["2026-11-28T08:02:15Z"]
    with pytest.raises(FileNotFoundError):
        results.read_all(str(tmp_path / "*.none"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "apus-result/2"}', '{"schema": "apus-result/1"}'])
def test_other_files_are_refused_by_name(text: str) -> None:
    with pytest.raises(results.ResultError, match="other.json"):
        results.parse(text, "other.json")


def test_rows_are_frames() -> None:
    pandas = pytest.importorskip("pandas", reason="skipped: frames: pandas is not installed")
    result = results.parse(json.dumps(FILE), "w3.json")
    own = result.frame(bench="sim run")
    assert isinstance(own, pandas.DataFrame)
    assert list(own.columns) == ["transport", "bench", "workload", "messages"]
    both = results.frame([result, result], bench="sim slowdown")
    assert list(both["source"]) == ["w3.json", "w3.json"] and both["p99_slowdown"].mean() == 2.1


def test_commands_are_run(program: str) -> None:
    arguments = ["sim", "run", "--topology", "single-4", "--workload", "100", "--load", "0.1", "--sim-ms", "0.1"]
    result = results.run(*arguments, program=program)
    assert result.plan is not None and result.plan["topology"] == "single-4"
    assert result.rows_of(bench="sim run")[0]["messages"] > 0
    with pytest.raises(subprocess.CalledProcessError) as caught:
        results.run("sim", "run", "--no-such-option", program=program)
    assert "--no-such-option" in caught.value.stderr


def test_the_figures_are_drawn(program: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="skipped: figures: matplotlib is not installed")
    path = Path(__file__).parent.parent / "examples" / "figures.py"
    spec = importlib.util.spec_from_file_location("figures", path)
    assert spec is not None and spec.loader is not None
    figures = importlib.util.module_from_spec(spec)
    sys.modules["figures"] = figures
    spec.loader.exec_module(figures)
    arguments = ["--out", str(tmp_path), "--run", "--apus", program, "--topology", "single-4", "--sim-ms", "0.3", "--load", "0.5"]
    arguments += ["--workloads", "w2", "--transports", "apus", "dctcp", "--priorities", "1", "8"]
    drawn = {path.name for path in figures.main(arguments)}
    assert drawn == {"slowdown-w2.svg", "curve-w2-at-50pct-p50.svg", "curve-w2-at-50pct-p99.svg", "rivals.svg", "priorities.svg"}
    assert all((tmp_path / name).read_text().startswith("<?xml") for name in drawn)
