"""Memory that a tensor has freed is used again."""

import os
import subprocess
import sys

import pytest

from rncdl.training.allocating import keep_freed_memory

COUNT_FAULTS = """
import resource, sys, torch
from rncdl.training.allocating import keep_freed_memory
torch.set_num_threads(1)
kept = sys.argv[1] == "keep" and keep_freed_memory()
def fill():
    for _ in range(20):
        torch.empty(2**24).fill_(1)  # 64 MB
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
fill()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def count_faults(how: str) -> tuple[str, int]:
    """Whether freed memory was kept, and how often memory came fresh from the system."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    words = [sys.executable, "-c", COUNT_FAULTS, how]
    done = subprocess.run(words, env=plain, capture_output=True, text=True, check=True)
    kept, faults = done.stdout.split()
    return kept, int(faults)


def test_a_tensors_memory_is_used_for_the_next_one():
    kept, faults = count_faults("keep")
    if kept == "False":
        pytest.skip("the C library is no glibc")
    assert faults < count_faults("give back")[1] / 2


def test_options_of_the_users_stand(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    assert not keep_freed_memory()
