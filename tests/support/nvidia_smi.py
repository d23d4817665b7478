"""A stand-in for nvidia-smi: a script that shows GPUs by the names in the variable FAKE_GPUS, comma-separated."""

from __future__ import annotations

from pathlib import Path

SCRIPT = r"""#!/bin/sh
# Of a host: -i takes an index or a UUID, as the tool itself does. UUIDs are GPU-<host>-<index>.
while [ $# -gt 0 ]; do
  if [ "$1" = -i ]; then shift; which=$1; fi
  shift
done
index=0
IFS=,
for name in $FAKE_GPUS; do
  uuid=GPU-$FAKE_HOST-$index
  if [ -z "$which" ] || [ "$which" = $index ] || [ "$which" = "$uuid" ]; then
    echo "$name, 81559, 580.1, $uuid"
  fi
  index=$((index + 1))
done
"""


def fake_nvidia_smi(folder: Path) -> Path:
    """Write the script into a folder, for the front of PATH, and return that."""
    folder.mkdir(parents=True, exist_ok=True)
    tool = folder / "nvidia-smi"
    tool.write_text(SCRIPT)
    tool.chmod(0o755)
    return folder
