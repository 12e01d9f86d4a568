"""The version of this package, and of those that its numbers depend on."""

import platform
from importlib import metadata

__version__ = "0.1.0"


def versions() -> dict[str, str]:
    """Versions of this package and of those that its numbers depend on."""
    found = {"rncdl": __version__, "python": platform.python_version()}
    for package in ("torch", "torchvision", "numpy", "timm", "tensorboard"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
