"""Runs of a command under the arms, alternated on a quiet machine: what bench, phases-bench and overhead share."""

import argparse
import contextlib
import json
import os
import pwd
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable

import counters
import halt_poll
from suite import HERE

ARMS = ["default", "one", "awake", "poll", "auto"]
POLL_NS = 200_000
QUIET_SHARE = 0.05
QUIET_WAIT_S = 60
REPEATS = 2
RUN_TIMEOUT_S = 120


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that say how muster and the machine are set."""
    parser.add_argument("--objective", choices=["speed", "cost", "tail"], default="speed")
    parser.add_argument("--guest-poll", type=int, metavar="NS", help="guest_halt_poll_ns for all arms but poll (root)")
    parser.add_argument("--as-user", metavar="USER", help="run the programs and muster as USER (needs root)")
    parser.add_argument("--muster", type=Path, default=HERE.parents[1] / "target/release/muster", help="the binary")


def check_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends with exit code 2 if the machine cannot be set as wanted."""
    if options.as_user and os.geteuid() != 0:
        parser.error("--as-user needs root")
    if options.as_user and options.as_user not in {entry.pw_name for entry in pwd.getpwall()}:
        parser.error(f"--as-user: no user {options.as_user}")
    if options.guest_poll is not None and (why := halt_poll.unavailable()):
        parser.error(f"--guest-poll: {why}")


def end_on_signals() -> None:
    """Signals become SystemExit, so that settings are put back and children ended on the way out."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))


def guest_poll(options: argparse.Namespace) -> contextlib.AbstractContextManager:
    """The setting of --guest-poll for the block's duration; first restores what a killed run left."""
    halt_poll.restore()
    return contextlib.nullcontext() if options.guest_poll is None else halt_poll.polling(options.guest_poll)


def available_arms(arms: list[str], options: argparse.Namespace) -> list[str]:
    """Those of the arms that can be had here, the others named on stderr."""
    reasons = {}
    if why := halt_poll.unavailable():
        reasons["poll"] = why
    elif (options.guest_poll if options.guest_poll is not None else halt_poll.current_ns()) == POLL_NS:
        reasons["poll"] = "the guest polls already, default is that arm"
    if not os.access(options.muster, os.X_OK):
        reasons |= dict.fromkeys(["awake", "auto"], f"no {options.muster}; build it: cargo build --release -p muster")
    for arm in arms:
        if arm in reasons:
            print(f"SKIPPED: arm {arm}: {reasons[arm]}", file=sys.stderr)
    return [arm for arm in arms if arm not in reasons]


def alternate(name: str, command: list[str], parse: Callable[[str], dict], arms: list[str], rounds: int,
              options: argparse.Namespace) -> dict[str, list[dict]]:
    """Per arm its runs, all of the same length: each round runs every arm once, the order rotating; a round with a
    failed run is dropped whole. A run is what `parse` finds in its output, and the counters of `run_once`."""
    runs: dict[str, list[dict]] = {arm: [] for arm in arms}
    for number in range(rounds):
        shift = number % len(arms)
        try:
            outcome = {arm: run_quietly(arm, command, parse, options) for arm in arms[shift:] + arms[:shift]}
        except RuntimeError as error:
            print(f"FAILED: {name}: {error}", file=sys.stderr)
            continue
        for arm in arms:
            runs[arm].append(outcome[arm])
        values = " ".join(f"{arm} {outcome[arm]['metric']:.5g}" for arm in arms)
        print(f"{name} {number + 1}/{rounds}: {values}", file=sys.stderr, flush=True)
    return runs


def run_quietly(arm: str, command: list[str], parse: Callable[[str], dict], options: argparse.Namespace) -> dict:
    """One run, or the least disturbed of its repetitions."""
    attempts = []
    for _ in range(1 + REPEATS):
        wait_quiet()
        attempts.append(run_once(arm, command, parse, options))
        if attempts[-1]["foreign_share"] <= QUIET_SHARE:
            break
    return min(attempts, key=lambda run: run["foreign_share"]) | {"attempts": len(attempts)}


