"""The whole command line: importing a command adds it to `app`. Heavy libraries are imported inside commands only."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from tflabench import cli
from tflabench.cli.common.app import app as app

for _module in iter_modules(cli.__path__):
    if _module.name != "main":
        import_module(f"tflabench.cli.{_module.name}")
