"""What the paper reports of the systems that `rncdl compare` trains."""

from rncdl.evaluation.comparison import Line, Published

SOURCE = (
    "V. Fomenko, I. Elezi, D. Ramanan, L. Leal-Taixé, A. Ošep: Learning to Discover and Detect "
    "Objects, NeurIPS 2022; COCO-half → LVIS, box mAP in percent"
)

RNCDL = Published(6.92, 25.00, 5.42)

RANDOM_HEAD_KEY = "rncdl-random-head"
RNCDL_KEY = "rncdl"
CEILING_KEY = "fully-supervised"

COMPARED = (
    Line("k-means on crops", "kmeans-crops", published=Published(1.33, 15.61, 0.14)),
    Line("Weng et al.", "weng", published=Published(1.62, 17.85, 0.27)),
    Line("ORCA", "orca", published=Published(2.03, 20.57, 0.49)),
    Line("UNO", "uno", published=Published(2.18, 21.09, 0.61)),
    Line("k-means on region features", "kmeans-features", published=Published(1.55, 17.77, 0.20)),
    Line("k-means on region features, soft", "kmeans-features-soft"),
    Line("semi-supervised k-means", "semi-supervised-kmeans"),
    Line("PANDAS", "pandas"),
    Line("RNCDL, random novel head", RANDOM_HEAD_KEY, published=Published(1.95, 23.51, 0.17)),
    Line("RNCDL", RNCDL_KEY, published=RNCDL),
    Line("fully supervised (the ceiling)", CEILING_KEY, published=Published(18.47, 39.38, 16.74)),
)
"""The lines of the table, in the paper's order."""
