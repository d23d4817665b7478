"""One problem size: what an implementation is asked to compute. No torch import."""

from __future__ import annotations

import csv
import difflib
import tomllib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Literal, TypeVar

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
DeviceKind = Literal["cuda", "cpu"]
Pass = Literal["fw", "fwbw", "decode"]
PASSES: tuple[Pass, ...] = ("fw", "fwbw", "decode")
PASS_TITLES = {"fw": "forward", "fwbw": "forward + backward", "decode": "decode step"}
# Of a problem: what is more is a slip, and numbers made of it mean nothing.
LARGEST = {"batch": 2**31, "heads": 2**20, "seq_len": 2**40, "d_qk": 2**16, "d_hv": 2**16}
LARGEST_BYTES = 2**60
INPUTS = ("normal", "standard")
T = TypeVar("T")
GATES = ("weak", "usual", "medium", "strong", "closing")
DRAWN_GATES = {"normal": "usual", "standard": "medium"}  # where none are asked for, by `inputs`


class InputError(ValueError):
    """A mistake of the user, or a wish that cannot be met; one line that also says what would be right."""


@contextmanager
def reading(file: str, kind: str) -> Iterator[None]:
    """Raise an InputError that names the file where one cannot be read, or is not what it should be, within the block.

    Args:
        file: what it is, and its path, such as "preset mine.toml".
        kind: what it should be: "TOML", or "TOML or CSV".
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}): name a {kind} file") from None
    except UnicodeDecodeError:
        raise InputError(f"{file} is no text in UTF-8: name a {kind} file") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{file} is no TOML: {error}") from None
    except (ValueError, csv.Error) as error:  # among them InputError
        raise InputError(f"{file}: {error}") from None


@dataclass(frozen=True)
class Problem:
    """A problem size, one point of a sweep without the implementation.

    Attributes:
        batch, heads, seq_len: B, H (of v), T, all >= 1 and at most LARGEST, as are the head dimensions.
        d_qk, d_hv: head dimensions of queries and keys, and of values and hidden states.
        chunk_size: L, or None where the implementation chooses ("auto") or has none.
        dtype: of q, k, v and the output: a key of DTYPE_BYTES.
        pass_: "fw", "fwbw" (forward and backward), or "decode" (one step from a state; seq_len is then 1).
        inputs: distribution of the inputs, by name (see `tflabench.implementations.adapter.draw`).
        gates: strength of the forget gates, by name (see `tflabench.implementations.adapter.forget_gates`); None for
            what `DRAWN_GATES` says. Constant decays, and operations without gates, take no notice.
        seed: of the inputs.
        heads_qk: heads of q and k, which divide those of v and of the gates; None for as many (then never a number).
        ranks: processes, each with a device and a part of the sequence; None for one (then never a number).
    """

    batch: int
    heads: int
    seq_len: int
    d_qk: int
    d_hv: int
    chunk_size: int | None = None
    dtype: str = "bfloat16"
    pass_: Pass = "fw"
    inputs: str = "normal"
    seed: int = 0
    heads_qk: int | None = None
    gates: str | None = None
    ranks: int | None = None

    def __post_init__(self) -> None:
        for name, most in LARGEST.items():
            value = getattr(self, name)
            if value < 1:
                raise InputError(f"{name} is {value}: it must be at least 1")
            if value > most:
                raise InputError(f"{name} is {value}: it must be at most {most}")
        if self.chunk_size is not None and self.chunk_size < 1:
            raise InputError(f"chunk_size is {self.chunk_size}: it must be at least 1")
        if self.heads_qk is not None and (self.heads_qk < 1 or self.heads % self.heads_qk):
            raise InputError(f"heads_qk is {self.heads_qk}: it must divide heads, which is {self.heads}")
        if self.heads_qk == self.heads:
            object.__setattr__(self, "heads_qk", None)
        if self.ranks is not None and (self.ranks < 1 or self.seq_len % self.ranks):
            raise InputError(f"ranks is {self.ranks}: it must divide seq_len, which is {self.seq_len}")
        if self.ranks == 1:
            object.__setattr__(self, "ranks", None)
        one_of("dtype", self.dtype, DTYPE_BYTES)
        one_of("pass", self.pass_, PASSES)

    @property
    def tokens(self) -> int:
        """Return the steps of all sequences."""
        return self.batch * self.seq_len

    @property
    def group(self) -> int:
        """Return the heads of v that share a head of q and k."""
        return self.heads // (self.heads_qk or self.heads)

    @property
    def part(self) -> Problem:
        """Return the problem of one rank, which has a part of the sequence; the problem itself where there is one."""
        return self if self.ranks is None else self.with_(seq_len=self.seq_len // self.ranks, ranks=None)

    @property
    def element_bytes(self) -> int:
        """Return the bytes of an element of q, k, v and the output."""
        return DTYPE_BYTES[self.dtype]

    def columns(self) -> dict[str, object]:
        """Return the fields under the names that rows and the command line use: `pass`, not `pass_`."""
        return {"pass" if name == "pass_" else name: value for name, value in asdict(self).items()}

    def with_(self, **changes: object) -> Problem:
        """Return this problem with other values of some fields."""
        return replace(self, **changes)  # type: ignore[arg-type]


def one_of(name: str, value: str, allowed: Collection[str]) -> str:
    """Return `value` if it is one of `allowed`, else InputError, which calls it `name` and names the nearest one."""
    if value in allowed:
        return value
    near = difflib.get_close_matches(value, allowed, n=1, cutoff=0.4)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise InputError(f"{name} is {value!r}: it must be one of {', '.join(allowed)}{hint}")


def dtype_bytes(name: str, dtype: str) -> int:
    """Return the bytes of one element of a dtype given as an option."""
    return DTYPE_BYTES[one_of(name, dtype, DTYPE_BYTES)]


def by_cut(items: Sequence[T], owner: Callable[[T], object], cut: Callable[[T], object]) -> list[list[T]]:
    """Return items in one list where each owner has a single cut among them, else in a list a cut."""
    cuts, parts = defaultdict[object, set[object]](set), defaultdict[object, list[T]](list)
    for item in items:
        cuts[owner(item)].add(cut(item))
        parts[cut(item)].append(item)
    return [list(items)] if max(map(len, cuts.values())) == 1 else list(parts.values())


def parse_bytes(name: str, text: str) -> int:
    """Return the bytes of a size such as "8GiB" or "500MB"; InputError, which calls it `name`, for anything else."""
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        size = int(TypeAdapter(ByteSize).validate_python(text))
    except (ValidationError, OverflowError):
        raise InputError(f"{name} is {text!r}: it must be a size such as 8GiB or 500MB") from None
    if size < 1:
        raise InputError(f"{name} is {text!r}: it must be more than nothing")
    if size > LARGEST_BYTES:
        raise InputError(f"{name} is {text!r}: it must be at most {LARGEST_BYTES >> 50} PiB")
    return size


def size_in_words(size: float) -> str:
    """Return a number of bytes in words: "8.00 GiB", "3.0 MiB", "10 bytes"."""
    if size >= 2**20:
        return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
    return f"{size / 2**10:.1f} KiB" if size >= 2**10 else f"{size:.0f} bytes"
