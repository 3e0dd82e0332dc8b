"""What run-one prints, as numbers: shared by the benches that run it. Pure but for the number of CPUs."""

import json
import os


def parse(output: str) -> dict:
    """run-one's two lines: the metric, and what the machine did while the load ran."""
    lines = dict(line.split(": ", 1) for line in output.splitlines() if line.startswith(("metric: ", "window: ")))
    if len(lines) != 2:
        raise RuntimeError(f"no metric in its output: {output.strip()[-500:]}")
    window = json.loads(lines["window"])
    return {
        "metric": float(lines["metric"].split()[0]),
        "load_began_s": window["began_s"],
        "load_wall_s": window["wall_s"],
        "load_busy_s": window["busy_s"],
        # Burnt: what the guest's vCPUs did not spend halted: work, polling and wake-up latency alike.
        "load_burnt_s": window["wall_s"] * os.cpu_count() - window["halted_s"],
    }
