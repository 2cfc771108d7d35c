"""A decoder whose loss is wrong on cases that only a search finds: what campaigns of several runs are for.

It is steered by files in the folder that PLANTED names. Where `known` lists parameters, it is wrong on them alone,
else on every configuration that the suite has not written down and that is not the smallest, which every search begins
with; it notes in `seen` which parameters it was wrong on. Where `stop` names a database, a process that is wrong once
there is a failure in it says so in `waiting` and waits to be killed: it is then making that failure smaller, or showing
it again.
"""

import os
import time
from hashlib import sha256
from pathlib import Path

from decoderspec.properties.database import opened
from decoderspec.properties.strategies import fixed
from decoderspec.reference import Reference

PATIENCE = 120.0  # seconds for whoever kills it
SOME = 5


class Planted:
    name = "planted"

    def build(self, config, parameters):
        name = sha256(b"".join(values.tobytes() for values in parameters.values())).hexdigest()
        return PlantedModel(Reference().build(config, parameters), config, name)


class PlantedModel:
    def __init__(self, right, config, name):
        self.right, self.config, self.name = right, config, name

    def logits(self, tokens):
        return self.right.logits(tokens)

    def loss(self, tokens, targets):
        return self.right.loss(tokens, targets) + (1 if is_wrong(self.config, self.name) else 0)


def is_wrong(config, name):
    folder = Path(os.environ["PLANTED"])
    known = folder / "known"
    if known.exists():
        return name in known.read_text(encoding="ascii").split()
    if config in WRITTEN_DOWN or config.vocabulary_size < SOME:
        return False
    with (folder / "seen").open("a", encoding="ascii") as seen:
        seen.write(name + "\n")
    stop = folder / "stop"
    if stop.exists() and has_failures(stop.read_text(encoding="utf-8")):
        (folder / "waiting").write_text(str(os.getpid()), encoding="ascii")
        time.sleep(PATIENCE)
    return True


def has_failures(place):
    if "://" in place:
        return opened(place).database.redis.dbsize() > 0
    return any(path.is_file() for path in Path(place).rglob("*"))


WRITTEN_DOWN = {case.config for profile in ("quick", "thorough") for case in fixed({}, profile)[0]}
