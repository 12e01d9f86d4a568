"""How long does `rncdl run` take on a thousand photographs, and was its plan right?

`python benchmarks/own_images.py OUT [--data DIR] [--images 500] [--kills 10] [--seed 0]
[SETTING=VALUE ...]`

Cuts as many labelled and as many unlabelled photographs from the files `labelled.json` (boxes of
known classes alone) and `unlabelled.json` of DIR (default: `coco256` below `$RNCDL_SHARED/data`),
gives them to `rncdl run --size tiny`, and prints the time of each phase, the peak memory and both
beside what the plan said. `--kills N`: an undisturbed run first, unless OUT holds one; then the
same command once more, killed at N random moments and given again each time; the heads of both
must be the same to the last bit.
"""

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rncdl.evaluation.ap_tables import markdown_table
from rncdl.files import write_atomically

SHARED = Path(os.environ.get("RNCDL_SHARED", Path(__file__).parents[2] / "shared"))
REPOSITORY = Path(__file__).resolve().parents[1]
HEADS = "discoveries/main/heads.safetensors"


@dataclass(frozen=True)
class Took:
    """What one call of the command took."""

    seconds: float
    began_at_s: dict[str, float]
    """`n/6` -> seconds after which that phase began"""
    memory_bytes: int
    code: int


def main() -> None:
    """Cut the photographs, run, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, default=SHARED / "data" / "coco256")
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument(
        "--seed", type=int, default=0, help="of the choice of photographs, of kills"
    )
    parser.add_argument("settings", nargs="*", metavar="SETTING=VALUE")
    given = parser.parse_intermixed_args()
    labelled, unlabelled = cut_photographs(given.data, given.out, given.images, seed=given.seed)
    words = [str(labelled), "--unlabelled", str(unlabelled), "--size", "tiny", *given.settings]
    for option in ("--images", "--unlabelled-images"):
        words += [option, str(given.data)]
    whole = given.out / "run"
    if not (whole / "report.html").is_file():
        measure(words, whole)
    print(json.loads((given.out / "figures.json").read_text())["table"])
    if given.kills:
        kill_often(words, given.out, given.kills, draw=random.Random(given.seed))


def cut_photographs(data: Path, out: Path, count: int, *, seed: int) -> tuple[Path, Path]:
    """Files of `count` labelled and `count` unlabelled photographs."""
    draw = random.Random(seed)
    paths = []
    for name in ("labelled", "unlabelled"):
        whole = json.loads((data / f"{name}.json").read_text())
        images = draw.sample(whole["images"], count)
        kept = {image["id"] for image in images}
        boxes = [box for box in whole["annotations"] if box["image_id"] in kept]
        if name == "unlabelled" and boxes:
            raise SystemExit(f"{data / 'unlabelled.json'} has annotations; it must have none.")
        cut = {"images": images, "annotations": boxes, "categories": whole["categories"]}
        paths.append(out / f"{name}.json")
        write_atomically(paths[-1], json.dumps(cut).encode())
    return paths[0], paths[1]


def measure(words: list[str], run: Path) -> None:
    """An undisturbed run; what it took is kept beside it."""
    load = os.getloadavg()[0]
    took = call(words, run, log=run.with_name("log.txt"))
    if took.code:
        raise SystemExit(f"rncdl run ended with {took.code}; see {run.with_name('log.txt')}.")
    expected = json.loads((run / "plan.json").read_text())["expected"]
    table = comparison(took, expected)
    loads = f"Load average at the start {load:.1f}, at the end {os.getloadavg()[0]:.1f}."
    figures = {"seconds": took.seconds, "table": f"{table}\n{loads}"}
    write_atomically(run.with_name("figures.json"), json.dumps(figures, indent=2).encode())


def comparison(took: Took, expected: dict[str, Any]) -> str:
    """Each phase, and the memory, beside the plan."""
    began = took.began_at_s
    actual = {
        "check and plan": began["3/6"],
        "train": began["4/6"] - began["3/6"],
        "bank and discover": began["6/6"] - began["4/6"],
        "report": took.seconds - began["6/6"],
        "train to report": took.seconds - began["3/6"],
    }
    planned = {
        "train": expected["train_s"],
        "bank and discover": expected["bank_s"] + expected["discover_s"],
        "report": expected["report_s"],
        "train to report": expected["total_s"],
    }
    rows = [
        [name, _seconds(planned.get(name)), _seconds(value), _ratio(planned.get(name), value)]
        for name, value in actual.items()
    ]
    rows.append(["in all", "", _seconds(took.seconds), ""])
    memory = [expected["memory_bytes"], took.memory_bytes]
    rows.append(["memory", *(f"{value / 1e9:.2f} GB" for value in memory), _ratio(*memory)])
    return markdown_table(["", "plan", "measured", "plan / measured"], rows)


def kill_often(words: list[str], out: Path, count: int, *, draw: random.Random) -> None:
    """The same command killed `count` times at random moments, and then left alone."""
    seconds = json.loads((out / "figures.json").read_text())["seconds"]
    run, log = out / "killed", out / "log_killed.txt"
    moments = []
    began = time.monotonic()
    for _ in range(count):
        took = call(words, run, log=log, kill_after_s=draw.uniform(0, 2 * seconds / (count + 1)))
        where = max(took.began_at_s, default="before 1/6")
        moments.append(f"{took.seconds:.0f} s ({where})" + ("" if took.code else ", had ended"))
    took = call(words, run, log=log)
    same = (run / HEADS).read_bytes() == (out / "run" / HEADS).read_bytes()
    print(f"Killed after {'; '.join(moments)}.")
    print(f"Then {took.seconds:.0f} s to the end (exit code {took.code}).")
    print(f"{time.monotonic() - began:.0f} s in all; undisturbed {seconds:.0f} s.")
    print(f"Report: {(run / 'report.html').is_file()}; the same heads: {same}.")


def call(words: list[str], run: Path, *, log: Path, kill_after_s: float | None = None) -> Took:
    """Run the command; its output goes to `log`."""
    command = [sys.executable, "-m", "rncdl", "run", *words, "--out", str(run)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"}
    log.parent.mkdir(parents=True, exist_ok=True)
    began, phases = time.monotonic(), dict[str, float]()
    with log.open("a+", encoding="utf-8") as file:
        place = file.seek(0, os.SEEK_END)
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
        while process.poll() is None:
            seconds = time.monotonic() - began
            if kill_after_s is not None and seconds > kill_after_s:
                process.send_signal(signal.SIGKILL)
            said = log.read_bytes()[place:].decode(errors="replace")
            for line in said.splitlines():
                if line[1:3] == "/6":
                    phases.setdefault(line[:3], seconds)
            time.sleep(0.2)
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return Took(time.monotonic() - began, phases, memory, process.returncode)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} s"


def _ratio(planned: float | None, actual: float) -> str:
    return "" if planned is None else f"{planned / actual:.2f}"


if __name__ == "__main__":
    main()
