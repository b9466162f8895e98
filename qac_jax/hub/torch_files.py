"""PyTorch `.bin` / `.pt` weight files, read without running what is pickled in them.

Such a file is a zip archive: a pickle that describes tensors, and one raw member a storage.
A pickle can call anything, so the unpickler here admits a fixed list of names, and stands
plain descriptions of our own in for what those names would build.
"""

from __future__ import annotations

import dataclasses
import io
import math
import os
import pickle
import zipfile
from collections.abc import Mapping
from typing import Any

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


@dataclasses.dataclass(frozen=True)
class _Storage:
    member: str
    dtype: np.dtype
    length: int


@dataclasses.dataclass(frozen=True)
class _Tensor:
    storage: Any
    offset: Any
    shape: Any
    strides: Any


class _Refused(Exception):
    """A pickle names something outside of the list."""


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
    return _Tensor(storage, offset, shape, strides)


def _rebuild_parameter(tensor: Any, *_: Any) -> Any:
    return tensor


def _ordered(*pairs: Any) -> dict[Any, Any]:
    if pairs:
        raise _Refused("an OrderedDict made of pairs")
    return {}


def _size(numbers: Any) -> tuple[Any, ...]:
    return tuple(numbers)


_ADMITTED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): _ordered,
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch", "Size"): _size,
    # Names rather than dtypes: a pickle can change the state of an object that it gets hold of.
    **{("torch", name): name for name in _STORAGES},
}
# What PyTorch writes. Left out are those that look classes up in other ways or write huge numbers.
_OPCODES = (
    "PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG1 "
    "FLOAT BINFLOAT BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINSTRING SHORT_BINSTRING BINBYTES "
    "SHORT_BINBYTES EMPTY_LIST APPEND APPENDS LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 "
    "EMPTY_DICT DICT SETITEM SETITEMS GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE GLOBAL "
    "STACK_GLOBAL REDUCE BUILD BINPERSID"
).split()
# Bytes of a description: one of a thousand tensors has about 100 kB.
_LONGEST = 16 << 20
# Tensors may share storages, but not without end: bytes of all for each byte of the file.
_SHARED = 16


_Base: Any = pickle._Unpickler  # the one in Python, whose steps can be replaced


