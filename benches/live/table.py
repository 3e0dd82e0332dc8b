"""Results of bench as a table, and what they say about the suite's requirements. Pure."""

import statistics

import paired
from suite import Program

BEST_AT_LEAST = 0.95
HARM_BELOW = 0.97
COST_GAIN = 2.4
COST_CPU = 0.5


def render(results: dict, suite: dict[str, Program]) -> str:
    """One line a program, then the requirements' sums."""
    settings, machine = results["settings"], results["machine"]
    programs = {suite[name]: runs for name, runs in results["programs"].items() if runs.get("default")}
    arms = list(dict.fromkeys(arm for runs in programs.values() for arm in runs if arm != "default"))
    user = settings["user"] or "the caller"
    head = (f"{machine['cpus']} vCPUs, Linux {machine['kernel']}, cpuidle {machine['governor']}, guest_halt_poll_ns "
            f"{settings['guest_halt_poll_ns']}; objective {settings['objective']}; as {user}\n"
            "Throughput relative to default (Hodges-Lehmann over rounds), +- half the interquartile range "
            "of the arm in %;\ncpu: CPU per operation relative to default, polling included; brackets: 95 % interval.\n")
    columns = ["program", "facts", "n", "default"] + arms + [f"cpu {arm}" for arm in arms]
    if "auto" in arms:
        columns += ["best", "auto/best", "auto/default", "a", "b"] + (["c"] if settings["objective"] == "cost" else [])
    rows = [row(program, runs, arms, settings["objective"]) for program, runs in programs.items()]
    return head + layout([columns] + rows) + (verdicts(columns, rows) if "auto" in arms else "")


def markdown(results: dict, suite: dict[str, Program]) -> str:
    """The same for a document: one line a program, **short** where a requirement is missed and the spread is no excuse."""
    arms = [arm for arm in next(iter(results["programs"].values())) if arm not in ("default", "auto")]
    lines = [["program", *arms, "auto", "CPU auto", "auto / best", "auto / default"]]
    for name, runs in results["programs"].items():
        program = suite[name]
        speeds = {arm: [speed(program, run) for run in runs[arm]] for arm in runs}
        costs = {arm: [cost(program, run) for run in runs[arm]] for arm in runs}
        relative = [f"{statistics_of(speeds['default'], speeds[arm]).value:.2f}" for arm in (*arms, "auto")]
        best, to_best, to_default, verdict, harm, *_ = judge(program, speeds, costs, results["settings"]["objective"])
        mark = {"ok": "", "wide": " wide", "FAIL": " **short**"}
        cpu = statistics_of(costs["default"], costs["auto"]).value
        lines.append([name, *relative, f"{cpu:.2f}", f"{to_best} ({best}){mark[verdict]}", f"{to_default}{mark[harm]}"])
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def row(program: Program, runs: dict, arms: list[str], objective: str) -> list[str]:
    speeds = {arm: [speed(program, run) for run in runs[arm]] for arm in runs}
    costs = {arm: [cost(program, run) for run in runs[arm]] for arm in runs}
    default = statistics.median(run["metric"] for run in runs["default"])
    cells = [program.name, "-".join(f"{value:g}" for value in dict.fromkeys(program.facts_one_vcpu)),
             str(len(speeds["default"])), f"{default:.4g} {program.unit} {spread(speeds['default'])}"]
    for arm in arms:
        relative = statistics_of(speeds["default"], speeds.get(arm))
        cells.append(f"{relative.value:.2f} {spread(speeds[arm])}" if relative else "")
    for arm in arms:
        relative = statistics_of(costs["default"], costs.get(arm))
        cells.append(f"{relative.value:.2f}" if relative else "")
    if "auto" in arms:
        cells += judge(program, speeds, costs, objective) if "auto" in runs else [""] * 6
    return cells


def judge(program: Program, speeds: dict, costs: dict, objective: str) -> list[str]:
    """The cells from `best` on: the best other arm, auto against it and against default, and the verdicts."""
    best = max((arm for arm in speeds if arm != "auto"), key=lambda arm: statistics.median(speeds[arm]))
    to_best = statistics_of(speeds[best], speeds["auto"])
    to_default = statistics_of(speeds["default"], speeds["auto"])
    if not to_best or not to_default:
        return [best] + [""] * 5
    cells = [best, interval(to_best), interval(to_default), best_verdict(to_best),
             "FAIL" if to_default.high < HARM_BELOW else "ok"]
    if objective == "cost":
        cells.append(cost_verdict(to_default, statistics_of(costs["default"], costs["auto"])) if program.cost_row else "")
    return cells


def best_verdict(to_best: paired.Ratio) -> str:
    """`wide`: the spread allows no statement."""
    if to_best.value >= BEST_AT_LEAST:
        return "ok"
    return "FAIL" if to_best.high < BEST_AT_LEAST else "wide"


def cost_verdict(gain: paired.Ratio, cpu: paired.Ratio) -> str:
    return "ok" if gain.value >= COST_GAIN and cpu.value <= COST_CPU else "FAIL"


def verdicts(columns: list[str], rows: list[list[str]]) -> str:
    meaning = {"a": f"auto >= {BEST_AT_LEAST} of the best other arm", "b": f"no 95 % interval below {HARM_BELOW} of default",
               "c": f"gain >= {COST_GAIN} at <= {COST_CPU} CPU per operation"}
    lines = []
    for letter, text in meaning.items():
        if letter in columns:
            index = columns.index(letter)
            judged = [line for line in rows if line[index]]
            failed = [line[0] for line in judged if line[index] == "FAIL"]
            wide = [line[0] for line in judged if line[index] == "wide"]
            lines.append(f"{letter}: {text}: {len(judged) - len(failed) - len(wide)} of {len(judged)}"
                         + (f"; fail: {', '.join(failed)}" if failed else "")
                         + (f"; spread too wide: {', '.join(wide)}" if wide else ""))
    return "\n" + "\n".join(lines)


def speed(program: Program, run: dict) -> float:
    return 1 / run["metric"] if program.lower_is_better else run["metric"]


def cost(program: Program, run: dict) -> float:
    """CPU per operation, up to a factor that is the same for all runs of a program."""
    return run["load_burnt_s"] / (run["metric"] if program.fixed == "time" else 1)


def statistics_of(baseline: list[float], treated: list[float] | None) -> paired.Ratio | None:
    """The paired ratio; of a single round the bare ratio."""
    if not treated:
        return None
    if len(treated) == 1:
        return paired.Ratio(*[treated[0] / baseline[0]] * 3)
    return paired.ratio(baseline, treated)


def spread(values: list[float]) -> str:
    return f"+-{paired.half_spread(values) * 100:.0f}"


def interval(ratio: paired.Ratio) -> str:
    return f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def layout(rows: list[list[str]]) -> str:
    widths = [max(len(line[index]) for line in rows) for index in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in rows) + "\n"
