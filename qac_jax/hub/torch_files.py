"""PyTorch `.bin` / `.pt` weight files, read without running what is pickled in them.

Such a file is a zip archive: a pickle that describes tensors, and one raw member a storage.
A pickle can call anything, so the unpickler here knows the operations and names that tensors are
written with and no others, and what it makes are plain descriptions of our own.
"""

import io
import math
import os
import pickle
import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from qac_jax.errors import UserError


_STORAGES: dict[str, np.dtype] = {
    "DoubleStorage": np.dtype(np.float64),
    "FloatStorage": np.dtype(np.float32),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype(np.int64),
    "IntStorage": np.dtype(np.int32),
    "ShortStorage": np.dtype(np.int16),
    "CharStorage": np.dtype(np.int8),
    "ByteStorage": np.dtype(np.uint8),
    "BoolStorage": np.dtype(np.bool_),
}
_WRAPPERS = ("state_dict", "model_state_dict", "model_dict", "model")
# What torch.save writes. Others look classes up in other ways or write huge numbers.
_OPERATIONS = (
    "PROTO STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE "
    "EMPTY_LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT SETITEM SETITEMS "
    "BINGET LONG_BINGET BINPUT LONG_BINPUT GLOBAL REDUCE BUILD BINPERSID"
).split()
# Bytes of a description: one of a thousand tensors has about 100 kB.
_LONGEST = 4 << 20
# Tensors may share storages, but not without end: bytes of all for each byte of the file.
_SHARED = 16


class _Refused(Exception):
    """Why a file is not read."""


class _Storage(NamedTuple):
    member: str
    dtype: np.dtype
    length: int


class _Tensor(NamedTuple):
    storage: Any
    offset: Any
    shape: Any
    strides: Any


class _Names(dict):
    """A pickle's dictionary; tuples of tuples are no keys, as to hash them takes 2^depth steps."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if not isinstance(key, str | int | float):
            raise _Refused(f"it has a dictionary whose key is a {type(key).__name__}")
        super().__setitem__(key, value)


_PYTHON: Any = pickle._Unpickler  # whose operations can be chosen


class _Unpickler(_PYTHON):
    """Names stand for methods and texts; attributes of what is there are never set."""

    dispatch = {
        code[0]: _PYTHON.dispatch[code[0]]
        for code in (getattr(pickle, name) for name in _OPERATIONS)
    }

    def load_empty_dictionary(self) -> None:
        self.append(_Names())

    def load_build(self) -> None:
        """Leaves out attributes beside the tensors, such as a state dict's _metadata."""
        self.stack.pop()

    dispatch[pickle.EMPTY_DICT[0]] = load_empty_dictionary
    dispatch[pickle.BUILD[0]] = load_build

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return name
        known = {
            "collections.OrderedDict": self._ordered,
            "torch.Size": self._same,
            "torch._utils._rebuild_tensor": self._tensor,
            "torch._utils._rebuild_tensor_v2": self._tensor,
            "torch._utils._rebuild_parameter": self._same,
        }
        if f"{module}.{name}" not in known:
            raise _Refused(f"its pickle asks for {module}.{name}"[:200])
        return known[f"{module}.{name}"]

    def persistent_load(self, pid: Any) -> _Storage:
        kind, name, member, _, length = pid
        known = kind == "storage" and isinstance(name, str) and name in _STORAGES
        if not known or not isinstance(member, str | int):
            raise _Refused("its pickle asks for a storage that is not known")
        return _Storage(str(member), _STORAGES[name], int(length))

    def _ordered(self) -> _Names:
        return _Names()

    def _same(self, value: Any, *_: Any) -> Any:
        return value

    def _tensor(self, storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
        return _Tensor(storage, offset, shape, strides)


def read(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The tensors of one PyTorch file, by name; anything that is not a tensor is left out."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _read_archive(archive, os.path.getsize(path))
    except zipfile.BadZipFile:
        why = "it is not a zip archive: damaged, or in PyTorch's old format, which can run code"
    except _Refused as refused:
        why = str(refused)
    raise UserError(
        f"{os.fspath(path)} is refused: {why}; expected what torch.save writes of a state dict, or "
        "convert it to model.safetensors"
    )


def _read_archive(archive: zipfile.ZipFile, size: int) -> dict[str, np.ndarray]:
    description = next((name for name in archive.namelist() if name.endswith("/data.pkl")), "")
    try:
        raw = archive.read(_stored(archive, description, _LONGEST))
        content = _Unpickler(io.BytesIO(raw)).load()
    except _Refused:
        raise
    except Exception as error:  # a damaged or hostile pickle can fail in any way
        raise _Refused(f"its pickle is damaged ({type(error).__name__}: {error})"[:300]) from None
    left = _SHARED * size
    storages: dict[_Storage, np.ndarray] = {}
    tensors: dict[str, np.ndarray] = {}
    for name, tensor in _named_tensors(content):
        storage = tensor.storage
        try:
            if not isinstance(storage, _Storage):
                raise TypeError
            if storage not in storages:
                place = description.removesuffix("data.pkl") + f"data/{storage.member}"
                raw = archive.read(_stored(archive, place))
                storages[storage] = np.frombuffer(raw, storage.dtype, storage.length)
            tensors[name] = _view(storages[storage], tensor)
        except (TypeError, ValueError, OverflowError):
            raise _Refused(f"tensor {name} does not fit its storage") from None
        left -= tensors[name].nbytes
        if left < 0:
            raise _Refused("its tensors are many times larger than the file")
    if not tensors:
        raise _Refused("it holds no named tensors")
    return tensors


def _stored(archive: zipfile.ZipFile, name: str, longest: float = math.inf) -> zipfile.ZipInfo:
    """A member; torch never compresses, so a compressed one (a zip bomb?) is not read."""
    info = archive.NameToInfo.get(name)
    if info is None or info.compress_type != zipfile.ZIP_STORED or info.file_size > longest:
        raise _Refused(f"its part {name or 'data.pkl'} is missing, compressed or too large")
    return info


def _named_tensors(content: Any, depth: int = 3) -> list[tuple[str, _Tensor]]:
    """Tensors of a state dict, or of the one found under a usual key of a checkpoint."""
    if not isinstance(content, Mapping) or depth == 0:
        return []
    tensors = [(str(k), v) for k, v in content.items() if isinstance(v, _Tensor)]
    found = (_named_tensors(content.get(key), depth - 1) for key in _WRAPPERS)
    return tensors or next(filter(None, found), [])


def _view(storage: np.ndarray, tensor: _Tensor) -> np.ndarray:
    """A tensor's elements; ValueError when they would lie outside of the storage."""
    shape = tuple(int(n) for n in tensor.shape)
    strides = tuple(int(n) for n in tensor.strides)
    offset = int(tensor.offset)
    if len(shape) != len(strides) or min((offset, *shape, *strides)) < 0:
        raise ValueError("shape and strides disagree")
    if math.prod(shape) == 0:
        return np.zeros(shape, storage.dtype)
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    # A stride of 0 could make a huge tensor of a tiny file; no saved weight has one.
    if last >= storage.size or math.prod(shape) > storage.size:
        raise ValueError("outside of the storage")
    item = storage.dtype.itemsize
    view = np.lib.stride_tricks.as_strided(
        storage[offset:], shape, tuple(item * s for s in strides), writeable=False
    )
    return np.ascontiguousarray(view).reshape(shape)
