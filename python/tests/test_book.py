"""The samples of the page of the book and of the README run."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import environment

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "docs" / "python.md", ROOT / "python" / "README.md"]

SAMPLES = [
    pytest.param(sample, id=f"{page.name}-{number}")
    for page in PAGES
    if page.exists()
    for number, sample in enumerate(re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE))
]


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_sample_runs(sample: str, tmp_path: Path) -> None:
    if "import grpc" in sample:
        pytest.importorskip("grpc", reason="skipped: gRPC: grpcio is not installed")
    ran = subprocess.run([sys.executable, "-c", sample], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr


def test_the_comparison_runs() -> None:
    program = ROOT / "python" / "examples" / "compare.py"
    arguments = [sys.executable, str(program), "--seconds", "0.05", "--awaits", "10", "--json", "--only", "UDP"]
    ran = subprocess.run(arguments, env=environment(), capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)
    assert "apus, UDP" in figures["p50_us"] and "apus.aio on both sides, UDP" in figures["per_second"]