def wait_quiet() -> None:
    """Returns when others use less than QUIET_SHARE of the machine, after QUIET_WAIT_S at the latest."""
    deadline = time.monotonic() + QUIET_WAIT_S
    while time.monotonic() < deadline:
        before, start = counters.machine(), time.monotonic()
        time.sleep(0.1)
        window = counters.difference(before, counters.machine())
        if window["busy_s"] / (time.monotonic() - start) / os.cpu_count() < QUIET_SHARE:
            return
    print(f"the machine did not get quiet within {QUIET_WAIT_S} s", file=sys.stderr)


def run_once(arm: str, command: list[str], parse: Callable[[str], dict], options: argparse.Namespace) -> dict:
    """One run of one arm: what `parse` finds, wall time, CPU of the process tree, steal, and others' share."""
    with halt_poll.polling(POLL_NS) if arm == "poll" else contextlib.nullcontext():
        before, start = counters.machine(), time.monotonic()
        status, output, tree_s = run_tree(arm_prefix(arm, options) + command)
        wall_s = time.monotonic() - start
        whole = counters.difference(before, counters.machine())
    if status != 0:
        raise RuntimeError(f"arm {arm} ended with {status}: {output.strip()[-500:]}")
    return parse(output) | {
        "muster": muster_summary(output),
        "wall_s": wall_s,
        "tree_cpu_s": tree_s,
        "steal_s": whole["steal_s"],
        "foreign_share": max(0.0, whole["busy_s"] - tree_s) / (wall_s * os.cpu_count()),
    }


def write_results(path: Path | None, results: dict) -> None:
    """Replaces the file whole, so that a kill leaves the old one or the new one."""
    if path:
        temporary = path.with_name(path.name + ".new")
        temporary.write_text(json.dumps(results, indent=1) + "\n")
        temporary.rename(path)


def arm_prefix(arm: str, options: argparse.Namespace) -> list[str]:
    """What stands before the command. The arm `explain` needs `options.explain_out`, where the explanation goes."""
    run = [str(options.muster), "run", "--json"]
    if arm == "explain":
        return as_user(options.as_user) + [str(options.muster), "explain", "--out", str(options.explain_out), "--"]
    prefix = {
        "default": [], "poll": [],
        "one": ["taskset", "-c", "0"],
        "awake": [*run, "--remedy", "awake", "--"],
        "auto": [*run, "--remedy", "auto", "--objective", options.objective, "--"],
    }[arm]
    return as_user(options.as_user) + prefix


def as_user(name: str | None) -> list[str]:
    """setpriv(1) with the identity and environment of a user; nothing for None."""
    if not name:
        return []
    entry = pwd.getpwnam(name)
    return ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups", "--reset-env"]


def muster_summary(output: str) -> dict:
    """What `muster run --json` says about its work; empty for a run without muster."""
    lines = [line for line in output.splitlines() if line.startswith("{") and '"own_cpu_ns"' in line]
    return json.loads(lines[-1]) if lines else {}


def run_tree(command: list[str]) -> tuple[int, str, float]:
    """Runs the command in a process group of its own: exit status, output, CPU seconds of the tree (getrusage(2) of
    waited-for children, exact run time). The group is ended if this function is left early."""
    before = os.times()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, process_group=0)
    try:
        output, _ = process.communicate(timeout=RUN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no end within {RUN_TIMEOUT_S} s") from None
    finally:
        end_group(process)
    after = os.times()
    tree_s = after.children_user + after.children_system - before.children_user - before.children_system
    return process.returncode, output, tree_s


def end_group(process: subprocess.Popen) -> None:
    """Ends a process group that is still there: SIGTERM, and SIGKILL after 10 s."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
