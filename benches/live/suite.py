"""The suite as data: reads suite.toml for setup, run-one and bench. Touches no file but that one."""

import sys

if sys.version_info < (3, 11):
    sys.exit(f"benches/live needs Python 3.11 or newer (tomllib); {sys.executable} is {sys.version.split()[0]}")

import glob
import os
import shutil
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = HERE / "build"
PROGRAMS = HERE / "programs"


@dataclass(frozen=True, eq=False)
class Program:
    """One entry of suite.toml; the keys are documented there."""

    name: str
    group: str
    facts_one_vcpu: list[float]
    load: str
    metric: str
    unit: str
    fixed: str
    packages: list[str] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    setup: str = ""
    prepare: str = ""
    server: str = ""
    ready: str = ""
    stop: str = "TERM"
    work: float = 1.0
    lower_is_better: bool = False
    refuses_root: bool = False
    cost_row: bool = False

    def missing(self) -> list[str]:
        """What the program needs and this machine lacks: commands, and files under build/."""
        path = environment()["PATH"]
        return [need for need in self.needs
                if not (BUILD / need[6:]).exists() and need.startswith("build/")
                or not need.startswith("build/") and not shutil.which(need, path=path)]


def load_suite() -> dict[str, Program]:
    """All programs by name, in the file's order."""
    with open(HERE / "suite.toml", "rb") as file:
        entries = tomllib.load(file)["program"]
    return {entry["name"]: Program(**entry) for entry in entries}


def environment() -> dict[str, str]:
    """The environment of every command of the suite. Debian's wrappers of PostgreSQL's tools are scripts that
    cost more than the tools: their own directory comes first."""
    postgres = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: float(path.split("/")[4]))[-1:]
    standard = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/go/bin"]
    return {"PATH": ":".join(postgres + standard), "LC_ALL": "C", "BUILD": str(BUILD), "PROGRAMS": str(PROGRAMS),
            "PYTHON": sys.executable, "HOME": os.environ.get("HOME", "/")}
