"""Tables of programs (``stored/``) that processes of their own run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "stored"


def run(table: Path, folder: Path, out: Path, backend: str = "eager", **options: Any) -> dict[str, Any]:
    """What a process of its own gave for each case of a table."""
    command = [sys.executable, str(HERE / "runner.py"), str(table), str(folder), backend, str(out), json.dumps(options)]
    subprocess.run(command, check=True, timeout=600, capture_output=True)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def reasons(found: dict[str, Any], status: str) -> list[str]:
    """Why frames have a status."""
    return [program[2] for program in found["programs"] if program[1] == status]
