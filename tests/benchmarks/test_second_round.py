"""The table of `benchmarks/second_round.py`: each line is read from its own system."""

from typing import Any

from second_round import table


def report(systems: dict[str, float]) -> dict[str, Any]:
    """With these novel APs by protocol `fixed`; other numbers follow from them."""
    recall = {"average": {"100": 0.5}, "at_iou_50": {"100": 0.5}}
    return {
        "ap": [
            {
                "system": system,
                "protocol": protocol,
                "cut": cut,
                "iou_type": kind,
                "known": {"ap": 2 * ap},
                "novel": {"ap": ap if (protocol, cut, kind) == ("fixed", "before", "bbox") else 1},
                "all": {"ap": None},
            }
            for system, ap in systems.items()
            for protocol in ("paper", "fixed")
            for cut in ("after", "before")
            for kind in ("segm", "bbox")
        ],
        "clusters": {
            system: {
                "num_clusters": round(1000 * ap),
                "novel_called_known": ap / 2,
                "scores": {"novel": {"accuracy": ap + 0.5, "nmi": ap + 0.25}},
                "bound": {"novel": 1.0},
            }
            for system, ap in systems.items()
        },
        "proposal_recall": {"novel": recall},
        "mask_iou": {"novel": None, "known": None},
    }


def test_each_line_of_the_table_is_of_its_own_system():
    lines = table(
        [
            report({"head0": 0.1, "knownonly": 0.9}),
            report({"trained": 0.2}),
            report({"head0": 0.3, "knownonly": 0.9}),
        ]
    ).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    header = ["known AP", "novel AP", "all AP", "novel acc.", "novel NMI", "called known"]
    assert cells[0] == ["", "clusters", *header]
    assert cells[2:] == [
        ["round 1", "100", "20.0", "10.0", "-", "0.600", "0.350", "0.050"],
        ["round 2, as trained", "200", "40.0", "20.0", "-", "0.700", "0.450", "0.100"],
        ["round 2, discovered again", "300", "60.0", "30.0", "-", "0.800", "0.550", "0.150"],
    ]
