"""What the kernels of a compiled GPU program read and write, from its text."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterator


_SIZES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s32": 4, "u32": 4}
_SIZES |= {"f32": 4, "s64": 8, "u64": 8, "f64": 8}
_ARRAY = re.compile(rf"\b({'|'.join(_SIZES)})\[([\d,]*)\]")
_SCRATCH = re.compile(r"s8\[\d+\]")  # of cuBLAS and cuDNN, beside their results
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (.*?) ([a-z][a-z0-9-]*)\((.*)$")
_BODY = re.compile(r"body=%?([\w.-]+)")
_CALLED = re.compile(r"(?:calls|to_apply)=%?([\w.-]+)")
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
# What moves no bytes, or is counted at its other half.
_FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast after-all partition-id "
    "copy-done async-done all-reduce-done".split()
)
_CUTS = frozenset("slice dynamic-slice gather".split())  # read no more than they give


@dataclasses.dataclass(frozen=True)
class Instruction:
    """A line of the program."""

    name: str
    type: str
    operation: str
    rest: str  # operands and attributes

    @property
    def operands(self) -> list[str]:
        depth = 0
        for place, letter in enumerate(self.rest):
            depth += (letter == "(") - (letter == ")")
            if depth < 0:
                return re.findall(r"%([\w.-]+)", self.rest[:place])
        return []


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel, and how often it runs in a step."""

    kind: str  # "product", "attention", "transpose", "copy" or "rest"
    bytes: int  # read and written by one run
    times: int


def kernels(text: str) -> list[Kernel]:
    """Those of one run of the program, loops counted as often as they go around."""
    program = _Program(text)
    return list(program.kernels(program.entry, 1))


def gigabytes(found: list[Kernel]) -> dict[str, float]:
    """What each kind reads and writes."""
    total: collections.Counter[str] = collections.Counter()
    for kernel in found:
        total[kernel.kind] += kernel.bytes * kernel.times
    return {kind: count / 1e9 for kind, count in total.items()}


class _Program:
    def __init__(self, text: str) -> None:
        self.computations: dict[str, list[Instruction]] = {}
        self.entry, here = "", ""
        for line in text.splitlines():
            if begin := _COMPUTATION.match(line):
                here = begin[2]
                self.computations[here] = []
                self.entry = here if begin[1] else self.entry
            elif here and (match := _INSTRUCTION.match(line)):
                self.computations[here].append(Instruction(*match.groups()))

    def kernels(self, name: str, times: int) -> Iterator[Kernel]:
        types = {line.name: line.type for line in self.computations[name]}
        for line in self.computations[name]:
            if line.operation in _FREE:
                continue
            if line.operation == "while":
                trips = _TRIPS.search(line.rest)
                yield from self.kernels(_of(_BODY, line), times * int(trips[1] if trips else 1))
            elif line.operation in ("call", "async-start"):
                yield from self.kernels(_of(_CALLED, line), times)
            else:
                yield Kernel(_kind(line), self._moved(line, types), times)

    def _moved(self, line: Instruction, types: dict[str, str]) -> int:
        sizes = [_bytes(types.get(operand, "")) for operand in line.operands]
        written = _bytes(_SCRATCH.sub("", line.type))
        if line.operation in _CUTS:
            return 2 * written
        if line.operation == "fusion":
            inside = self.computations[_of(_CALLED, line)]
            read = sum(min(size, _read(inside, place, size)) for place, size in enumerate(sizes))
            return read + _written(inside, written)
        return sum(sizes) + written


def _of(pattern: re.Pattern[str], line: Instruction) -> str:
    match = pattern.search(line.rest)
    return match[1] if match else ""


def _bytes(types: str) -> int:
    total = 0
    for kind, shape in _ARRAY.findall(types):
        size = _SIZES[kind]
        for axis in filter(None, shape.split(",")):
            size *= int(axis)
        total += size
    return total


def _read(inside: list[Instruction], place: int, whole: int) -> int:
    """What a fusion reads of one argument: parts where nothing but parts is used."""
    mine = {x.name for x in inside if x.operation == "parameter" and x.rest.startswith(f"{place})")}
    total = 0
    for line in inside:
        for position, operand in enumerate(line.operands):
            if operand not in mine:
                continue
            if line.operation == "bitcast":
                mine.add(line.name)
            elif line.operation in _CUTS and position == 0:
                total += _bytes(line.type)
            elif not (line.operation == "dynamic-update-slice" and position == 0):
                return whole
    return total


def _written(inside: list[Instruction], whole: int) -> int:
    """What a fusion writes: a part where it changes an array in place."""
    by_name = {line.name: line for line in inside}
    last = inside[-1]
    while last.operation == "bitcast" and last.operands[0] in by_name:
        last = by_name[last.operands[0]]
    if last.operation != "dynamic-update-slice":
        return whole
    return _bytes(by_name[last.operands[1]].type)


def _kind(line: Instruction) -> str:
    target = _of(_TARGET, line)
    if "cublas" in target:
        return "product"
    if "cudnn" in target or "triton" in target:  # XLA's own Triton kernels are fusions
        return "attention"
    if line.operation == "transpose" or "transpose" in line.name:
        return "transpose"
    return "copy" if line.operation in ("copy", "copy-start") else "rest"
