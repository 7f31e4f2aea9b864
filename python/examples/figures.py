"""Draws the figures of docs/simulator.md with matplotlib, from result files of `apus sim` or from runs of it.

    python figures.py --out figures --run                      # some minutes of CPU: runs `apus sim`
    python figures.py --out figures results/*.json             # from files of `apus sim run` and `apus sim sweep`
    python figures.py --out figures --run --topology single-8 --sim-ms 2   # a look at it

Needs matplotlib (pip install matplotlib).
"""

import argparse
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot  # noqa: E402

from apus import results  # noqa: E402
from apus.results import Result, Row  # noqa: E402

WORKLOADS = ("w1", "w2", "w3", "w4", "w5")
TRANSPORTS = ("apus", "pfabric", "dctcp", "tcp-newreno", "srpt-oracle")
PRIORITIES = (1, 2, 4, 8)


def decile(row: Row) -> str:
    """The longest message of a tenth, from a text like `03 to 110 B`."""
    return str(row["decile"]).partition(" to ")[2]


def slowdowns(files: Iterable[Result], out: Path) -> list[Path]:
    """Slowdown of each tenth of the messages, a figure for each workload (section Accuracy)."""
    drawn = []
    rows = [row for file in files for row in file.rows_of(bench="sim slowdown", transport="apus") if "homa.priorities" not in row]
    for workload, own in itertools.groupby(sorted(rows, key=key_of), key=lambda row: row["workload"]):
        # The last file of a workload counts.
        last = {row["decile"]: row for row in own}
        tenths = [last[name] for name in sorted(last)]
        figure, axes = pyplot.subplots()
        labels = [decile(row) for row in tenths]
        for share, marker in (("p50", "o"), ("p99", "s")):
            values = [row[f"{share}_slowdown"] for row in tenths]
            intervals = [row.get(f"{share}_interval") or 0 for row in tenths]
            axes.errorbar(labels, values, intervals, marker=marker, capsize=3, label=share)
        axes.set(xlabel="longest message of the tenth", ylabel="slowdown", yscale="log", title=f"{workload} at {100 * tenths[0]['load']:.0f} %")
        drawn.append(finish(figure, axes, out / f"slowdown-{workload}.svg"))
    return drawn


def key_of(row: Row) -> tuple[str, str]:
    """The order of rows in a figure."""
    return str(row["workload"]), str(row["decile"])


def curves(files: Iterable[Result], out: Path) -> list[Path]:
    """Slowdown against the length of messages, a figure for each name of curves."""
    drawn = []
    named: dict[str, list[results.Curve]] = {}
    for file in files:
        for curve in file.curves:
            named.setdefault(curve.name, []).append(curve)
    for name, own in named.items():
        figure, axes = pyplot.subplots()
        for curve in own:
            axes.plot(*zip(*curve.points, strict=True), label=curve.transport)
        axes.set(xlabel=own[0].x_label, ylabel=own[0].y_label, xscale=own[0].x_scale, yscale=own[0].y_scale, title=name)
        drawn.append(finish(figure, axes, out / f"curve-{name.replace(' %', 'pct').replace(', ', '-').replace(' ', '-')}.svg"))
    return drawn


def against(files: Iterable[Result], key: str, out: Path, name: str) -> list[Path]:
    """The 99th percentile of the shortest and of the longest tenth against a value (sections Rivals and Priority levels)."""
    rows = [row for file in files for row in file.rows_of(bench="sim slowdown") if key in row]
    values = list(dict.fromkeys(row[key] for row in rows))
    if len(values) < 2:
        return []
    figure, axes = pyplot.subplots()
    for workload in sorted({row["workload"] for row in rows}):
        for tenth, style in (("01", "-"), ("10", "--")):
            points: dict[Any, Any] = {row[key]: row["p99_slowdown"] for row in rows if row["workload"] == workload and str(row["decile"]).startswith(tenth)}
            label = f"{workload}, {'shortest' if tenth == '01' else 'longest'} tenth"
            axes.plot([str(value) for value in values], [points.get(value, float("nan")) for value in values], style, marker="o", label=label)
    axes.set(xlabel=key, ylabel="p99 slowdown", yscale="log", title=name)
    return [finish(figure, axes, out / f"{name}.svg")]


def finish(figure: Any, axes: Any, path: Path) -> Path:
    """Writes a figure."""
    axes.grid(alpha=0.3)
    axes.legend()
    if axes.get_xscale() == "linear":
        figure.autofmt_xdate(rotation=45)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
    return path


def simulate(arguments: argparse.Namespace) -> list[Result]:
    """Runs the simulations of all figures."""
    common = ["--topology", arguments.topology, "--sim-ms", str(arguments.sim_ms), "--load", str(arguments.load)]

    def run(workload: str, *more: str) -> Result:
        print(f"apus sim run --workload {workload} {' '.join([*common, *more])}", flush=True)
        return results.run("sim", "run", "--workload", workload, *common, *more, program=arguments.apus)

    made = [run(workload) for workload in arguments.workloads]
    for transport in arguments.transports:
        if transport != "apus":
            made += [run(workload, "--transport", transport) for workload in arguments.workloads]
    for priorities in arguments.priorities:
        for workload in arguments.workloads:
            result = run(workload, "--set", f"homa.priorities={priorities}")
            for row in result.rows:
                # As `apus sim sweep` adds its axes.
                row["homa.priorities"] = priorities
            made.append(result)
    return made


def main(given: list[str] | None = None) -> list[Path]:
    """Draws all figures for which there are rows. Returns their files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="result files")
    parser.add_argument("--out", type=Path, default=Path("figures"), help="directory of the figures")
    parser.add_argument("--run", action="store_true", help="run the simulations")
    parser.add_argument("--apus", default="apus", help="the program")
    parser.add_argument("--topology", default="leafspine-3x8x2")
    parser.add_argument("--sim-ms", type=float, default=60.0)
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--workloads", nargs="*", default=WORKLOADS[:4])
    parser.add_argument("--transports", nargs="*", default=TRANSPORTS)
    parser.add_argument("--priorities", nargs="*", type=int, default=PRIORITIES)
    arguments = parser.parse_args(given)
    files = [results.read(path) for path in arguments.files]
    if arguments.run:
        files += simulate(arguments)
    if not files:
        parser.error("name result files, or --run")
    arguments.out.mkdir(parents=True, exist_ok=True)
    plain = [file for file in files if not any("homa.priorities" in row for row in file.rows)]
    drawn = slowdowns(plain, arguments.out) + curves(plain, arguments.out)
    drawn += against(plain, "transport", arguments.out, "rivals")
    drawn += against(files, "homa.priorities", arguments.out, "priorities")
    for path in drawn:
        print(path)
    return drawn


if __name__ == "__main__":
    main()
