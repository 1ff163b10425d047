"""Make the digits that come with the package, src/latecomer/problems/digits.npz, from scikit-learn's copy.

The data are the test set of *Optical Recognition of Handwritten Digits*, E. Alpaydin and C. Kaynak, 1998, UCI Machine
Learning Repository, https://doi.org/10.24432/C50P49, licensed under CC BY 4.0. Nothing of them is changed: pixels are
whole numbers from 0 to 16, kept as bytes. Needs `pip install scikit-learn`, which nothing else here does.

Example: python benchmarks/bundle_digits.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

FILE = Path(__file__).parents[1] / "src" / "latecomer" / "problems" / "digits.npz"
SOURCE = (
    "Optical Recognition of Handwritten Digits (test set), E. Alpaydin and C. Kaynak, 1998, UCI Machine Learning "
    "Repository, https://doi.org/10.24432/C50P49, CC BY 4.0; by way of scikit-learn"
)

if __name__ == "__main__":
    from sklearn.datasets import load_digits

    data = load_digits()
    images, labels = data.images.astype(np.uint8), data.target.astype(np.uint8)
    if not (np.array_equal(images, data.images) and np.array_equal(labels, data.target)):
        raise SystemExit("These digits are no whole numbers from 0 to 255: bytes cannot hold them")
    np.savez_compressed(FILE, images=images, labels=labels, source=np.array(SOURCE))
    print(f"{FILE}: {len(images):,} images, {FILE.stat().st_size:,} bytes")
