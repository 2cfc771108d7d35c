"""`to_numpy` reads what array libraries hand out and refuses the rest with a clear error."""

from typing import Any

import numpy as np
import pytest

from decoderspec.spec.arrays import ArrayError, to_numpy

ROWS = [[1.0, -2.5], [0.0, 3.0]]  # exact in every format below


class OnlyArray:
    """The least that `__array__` asks for."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(ROWS, dtype=dtype)


class OnlyDlpack:
    """The least that DLPack asks for."""

    def __init__(self) -> None:
        self.array = np.array(ROWS, dtype=np.float32)

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class OnAnotherDevice:
    """A tensor that NumPy can read only after `detach` and `cpu`."""

    def detach(self) -> "OnAnotherDevice":
        return self

    def cpu(self) -> Any:
        return np.array(ROWS, dtype=np.float16)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RuntimeError("not on the CPU")


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.array(ROWS), "float64"),
        (np.array(ROWS, dtype=np.float32), "float32"),
        (np.array(ROWS, dtype=np.float16), "float16"),
        (np.array(ROWS, dtype=">f4"), ">f4"),
        (np.array(ROWS).T[::-1].T[:, ::-1].T.copy("F").T[:, ::-1][::1], "float64"),
        (ROWS, "float64"),
        (OnlyArray(), "float64"),
        (OnlyDlpack(), "float32"),
        (OnAnotherDevice(), "float16"),
    ],
    ids=["float64", "float32", "float16", "big_endian", "strided", "list", "array", "dlpack", "device"],
)
def test_real_arrays_come_out_as_contiguous_float64(value: Any, dtype: str) -> None:
    array, name = to_numpy(value)
    assert name == dtype
    assert array.dtype == np.float64
    assert array.flags.c_contiguous
    assert array.shape == (2, 2)


@pytest.mark.parametrize("value", [1.5, np.float32(1.5), np.array(1.5), 3])
def test_a_number_is_an_array_of_rank_zero(value: Any) -> None:
    assert to_numpy(value)[0].shape == ()
    assert to_numpy(value)[0] == value


def test_result_is_a_copy() -> None:
    source = np.array(ROWS)
    to_numpy(source)[0][0, 0] = 99.0
    assert source[0, 0] == 1.0


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn"])
def test_torch_tensors_of_every_float_dtype_are_read(dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is an extra")
    tensor = torch.tensor(ROWS).to(getattr(torch, dtype)).T
    array, name = to_numpy(tensor)
    assert name == dtype
    np.testing.assert_array_equal(array, np.array(ROWS).T)


def test_torch_tensor_that_requires_a_gradient_is_detached() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is an extra")
    tensor = torch.tensor(ROWS, requires_grad=True)
    array, _ = to_numpy(tensor * 2)
    np.testing.assert_array_equal(array, 2 * np.array(ROWS))


def test_torch_tensor_without_data_is_refused() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is an extra")
    with pytest.raises(ArrayError, match=r"cannot read torch\.Tensor"):
        to_numpy(torch.empty(2, device="meta"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_small_floats_of_ml_dtypes_are_read(dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes comes with JAX")
    array, name = to_numpy(np.array(ROWS).astype(getattr(ml_dtypes, dtype)))
    assert name == dtype
    np.testing.assert_array_equal(array, ROWS)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_jax_arrays_are_read(dtype: str) -> None:
    jax_numpy = pytest.importorskip("jax.numpy", reason="JAX is not an extra of this package")
    array, name = to_numpy(jax_numpy.array(ROWS, dtype=dtype))
    assert name == dtype
    np.testing.assert_array_equal(array, ROWS)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_mlx_arrays_are_read(dtype: str) -> None:
    mlx = pytest.importorskip("mlx.core", reason="MLX is not an extra of this package")
    array, name = to_numpy(mlx.array(ROWS, dtype=getattr(mlx, dtype)))
    assert name == dtype
    np.testing.assert_array_equal(array, ROWS)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "1.0",
        ["1.0"],
        object(),
        {"a": 1.0},
        [[1.0], [1.0, 2.0]],
        [1.0, None],
        True,
        [True, False],
        1j,
        np.array(ROWS, dtype=complex),
        np.array(ROWS, dtype=object),
        np.zeros(2, dtype=[("a_float", "f8")]),
        np.zeros(2, dtype="datetime64[s]"),
        b"float",
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_array_of_real_numbers_is_refused(value: Any) -> None:
    with pytest.raises(ArrayError, match=r"^(cannot read|expected an array of real numbers)"):
        to_numpy(value)
