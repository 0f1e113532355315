# SPDX-License-Identifier: Apache-2.0
"""What docs/interop.md shows: which data files belong to a checkpoint."""

from pathlib import Path


def files_of_step(step):
    manifest = (Path(step) / "manifest.cairn").read_bytes()  # without it there is no checkpoint
    attempt = int.from_bytes(manifest[56:64], "little")  # files of another save of the step may lie beside its own
    return sorted(Path(step).rglob(f"rank-*.{attempt:016x}.*.safetensors"))
