"""Training in the ecosystem is the same with MemScale, bit for bit. These tests need tests/ecosystem/requirements.txt;
they share models, fixtures and the comparison (compare.py) with tests/python."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))

from fixtures import _repeatable  # noqa: F401, I001  (first: it sets environment variables that packages read)
import torchvision_ops  # noqa: F401  (before anything that imports torchvision)
