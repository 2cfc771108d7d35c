"""A child of the line protocol for the tests: answers zeros, or the reference's values, and misbehaves as it is told.

`python line_child.py [right] [encoding=hex] [offers=logits,loss] [CALL=FAULT ..]`, as `logits=crash`. It speaks base64
unless told otherwise and, but for `right` and `operations`, imports nothing outside the standard library.
"""

import base64
import json
import math
import os
import re
import struct
import sys
import time

WORDS = dict(word.split("=", 1) if "=" in word else (word, "") for word in sys.argv[1:])
OFFERS = WORDS.get("offers", "logits,loss,gradients,parameters,assign,initialize,classify").split(",")
MODELS = {}  # number -> the request that built it, or the reference's model


def values(message):
    """Arrays of a request by name: shape and values."""
    found, parts = {}, message.get("data", "").split(" ")
    for description, part in zip(message.get("arrays", []), parts, strict=False):
        name, dtype, *sizes = description.split(" ")
        content = base64.b64decode(part)
        found[name] = (
            list(map(int, sizes)),
            struct.unpack(f"<{len(content) // 8}{'q' if dtype == 'int64' else 'd'}", content),
        )
    return found


def reply(message, arrays):
    """The line that answers, with float64 arrays given as shape and values."""
    described = [" ".join([name, "float64", *map(str, shape)]) for name, (shape, _) in arrays.items()]
    data = " ".join(base64.b64encode(struct.pack(f"<{len(v)}d", *v)).decode() for _, v in arrays.values())
    return {"id": message["id"], **({"arrays": described, "data": data} if arrays else {})}


def zeros(message):
    """What a decoder of nothing answers."""
    call, arrays = message["call"], values(message)
    if call in ("build", "initialize"):
        MODELS[message["model"]] = message
        return {}
    built = MODELS[message["model"]]
    if call == "logits":
        shape = [*arrays["tokens"][0], built["vocabulary_size"]]
        return {"logits": (shape, [0.0] * math.prod(shape))}
    if call == "loss":
        return {"loss": ([], [0.0])}
    if call in ("parameters", "gradients"):
        return values(built)
    return {}


def right(message):
    """What the reference answers."""
    import numpy as np

    from decoderspec.reference import Reference
    from decoderspec.spec.config import Config

    call, reference = message["call"], Reference()
    given = {name: np.reshape(flat, shape) for name, (shape, flat) in values(message).items()}
    sizes = (message.get(name) for name in Config.__dataclass_fields__)
    if call in ("build", "initialize"):
        config = Config(*(float(size) if size in ("nan", "inf", "-inf") else size for size in sizes))
        made = reference.build(config, given) if call == "build" else reference.initialize(config, int(message["seed"]))
        MODELS[message["model"]] = made
        return {}
    model = MODELS.pop(message["model"]) if call == "close" else MODELS[message["model"]]
    if call == "close":
        return {}
    if call == "assign":
        model.assign(*given.popitem())
        return {}
    found = getattr(model, call)(*given.values())
    found = found if isinstance(found, dict) else {call: found}
    return {name: (list(np.shape(value)), np.ravel(value).tolist()) for name, value in found.items()}


def answered(message):
    """The reply of whichever decoder this is; a refusal is one too."""
    try:
        return reply(message, (right if "right" in WORDS else zeros)(message))
    except ValueError as reason:
        return {"id": message["id"], "error": str(reason), "category": getattr(reason, "category", None) or "numeric"}


def say(text):
    sys.stdout.buffer.write(text if isinstance(text, bytes) else text.encode())
    sys.stdout.buffer.flush()


def misbehave(fault, message):
    """One of the ways in which a child can fail its suite."""
    line = answered(message)
    plain = json.dumps(line)
    print(f"about to {fault}", file=sys.stderr, flush=True)
    match fault:
        case "crash":
            os.abort()
        case "exit":
            sys.exit(3)
        case "hang":
            time.sleep(1000)
        case "rubbish":
            say("loading weights .. done\n")
        case "not an object":
            say("[1, 2]\n")
        case "nested":
            say(json.dumps({**line, "arrays": [["logits"]]}) + "\n")
        case "wrong id":
            say(json.dumps({**line, "id": line["id"] - 1}) + "\n")
        case "no id":
            say("{}\n")
        case "wrong shape":
            say(re.sub(r"(logits float64 \d+) (\d+)", r"\1 \2 1", plain) + "\n")
        case "wrong count":
            say(json.dumps({**line, "data": line["data"][8:]}) + "\n")
        case "wrong encoding":
            say(json.dumps({**line, "data": "0x1p+0 0x1p+0"}) + "\n")
        case "wrong field":
            say(json.dumps({**line, "shape": [1]}) + "\n")
        case "wrong name":
            say(plain.replace("logits float64", "scores float64") + "\n")
        case "wrong category":
            say(json.dumps({"id": line["id"], "error": "no", "category": "mood"}) + "\n")
        case "flood":
            for _ in range(200):
                sys.stderr.write("a warning that nobody reads\n" * 1000)
            say(plain + "\n")
        case "flood and crash":
            sys.stderr.write("a warning that nobody reads\n" * 100_000 + "the last word\n")
            sys.stderr.flush()
            os.abort()
        case "half":
            say(plain[: len(plain) // 2])
            os.abort()
        case "half a refusal":
            say('{"id": 1, "error": "')
            time.sleep(1000)
        case "endless line":
            while True:
                say("x" * 65536)
        case "huge array":
            say(json.dumps({**line, "arrays": ["logits float64 1000000 1000000"]}) + "\n")
        case "huge number":
            say(json.dumps({**line, "arrays": ["logits float64 " + "9" * 5000]}) + "\n")
        case "not UTF-8":
            say(b'{"id": \xff\xfe}\n')
        case "NaN":
            say(json.dumps({**line, "id": math.nan}) + "\n")
        case "deep":
            say("[" * 50_000 + "\n")
        case "twice":
            say(plain + "\n" + plain + "\n")
        case "raw":
            say(plain + "\n" + "\0" * 100)
        case _:
            raise SystemExit(f"there is no fault {fault!r}")


def main():
    for line in sys.stdin:
        message = json.loads(line)
        call = message["call"]
        if call in WORDS:
            misbehave(WORDS[call], message)
        elif call == "start":
            encoding = WORDS.get("encoding", "base64")
            started = {"protocol": 1, "name": "a child", "encoding": encoding, "offers": OFFERS}
            say(json.dumps({"id": message["id"], **started, **json.loads(WORDS.get("declares", "{}"))}) + "\n")
        else:
            say(json.dumps(answered(message)) + "\n")


if __name__ == "__main__":
    main()
