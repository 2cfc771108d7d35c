"""What the oracle is tested with: drawn cases, and naive loops in plain mpmath that share nothing with it."""

import mpmath
import numpy as np

from decoderspec.spec.config import Config
from decoderspec.spec.parameters import FINAL_GAIN, TABLE, of_block, parameter_shapes

SMALL = Config(5, 6, 1, 3, 1, 8, 50.0, 1e-3)  # one head of width 6: three rotary pairs
FIXTURE = Config(5, 4, 2, 4, 2, 4)
TOKENS, TARGETS = [[0, 1, 2]], [[1, 2, 3]]


def draws(seed):
    """SplitMix64 as unit values in [0, 1)."""
    mask = 2**64 - 1
    while True:
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        v = ((seed ^ seed >> 30) * 0xBF58476D1CE4E5B9) & mask
        v = ((v ^ v >> 27) * 0x94D049BB133111EB) & mask
        yield ((v ^ v >> 31) >> 11) * 2.0**-53


def initialized(config, seed):
    units = draws(seed)
    parameters = {}
    for name, shape in parameter_shapes(config).items():
        if len(shape) == 1:
            parameters[name] = np.ones(shape)
        else:
            limit = np.sqrt(6 / sum(shape))
            parameters[name] = np.array([limit * (2 * next(units) - 1) for _ in range(np.prod(shape))]).reshape(shape)
    return parameters


def random_case(config, batch, tokens, seed=1):
    random = np.random.default_rng(seed)
    parameters = {n: random.normal(size=s) * 0.7 for n, s in parameter_shapes(config).items()}
    return parameters, *random.integers(config.vocabulary_size, size=(2, batch, tokens))


def random_arrays(*shapes, seed=2):
    random = np.random.default_rng(seed)
    return [random.normal(size=shape) for shape in shapes]


def close(got, expected, digits=38):
    """Equal to so many digits, relative to the largest expected element."""
    got, expected = np.asarray(got, object), np.asarray(expected, object)
    assert got.shape == expected.shape
    with mpmath.workdps(digits + 30):
        scale = max([abs(mpmath.mpf(v)) for v in expected.flat], default=mpmath.mpf(0))
        worst = max([abs(mpmath.mpf(g) - e) for g, e in zip(got.flat, expected.flat, strict=True)], default=0)
        return worst <= scale * mpmath.mpf(10) ** -digits


# --- Naive loops: plain mpmath, one sequence, one head ---


def naive_matmul(x, weight):
    return [[mpmath.fsum(a * weight[i][j] for i, a in enumerate(row)) for j in range(len(weight[0]))] for row in x]


def naive_norm(x, gain, epsilon):
    scales = [1 / mpmath.sqrt(mpmath.fsum(a * a for a in row) / len(row) + epsilon) for row in x]
    return [[a * s * g for a, g in zip(row, gain, strict=True)] for row, s in zip(x, scales, strict=True)]


def naive_rotate(x, base, offset=0):
    rows = []
    for p, row in enumerate(x, offset):
        rows.append([])
        for i in range(len(row) // 2):
            turn = mpmath.expj(p * mpmath.power(base, mpmath.mpf(-2 * i) / len(row)))
            z = mpmath.mpc(row[2 * i], row[2 * i + 1]) * turn
            rows[-1] += [z.real, z.imag]
    return rows


def naive_attend(q, k, v):
    rows = []
    for t, query in enumerate(q):
        powers = [mpmath.exp(mpmath.fdot(query, k[s]) / mpmath.sqrt(len(query))) for s in range(t + 1)]
        rows.append([mpmath.fdot(powers, [v[s][i] for s in range(t + 1)]) / sum(powers) for i in range(len(v[0]))])
    return rows


def naive_swiglu(gate, up):
    pairs = [zip(gates, ups, strict=True) for gates, ups in zip(gate, up, strict=True)]
    return [[g * u / (1 + mpmath.exp(-g)) for g, u in row] for row in pairs]


def naive_logits(config, parameters, tokens):
    """Logits of one sequence for a configuration with one head."""
    p = {name: exact_lists(value) for name, value in parameters.items()}
    x = [p[TABLE][z] for z in tokens]
    for layer in range(config.layers):
        b = of_block(p, layer)
        n = naive_norm(x, b["attention_norm.gain"], config.rms_epsilon)
        q, k, v = (naive_matmul(n, b[f"attention.{role}.weight"]) for role in ("query", "key", "value"))
        heads = naive_attend(naive_rotate(q, config.rope_base), naive_rotate(k, config.rope_base), v)
        x = naive_add(x, naive_matmul(heads, b["attention.output.weight"]))
        n = naive_norm(x, b["ffn_norm.gain"], config.rms_epsilon)
        hidden = naive_swiglu(naive_matmul(n, b["ffn.gate.weight"]), naive_matmul(n, b["ffn.up.weight"]))
        x = naive_add(x, naive_matmul(hidden, b["ffn.down.weight"]))
    return naive_matmul(naive_norm(x, p[FINAL_GAIN], config.rms_epsilon), list(zip(*p[TABLE], strict=True)))


def naive_add(x, y):
    return [[a + b for a, b in zip(r, s, strict=True)] for r, s in zip(x, y, strict=True)]


def naive_loss(logits, targets):
    rows = zip(logits, targets, strict=True)
    return mpmath.fsum(mpmath.log(mpmath.fsum(map(mpmath.exp, row))) - row[y] for row, y in rows) / len(targets)


def exact_lists(array):
    return np.vectorize(mpmath.mpf, otypes=[object])(array).tolist()
