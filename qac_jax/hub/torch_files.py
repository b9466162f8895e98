"""PyTorch `.bin` / `.pt` weight files, read without running what is pickled in them.

Such a file is a zip archive: a pickle that describes tensors, and one raw member a storage.
A pickle can call anything, so the unpickler here knows a few names only, and what they make are
plain descriptions of our own.
"""

import dataclasses
import io
import math
import os
import pickle
import pickletools
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
    """A pickle asks for something that is not a tensor."""


class _Names(dict):
    """A pickle's dictionary; tuples of tuples are no keys, as to hash them takes 2^depth steps."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if not isinstance(key, str | int | float | bytes):
            raise _Refused(f"a dictionary whose key is a {type(key).__name__}")
        super().__setitem__(key, value)

    def __setstate__(self, state: Any) -> None:
        """Leaves out attributes beside the tensors, such as a state dict's _metadata."""


class _Unpickler(pickle.Unpickler):
    """Knows the names that tensors are written with, and no others.

    They stand for methods, whose attributes no pickle can set, and for texts.
    """

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
            raise _Refused(f"{module}.{name}"[:200])
        return known[f"{module}.{name}"]

    def persistent_load(self, pid: Any) -> _Storage:
        kind, name, member, _, length = pid
        if kind != "storage" or not isinstance(name, str) or name not in _STORAGES:
            what = kind if isinstance(kind, str) else type(kind).__name__
            raise _Refused(f"a persistent object of kind {what[:50]!r}")
        if not isinstance(member, str | int):
            raise _Refused("a storage without a name")
        return _Storage(str(member), _STORAGES[name], int(length))

    def _ordered(self) -> _Names:
        return _Names()

    def _same(self, value: Any, *_: Any) -> Any:
        return value

    def _tensor(self, storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
        return _Tensor(storage, offset, shape, strides)


# What PyTorch writes. Others look classes up in other ways or write huge numbers.
_OPCODES = frozenset(
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE "
    "SHORT_BINUNICODE BINBYTES SHORT_BINBYTES EMPTY_LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 "
    "TUPLE2 TUPLE3 EMPTY_DICT SETITEM SETITEMS BINGET LONG_BINGET BINPUT LONG_BINPUT MEMOIZE "
    "GLOBAL STACK_GLOBAL REDUCE BUILD BINPERSID".split()
)
_NEW_NAMES = b"ccollections\nOrderedDict\n)R"
# Bytes of a description: one of a thousand tensors has about 100 kB.
_LONGEST = 4 << 20
# Tensors may share storages, but not without end: bytes of all for each byte of the file.
_SHARED = 16


def _unpickled(description: bytes) -> Any:
    """What a pickle describes; its opcodes are looked at before anything is done."""
    operations = list(pickletools.genops(description))
    ends = [place for _, _, place in operations[1:]] + [len(description)]
    parts = []
    for (opcode, argument, begin), end in zip(operations, ends, strict=True):
        if opcode.name not in _OPCODES:
            raise _Refused(f"the operation {opcode.name}")
        if opcode.name == "LONG_BINPUT" and int(argument or 0) > len(description):
            raise _Refused("a place in memory that it does not need")
        if opcode.name == "EMPTY_DICT":
            parts.append(_NEW_NAMES)
        elif opcode.name != "FRAME":  # its length would be another one
            parts.append(description[begin:end])
    return _Unpickler(io.BytesIO(b"".join(parts))).load()


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
        content = _unpickled(description)
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
