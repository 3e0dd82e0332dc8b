"""Counters of the whole machine, for windows of time: CPU time used, halted, stolen. Reads /proc, sysfs, cgroup v1."""

import glob
import os
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CPUACCT = Path("/sys/fs/cgroup/cpuacct/cpuacct.usage")
HALT_TIMES = [str(Path(path).with_name("time")) for path in glob.glob("/sys/devices/system/cpu/cpu*/cpuidle/state*/name")
              if Path(path).read_text().strip() != "POLL"]


def machine() -> dict[str, float]:
    """Seconds since boot, summed over CPUs: `busy_s` (all tasks and interrupts), `steal_s`, and `halted_s`: in idle
    states other than POLL, so that wall x CPUs - halted is what the guest burns, polling included. `busy_s` is the
    root cpuacct cgroup's exact run time where there is one; else /proc/stat's, which is sampled at ticks."""
    with open("/proc/stat") as file:
        fields = [int(field) for field in file.readline().split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields[:8]
    busy_s = (user + nice + system + irq + softirq) / TICKS_PER_S
    if CPUACCT.exists():
        busy_s = int(CPUACCT.read_text()) / 1e9
    halted_s = sum(int(Path(path).read_text()) for path in HALT_TIMES) / 1e6
    return {"busy_s": busy_s, "steal_s": steal / TICKS_PER_S, "halted_s": halted_s}


def difference(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {key: after[key] - before[key] for key in before}