class _Unpickler(_Base):
    """Knows the opcodes of `_OPCODES`, the names of `_ADMITTED`, and no others.

    Its work is bounded by the length of the pickle: nothing that is made is called, compared or
    hashed but strings and numbers (tuples of tuples would take 2^depth steps to hash).
    """

    dispatch: dict[int, Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise _Refused(f"{module}.{name}"[:200]) from None

    def persistent_load(self, pid: Any) -> _Storage:
        kind, name, member, _, length = pid
        if kind != "storage" or not isinstance(name, str) or name not in _STORAGES:
            what = kind if isinstance(kind, str) else type(kind).__name__
            raise _Refused(f"a persistent object of kind {what[:50]!r}")
        if not isinstance(member, str | int):
            raise _Refused("a storage without a name")
        return _Storage(str(member), _STORAGES[name], int(length))

    def load_reduce(self) -> None:
        arguments = self.stack.pop()
        function = self.stack[-1]
        if not any(function is admitted for admitted in _ADMITTED.values()):
            raise _Refused(f"a call of a {type(function).__name__}")
        self.stack[-1] = function(*arguments)

    def load_build(self) -> None:
        self.stack.pop()  # attributes beside the tensors, such as a state dict's _metadata

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set(self.stack[-1], [key, value])

    def load_setitems(self) -> None:
        items = self.pop_mark()
        self._set(self.stack[-1], items)

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        self._set(self.stack[-1], items)

    def _set(self, target: Any, items: list[Any]) -> None:
        if type(target) is not dict:
            raise _Refused(f"items of a {type(target).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int | float | bytes):
                raise _Refused(f"a dictionary whose key is a {type(key).__name__}")
            target[key] = value

    def load_append(self) -> None:
        value = self.stack.pop()
        self._extend([value])

    def load_appends(self) -> None:
        self._extend(self.pop_mark())

    def _extend(self, values: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise _Refused(f"items of a {type(self.stack[-1]).__name__}")
        self.stack[-1].extend(values)


_OWN = {
    "REDUCE": _Unpickler.load_reduce,
    "BUILD": _Unpickler.load_build,
    "SETITEM": _Unpickler.load_setitem,
    "SETITEMS": _Unpickler.load_setitems,
    "DICT": _Unpickler.load_dict,
    "APPEND": _Unpickler.load_append,
    "APPENDS": _Unpickler.load_appends,
}
for _name in _OPCODES:
    _code = getattr(pickle, _name)[0]
    _Unpickler.dispatch[_code] = _OWN.get(_name) or _Base.dispatch[_code]


def read(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The tensors of one PyTorch file, by name; anything that is not a tensor is left out."""
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile:
        raise UserError(
            f"{os.fspath(path)} is not a zip archive, so it is either damaged or in PyTorch's old "
            "pickle format, which is refused because reading it can run code; convert it to "
            "model.safetensors"
        ) from None
    with archive:
        return _read_archive(archive, os.fspath(path))


def _read_archive(archive: zipfile.ZipFile, path: str) -> dict[str, np.ndarray]:
    descriptions = [name for name in archive.namelist() if name.endswith("/data.pkl")]
    if len(descriptions) != 1:
        raise UserError(
            f"{path} holds no PyTorch weights (no data.pkl); expected what torch.save writes"
        )
    root = descriptions[0].removesuffix("data.pkl")
    description = _member(archive, descriptions[0])
    if description is None or len(description) > _LONGEST:
        raise UserError(
            f"{path} is refused: its description of tensors is cut off, compressed or over "
            f"{_LONGEST >> 20} MB, which torch.save does not write; convert it to model.safetensors"
        )
    try:
        content = _Unpickler(io.BytesIO(description)).load()
    except _Refused as refused:
        raise UserError(
            f"{path} is refused: its pickle asks for {refused}, which is not a tensor, and running "
            "what a weights file asks for is unsafe; convert it to model.safetensors"
        ) from None
    except Exception as error:  # a damaged or hostile pickle can fail in any way
        why = str(error)[:200] or type(error).__name__
        raise UserError(f"{path} is damaged: its pickle cannot be read ({why})") from None
    left = _SHARED * os.path.getsize(path)
    big_endian = _member(archive, f"{root}byteorder") == b"big"
    storages: dict[str, np.ndarray] = {}

    def storage(description: _Storage) -> np.ndarray:
        if description.member not in storages:
            raw = _member(archive, f"{root}data/{description.member}")
            size = description.length * description.dtype.itemsize
            if raw is None or len(raw) < size:
                raise UserError(f"{path} is damaged: storage {description.member} is cut off")
            array = np.frombuffer(raw, description.dtype, description.length)
            storages[description.member] = array.byteswap() if big_endian else array
        return storages[description.member]

    tensors: dict[str, np.ndarray] = {}
    for name, value in _named_tensors(content):
        try:
            tensors[name] = _view(storage(value.storage), value)
            left -= tensors[name].nbytes
        except (TypeError, ValueError, AttributeError):
            raise UserError(f"{path} is damaged: tensor {name} does not fit its storage") from None
        if left < 0:
            raise UserError(f"{path} is refused: its tensors are many times larger than the file")
    if not tensors:
        raise UserError(f"{path} holds no named tensors; expected a state dict")
    return tensors


def _member(archive: zipfile.ZipFile, name: str) -> bytes | None:
    """A member's bytes; torch never compresses, so a compressed one (a zip bomb?) is not read."""
    try:
        info = archive.getinfo(name)
    except KeyError:
        return None
    return archive.read(info) if info.compress_type == zipfile.ZIP_STORED else None


def _named_tensors(content: Any, depth: int = 3) -> list[tuple[str, _Tensor]]:
    """Tensors of a state dict, or of the one found under a usual key of a checkpoint."""
    if not isinstance(content, Mapping) or depth == 0:
        return []
    tensors = [(str(k), v) for k, v in content.items() if isinstance(v, _Tensor)]
    if tensors:
        return tensors
    for key in _WRAPPERS:
        if tensors := _named_tensors(content.get(key), depth - 1):
            return tensors
    return []


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
