"""What a calibration found: distributions, tails, and the page that is made of them."""
from typing import Any
def summary(numbers: Any, failed: Any) -> Any:
    return {"failed": failed}
def page(found: Any) -> str: return ""
