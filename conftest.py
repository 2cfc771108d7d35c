"""The options, fixtures and markers live in the plugin (`properties/plugin.py`), so that they exist wherever the wheel does."""

collect_ignore = ["src", "properties", "examples", "adapters"]
