# SPDX-License-Identifier: Apache-2.0
"""cistern.engine, where no inference engine is installed."""

from __future__ import annotations

import subprocess
import sys

IMPORT_ALL = """
import importlib, pkgutil, sys
import cistern.engine
for module in pkgutil.iter_modules(cistern.engine.__path__):
    importlib.import_module(f"cistern.engine.{module.name}")
print([name for name in ("torch", "vllm", "cistern.vllm") if name in sys.modules])
"""


def test_modules_of_engine_import_no_engine() -> None:
    """In an interpreter of its own: others of this process may have imported them."""
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
