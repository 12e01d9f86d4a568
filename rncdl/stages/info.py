"""What is installed here."""

import torch
from rich.table import Table

from rncdl.config import preset_names
from rncdl.training.progress import console
from rncdl.version import versions


def show_info() -> None:
    """Print versions, devices and presets."""
    table = Table(show_header=False, box=None)
    for name, version in versions().items():
        table.add_row(name, version)
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    table.add_row("GPUs", ", ".join(gpus) or "none")
    table.add_row("CPU threads", str(torch.get_num_threads()))
    table.add_row("presets", ", ".join(preset_names()))
    console.print(table)
