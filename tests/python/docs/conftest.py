"""Lets the tests of this folder import `pages`: pytest's `importlib` mode puts no folder on the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "outputs"))
from postgres_server import postgres_server

__all__ = ["postgres_server"]
