"""A badge in the endpoint format of shields: the contracts by name, never one word for all of them."""

from __future__ import annotations

import json

from decoderspec.properties.reports.document import Document, decided, verdict

COLOURS = {"conforms": "brightgreen", "fails": "red", "partial": "yellow"}


def render(document: Document) -> str:
    """The JSON file that a badge is drawn from: https://shields.io/badges/endpoint-badge."""
    contracts = decided(document)
    fails = [name for name in contracts if document["contracts"][name] == "fails"]
    sentence = verdict(document)
    if sentence.startswith(("The suite", "Nothing")):
        message, colour = sentence.rstrip(".").lower(), "lightgrey"
    elif fails:
        message, colour = f"fails: {', '.join(fails)}", COLOURS["fails"]
    else:
        part = "partly run: " if document["verdict"] == "partial" else ""
        known = sum(row["status"] == "xfail" for row in document["requirements"].values())
        message = f"{part}{', '.join(contracts)}{f' ({known} known)' if known else ''}"
        colour = COLOURS[document["verdict"]]
    return (
        json.dumps({"schemaVersion": 1, "label": "decoderspec", "message": message, "color": colour}, indent=2) + "\n"
    )
