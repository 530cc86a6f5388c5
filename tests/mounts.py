"""Run commands in a private mount namespace, where the system allows it."""

import os
import subprocess

import pytest


def mounted(mount, command):
    """Run a command after mounting, in a mount namespace that ends with it."""
    script = f'{mount} && exec "$@"'
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", *command],
        capture_output=True,
        text=True,
        check=True,
    )


def _may_mount():
    try:
        folder = os.path.dirname(os.path.abspath(__file__))
        mounted(f"mount -t tmpfs tmpfs {folder}", ["true"])
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


needs_mounts = pytest.mark.skipif(not _may_mount(), reason="mounting is not allowed here")
