"""Results of ``apus sim``, ``apus bench`` and ``apus lab``: the files of ``--json`` as dicts, and as DataFrames if pandas is installed.

>>> result = apus.results.read("w3.json")
>>> result.rows_of(bench="sim slowdown")[0]["p99_slowdown"]
>>> apus.results.frame(apus.results.read_all("results/*.json"), bench="sim slowdown")
>>> apus.results.run("sim", "run", "--workload", "w3", "--sim-ms", "20")
"""

import glob
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

__all__ = ["SCHEMA", "Curve", "Result", "ResultError", "frame", "parse", "read", "read_all", "run"]

SCHEMA = "apus-result/1"
"""The schema of the files that this module reads."""

Row = dict[str, Any]
"""One row of a result: ``transport`` and ``bench``, the settings, and the figures, whose names end in their units."""


class ResultError(ValueError):
    """A file is no result of this version."""


@dataclass(frozen=True)
class Curve:
    """A curve of a plot. Curves of one name belong to one plot."""

    name: str
    transport: str
    x_label: str
    y_label: str
    points: list[tuple[float, float]]
    x_scale: str = "linear"
    y_scale: str = "linear"


@dataclass(frozen=True)
class Result:
    """A result file: its rows, its curves, and the circumstances of the run."""

    command: str
    """The command line that reproduces the figures."""
    machine: dict[str, Any]
    """The machine of the run."""
    started: str
    """Start of the run: RFC 3339 in UTC."""
    plan: dict[str, Any] | None
    """The complete input of a simulation."""
    warnings: list[str]
    """Possible problems with the run."""
    rows: list[Row]
    """All rows."""
    curves: list[Curve]
    """Curves for plots."""
    source: str
    """The name of the file."""

    def rows_of(self, **wanted: Any) -> list[Row]:
        """The rows in which these keys have these values: ``rows_of(bench="sim slowdown", workload="w3")``."""
        return [row for row in self.rows if all(row.get(key) == value for key, value in wanted.items())]

    def frame(self, **wanted: Any) -> "pandas.DataFrame":
        """The rows of ``rows_of`` as a DataFrame. Needs pandas."""
        return _frame(self.rows_of(**wanted))


def _frame(rows: list[Row]) -> "pandas.DataFrame":
    try:
        import pandas
    except ImportError as error:
        raise ImportError("DataFrames need pandas: pip install pandas. rows_of() returns dicts") from error
    return pandas.DataFrame(rows).dropna(axis="columns", how="all")


def parse(text: str | bytes, source: str = "") -> Result:
    """Reads a result from its text. ``source`` is its name in errors."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ResultError(f"'{source}' is not a result file: not JSON ({error})") from error
    schema = value.get("schema") if isinstance(value, dict) else None
    if schema != SCHEMA:
        raise ResultError(f"'{source}' is not a result file of this version: its schema is {schema!r}, expected {SCHEMA!r}")
    try:
        curves = [
            Curve(
                curve["name"],
                curve["transport"],
                curve["x_label"],
                curve["y_label"],
                [(x, y) for x, y in curve["points"]],
                curve.get("x_scale", "linear"),
                curve.get("y_scale", "linear"),
            )
            for curve in value.get("series", ())
        ]
        return Result(
            value["command"],
            value["machine"],
            value["started"],
            value.get("plan"),
            value.get("warnings", []),
            value["rows"],
            curves,
            source,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ResultError(f"result file '{source}' is damaged: {error!r}") from error


def read(path: str | os.PathLike[str]) -> Result:
    """Reads a result file."""
    return parse(Path(path).read_bytes(), os.fspath(path))


def read_all(pattern: str) -> list[Result]:
    """Reads the files that a pattern such as ``results/*.json`` names, in the order of their names."""
    paths = sorted(glob.glob(pattern))
    if not paths:
        raise FileNotFoundError(f"no file has a name like '{pattern}'")
    return [read(path) for path in paths]


def frame(results: Iterable[Result], **wanted: Any) -> "pandas.DataFrame":
    """The rows of several results as one DataFrame, with the name of the file as ``source``. Needs pandas."""
    return _frame([{"source": result.source, **row} for result in results for row in result.rows_of(**wanted)])


def run(*arguments: str, program: str | os.PathLike[str] = "apus") -> Result:
    """Runs a command of the program ``apus`` that takes ``--json``, and reads its result.

    Raises ``subprocess.CalledProcessError``, whose ``stderr`` says why the command has failed.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "result.json"
        subprocess.run([os.fspath(program), *arguments, "--json", str(path)], check=True, capture_output=True, text=True)
        return parse(path.read_bytes(), " ".join(["apus", *arguments]))
