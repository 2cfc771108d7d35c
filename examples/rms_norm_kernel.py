"""One kernel on its own. `decoderspec check examples/rms_norm_kernel.py:rms_norm --as rms_norm`

Its derivative is found under the same name with `_backward`.
"""

import numpy as np


def rms_norm(x, gain, epsilon):
    """`x` is `[..., d]`, `gain` is `[d]`."""
    inverse = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)
    return x * inverse * gain


def rms_norm_backward(upstream, x, gain, epsilon):
    """`upstream` is the loss's gradient for the result; returns those for `x` and for `gain`."""
    inverse = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)
    # y = x * inverse * gain, and inverse depends on all of the row
    dnormalized = upstream * gain
    dx = inverse * (dnormalized - x * inverse**2 * (dnormalized * x).mean(-1, keepdims=True))
    dgain = (upstream * x * inverse).reshape(-1, x.shape[-1]).sum(0)
    return dx, dgain
