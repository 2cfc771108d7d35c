"""With `--implementation X`, `pytest --pyargs decoderspec.bench` measures X and leaves out what measures ourselves."""

from pathlib import Path

import pytest

THEIRS = "test_engine.py"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Only the benchmarks of an implementation where one is named, all others where none is."""
    if not collection_path.name.startswith("test_") or collection_path.parent != Path(__file__).parent:
        return None
    return bool(config.getoption("--implementation")) != (collection_path.name == THEIRS) or None
