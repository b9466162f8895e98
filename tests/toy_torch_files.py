"""PyTorch's weight files, made by hand: what their pickles say can be anything."""

import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any


def archive(path: Path, description: bytes, storages: dict[str, bytes], **options) -> Path:
    """A file as torch.save writes it, made by hand."""
    with zipfile.ZipFile(path, "w", **options) as file:
        file.writestr("archive/data.pkl", description)
        for name, raw in storages.items():
            file.writestr(f"archive/data/{name}", raw)
    return path


class Global:
    """Pickles as a name to import."""

    def __init__(self, module: str, name: str):
        self.module, self.name = module, name


class Call:
    """Pickles as a call of a name."""

    def __init__(self, function: Global, *arguments):
        self.function, self.arguments = function, arguments


class Storage(tuple):
    """Pickles as a persistent id, as storages do."""


PYTHON_PICKLER: Any = pickle._Pickler  # the one whose steps can be replaced


class Pickler(PYTHON_PICKLER):
    def persistent_id(self, value):
        return tuple(value) if isinstance(value, Storage) else None

    def save(self, value, save_persistent_id=True):
        if isinstance(value, Global):
            self.write(b"c" + f"{value.module}\n{value.name}\n".encode())
        elif isinstance(value, Call):
            self.save(value.function)
            self.save(value.arguments)
            self.write(pickle.REDUCE)
        else:
            super().save(value, save_persistent_id)


def pickled(value) -> bytes:
    buffer = io.BytesIO()
    Pickler(buffer, protocol=2).dump(value)
    return buffer.getvalue()


def tensor(member="0", size=6, offset=0, shape=(2, 3), strides=(3, 1), kind="FloatStorage"):
    storage = Storage(("storage", Global("torch", kind), member, "cpu", size))
    rebuild = Global("torch._utils", "_rebuild_tensor_v2")
    return Call(rebuild, storage, offset, shape, strides, False, OrderedDict())
