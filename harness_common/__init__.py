"""What both sides share; imports neither."""

from typing import Final

VERSION: Final = "0.1.0"
"""What API and workers say they are. A release changes it here and in pyproject.toml."""
