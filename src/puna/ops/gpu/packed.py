"""Weight matrices on the device, in the layout of the kernels.

A packed matrix has up to five planes. For a row with chunks of 128 columns (256 with 2, 3, 5 or 6 bits):

- `codes` int16 [rows, chunks, words]: word k has the codes of columns k, 32 + k, 64 + k, ... of the chunk,
  the first in its lowest bits. Codes of 8 bits take two sets of 32 words. These are the lowest four of 5 or
  6 bits, and the lowest two of 3.
- `high` uint8, or int16 for codes of 6 bits, [rows, chunks, 32]: the upper bits in the same order.
- `scales` int32 [groups, rows]: for every 64 columns two float16 scales; or for every 32 a float16 scale and
  an offset; or for every 128 four exponents of MXFP4, as float16 has them; or the integers of K formats,
  which have 8 bits here, for each 16 or 32 columns. Of those for 16, a word has the ones of every second 16.
- `supers` [columns / 256, rows]: the float32 unit of these integers, or an int32 of two float16, the units of
  scales and of minima.
- `factors` float32 [rows]: powers of two that rows were divided by, so that every weight is a float16 number
  of normal size.

F16, BF16 and F32 matrices have `codes` only, of their own type, [rows, columns]. Columns are padded to whole
chunks by zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from puna.gguf import GGMLType, dequantize

#: Numbers converted at a time: their codes take a byte each, and some steps eight.
_CHUNK_VALUES = 1 << 25
#: The largest weight of a row is between half of this and this. float16 ends at 65504; below 1/16 it
#: has fewer digits than above.
_LARGEST = 2.0**11
#: The exponent of the largest MXFP4 scale of a row: the last one of float16. Levels count units of 2^-15.
_LARGEST_POWER = 30


@dataclass(frozen=True)
class PlaneFormat:
    """The form of a type's planes, as constants of the kernels (`kernels/formats.py`)."""

    bits: int  # of a code; 16 and 32 are floating-point numbers
    scales: str  # the form of the scales
    levels: int | str  # a level is the code minus this, or an entry of a table

    @property
    def chunk(self) -> int:
        """Columns that are packed together."""
        return 256 if self.bits in (2, 3, 5, 6) else 128


FORMATS: dict[GGMLType, PlaneFormat] = {
    GGMLType.F32: PlaneFormat(32, "none", 0),
    GGMLType.F16: PlaneFormat(16, "none", 0),
    GGMLType.BF16: PlaneFormat(16, "none", 0),
    GGMLType.Q4_0: PlaneFormat(4, "half", 8),
    GGMLType.Q4_1: PlaneFormat(4, "affine", 8),
    GGMLType.Q5_0: PlaneFormat(5, "half", 16),
    GGMLType.Q5_1: PlaneFormat(5, "affine", 16),
    GGMLType.Q8_0: PlaneFormat(8, "half", 128),
    GGMLType.IQ4_NL: PlaneFormat(4, "half", "iq4"),
    GGMLType.MXFP4: PlaneFormat(4, "exponent", "e2m1"),
    GGMLType.Q2_K: PlaneFormat(2, "halves_affine", 2),
    GGMLType.Q3_K: PlaneFormat(3, "halves", 4),
    GGMLType.Q4_K: PlaneFormat(4, "bytes_affine", 8),
    GGMLType.Q5_K: PlaneFormat(5, "bytes_affine", 16),
    GGMLType.Q6_K: PlaneFormat(6, "halves", 32),
    GGMLType.IQ4_XS: PlaneFormat(4, "bytes", "iq4"),
}

_FLOATS = {GGMLType.F32: torch.float32, GGMLType.F16: torch.float16, GGMLType.BF16: torch.bfloat16}


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix [rows, columns] on a device. Planes that a type does not have are its codes once more."""

    type: GGMLType  # of the planes: the file's, or F16 or F32
    rows: int
    columns: int
    codes: Tensor
    high: Tensor
    scales: Tensor
    supers: Tensor
    factors: Tensor

    @property
    def format(self) -> PlaneFormat:
        """The form of the planes."""
        return FORMATS[self.type]

    @property
    def chunks(self) -> int:
        """Chunks in a row."""
        return -(-self.columns // self.format.chunk)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        planes = {plane.data_ptr(): plane for plane in self.planes()}
        return sum(plane.nbytes for plane in planes.values())

    def planes(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the planes in the order in which kernels take them."""
        return self.codes, self.high, self.scales, self.supers, self.factors

    @classmethod
    def pack(cls, data: Tensor, type: GGMLType, rows: int, columns: int) -> PackedMatrix:
        """Pack a file's matrix: `data` uint8 [rows * bytes of a row], on the device it is packed on.

        A type without kernels becomes F16, or F32 if float16 cannot hold it. Raises `ValueError` for another
        number of bytes.
        """
        if data.numel() != type.nbytes(rows * columns):
            raise ValueError(
                f"{data.numel()} bytes for a {type.name} matrix [{rows}, {columns}], "
                f"expected {type.nbytes(rows * columns)}"
            )
        if not data.numel():
            empty = data.new_empty((rows, 0), dtype=_FLOATS.get(type, torch.int16))
            return cls(type, rows, columns, empty, empty, empty, empty, empty)
        stored = data.reshape(rows, data.numel() // rows)
        if type not in FORMATS:
            stored, type = _converted(stored, type, columns)
        form = FORMATS[type]
        if type in _FLOATS:
            numbers = _pad(_as(stored, _FLOATS[type]), form.chunk).contiguous()
            factors = torch.ones(rows, device=data.device)
            return cls(type, rows, columns, numbers, numbers, numbers, numbers, factors)
        step = max(1, _CHUNK_VALUES // columns)
        pieces = [_pack_rows(stored[begin : begin + step], type, form) for begin in range(0, rows, step)]
        codes = torch.cat([piece.codes for piece in pieces])
        high = [piece.high for piece in pieces if piece.high is not None]
        scales = torch.cat([piece.scales for piece in pieces], dim=1)
        supers = [piece.supers for piece in pieces if piece.supers is not None]
        factors = torch.cat([piece.factors for piece in pieces])
        return cls(
            type,
            rows,
            columns,
            codes,
            torch.cat(high) if high else codes,
            scales,
            torch.cat(supers, dim=1) if supers else codes,
            factors,
        )


def packed_bytes(type: GGMLType, shape: tuple[int, ...]) -> int:
    """Return the bytes of a packed matrix of `shape`. Types without kernels are assumed to fit float16."""
    rows, columns = shape
    kind = type if type in FORMATS else GGMLType.F16
    form = FORMATS[kind]
    padded = -(-columns // form.chunk) * form.chunk
    bits = padded * form.bits
    match form.scales:
        case "half":
            bits += padded // 32 * 16
        case "affine":
            bits += padded // 32 * 32
        case "exponent":
            bits += padded // 32 * 8
        case "bytes":
            bits += padded // 32 * 8 + -(-padded // 256) * 32
        case "bytes_affine":
            bits += padded // 32 * 16 + -(-padded // 256) * 32
        case "halves":
            bits += padded // 16 * 8 + -(-padded // 256) * 32
        case "halves_affine":
            bits += padded // 16 * 8 + -(-padded // 256) * 32
    return rows * (bits // 8 + 4)


def supports(type: GGMLType) -> bool:
    """Return whether kernels read matrices of this type, which otherwise become F16 or F32."""
    return type in FORMATS


@dataclass(frozen=True)
class _Piece:
    """The planes of some rows."""

    codes: Tensor
    high: Tensor | None
    scales: Tensor
    supers: Tensor | None
    factors: Tensor


@dataclass(frozen=True)
class _Fields:
    """The numbers in a matrix's blocks, all with the rows first.

    codes uint8 [rows, columns], from 0; scales and minima float32 [rows, groups], the integers of K formats
    or all there is; units float32 [rows, superblocks]. A weight is `scale * level - minimum`.
    """

    codes: Tensor
    scales: Tensor
    minima: Tensor | None = None
    unit: Tensor | None = None
    minimum_unit: Tensor | None = None


def _pack_rows(stored: Tensor, type: GGMLType, form: PlaneFormat) -> _Piece:
    """Pack rows uint8 [rows, bytes] of a quantised type."""
    fields = _READERS[type](stored.reshape(len(stored), stored.shape[1] // type.type_size, type.type_size))
    codes, high = _words(_pad(fields.codes, form.chunk), form.bits)
    groups = 16 if form.scales in ("halves", "halves_affine") else 32
    per_chunk = form.chunk // groups

    def padded(values: Tensor) -> Tensor:
        return _pad(values, per_chunk)

    supers: Tensor | None = None
    if form.scales == "exponent":
        scales, powers = _exponents(fields.scales)
        scales = _four_bytes(padded(scales))
    else:
        top = {"iq4": 127.0}.get(str(form.levels), float(2**form.bits))
        unit = 1.0 if fields.unit is None else fields.unit.repeat_interleave(256 // groups, dim=1)
        largest = (fields.scales * unit).abs() * top
        if fields.minima is not None:
            floor = (
                1.0
                if fields.minimum_unit is None
                else fields.minimum_unit.repeat_interleave(256 // groups, 1)
            )
            largest = largest + (fields.minima * floor).abs()
        powers = _powers(largest)
        match form.scales:
            case "half":
                halves = padded(_halves(fields.scales, powers))
                scales = _as(halves, torch.int32)
            case "affine":
                assert fields.minima is not None
                scales = padded(_pairs(_halves(fields.scales, powers), _halves(-fields.minima, powers)))
            case "bytes" | "halves":
                assert fields.unit is not None
                scales = padded(fields.scales + 128)
                scales = _four_bytes(_by_halves(scales) if form.scales == "halves" else scales)
                supers = fields.unit * _power_of_two(powers)[:, None]
            case _:
                assert fields.unit is not None
                assert fields.minima is not None
                assert fields.minimum_unit is not None
                if form.scales == "bytes_affine":
                    words = _four_bytes(fields.scales), _four_bytes(fields.minima)
                    scales = torch.stack(words, dim=2).reshape(len(stored), -1)
                else:
                    scales = _four_bytes(_by_halves(fields.scales + 16 * fields.minima))
                supers = _pairs(_halves(fields.unit, powers), _halves(fields.minimum_unit, powers))
    return _Piece(
        codes,
        high,
        scales.t().contiguous(),
        None if supers is None else supers.t().contiguous(),
        _power_of_two(-powers),
    )


def _powers(largest: Tensor) -> Tensor:
    """Return exponents [rows] that bring the largest of each row [rows, groups] just below `_LARGEST`."""
    bounds = largest.amax(dim=1)
    usable = bounds.isfinite() & (bounds > 0)
    exponents = torch.frexp(torch.where(usable, bounds, _LARGEST)).exponent
    return torch.frexp(torch.tensor(_LARGEST)).exponent.item() - 1 - exponents


def _halves(values: Tensor, powers: Tensor) -> Tensor:
    """Return values [rows, n] times two to the power of the rows' `powers`, as float16."""
    return (values * _power_of_two(powers)[:, None]).to(torch.float16)


def _power_of_two(exponents: Tensor) -> Tensor:
    """Return exact float32 powers; a GPU's float32 function may miss the last bit."""
    return torch.exp2(exponents.double()).float()


def _pairs(low: Tensor, up: Tensor) -> Tensor:
    """Return float16 numbers [rows, n] as the halves of int32 words [rows, n]."""
    return _as(torch.stack([low, up], dim=2), torch.int32).squeeze(2)


def _as(values: Tensor, type: torch.dtype) -> Tensor:
    """Return the bits of `values` as numbers of another type, those of the last axis joined or split.

    Through one axis: what torch wants of the strides of others, even of a single row, differs by version.
    """
    *shape, last = values.shape
    return values.reshape(values.numel()).view(type).reshape(*shape, last * values.itemsize // type.itemsize)


def _by_halves(values: Tensor) -> Tensor:
    """Reorder numbers for 16 columns each [rows, 8 n]: the first of each pair of four, then the second."""
    return values.reshape(len(values), -1, 4, 2).transpose(2, 3).reshape(len(values), -1)


def _four_bytes(values: Tensor) -> Tensor:
    """Return integers from 0 to 255 [rows, 4 n] as int32 words [rows, n], the first in the lowest byte."""
    return _as(values.to(torch.uint8), torch.int32)


def _exponents(scales: Tensor) -> tuple[Tensor, Tensor]:
    """Return the exponents of float16 powers of two uint8 [rows, groups], and those of the rows' factors.

    `scales` are exponents of powers of two. A scale 2^30 times smaller than the row's largest becomes 0.
    """
    added = (_LARGEST_POWER - scales.amax(dim=1)).to(torch.int32)
    # float16 subtracts 15 from its exponents, and levels are 2^15 times smaller than they count.
    return (scales + added[:, None]).clamp(0, _LARGEST_POWER).to(torch.uint8), added - 30


def _words(codes: Tensor, bits: int) -> tuple[Tensor, Tensor | None]:
    """Pack codes uint8 [rows, columns] of whole chunks: the planes `codes` and `high`."""

    def words(values: Tensor, width: int, type: torch.dtype) -> Tensor:
        size = 8 * type.itemsize // width
        tiles = values.reshape(len(values), -1, size, 32).to(torch.int32)
        total = tiles[:, :, 0]
        for place in range(1, size):
            total = total | tiles[:, :, place] << (width * place)
        if type is torch.int16:  # the value as a signed number
            total = (total & 0x7FFF) - (total & 0x8000)
        return total.to(type).reshape(len(values), -1)

    match bits:
        case 2 | 4 | 8:
            return words(codes, bits, torch.int16), None
        case 3:
            return words(codes & 3, 2, torch.int16), words(codes >> 2, 1, torch.uint8)
        case 5:
            return words(codes & 15, 4, torch.int16), words(codes >> 4, 1, torch.uint8)
        case _:
            return words(codes & 15, 4, torch.int16), words(codes >> 4, 2, torch.int16)


def _pad(values: Tensor, multiple: int) -> Tensor:
    """Append zeros to the rows of `values` [rows, n], up to a multiple."""
    missing = -values.shape[1] % multiple
    return torch.nn.functional.pad(values, (0, missing)) if missing else values


def _converted(stored: Tensor, type: GGMLType, columns: int) -> tuple[Tensor, GGMLType]:
    """Return rows uint8 [rows, bytes] as float16, or as float32 if that cannot hold them, and the type."""
    host = stored.cpu().numpy()
    step = max(1, _CHUNK_VALUES // columns)

    def converted(number: torch.dtype) -> Tensor:
        pieces = [
            torch.from_numpy(dequantize(host[begin : begin + step], type)).to(number)
            for begin in range(0, len(host), step)
        ]
        return torch.cat(pieces).to(stored.device)

    half = converted(torch.float16)
    if half.isfinite().all():
        return half.view(torch.uint8), GGMLType.F16
    return converted(torch.float32).view(torch.uint8), GGMLType.F32


# The fields of blocks uint8 [rows, blocks, bytes]; their layouts are those of `puna.gguf.blocks.layout`.


def _unpack(packed: Tensor, bits: int, run: int) -> Tensor:
    """Unpack codes uint8 [..., 8 // bits * bytes] from bytes [..., bytes], as `puna.gguf` does."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)[:, None]
    runs = packed.reshape(*packed.shape[:-1], packed.shape[-1] // run, 1, run)
    codes: Tensor = (runs >> shifts) & (2**bits - 1)
    return codes.reshape(*packed.shape[:-1], -1)


def _rows(values: Tensor) -> Tensor:
    """Join the blocks of each row: [rows, blocks, n] becomes [rows, blocks * n]."""
    return values.reshape(len(values), values.shape[1] * values.shape[2])


def _half(blocks: Tensor, at: int) -> Tensor:
    """Return the float16 numbers at a byte of each block: float32 [rows, blocks]."""
    return _as(blocks[:, :, at : at + 2], torch.float16).squeeze(2).float()


def _read_q4_0(blocks: Tensor) -> _Fields:
    return _Fields(_rows(_unpack(blocks[:, :, 2:], 4, 16)), _half(blocks, 0))


def _read_q4_1(blocks: Tensor) -> _Fields:
    return _Fields(_rows(_unpack(blocks[:, :, 4:], 4, 16)), _half(blocks, 0), -_half(blocks, 2))


def _read_q5_0(blocks: Tensor) -> _Fields:
    codes = _unpack(blocks[:, :, 6:], 4, 16) | _unpack(blocks[:, :, 2:6], 1, 1) << 4
    return _Fields(_rows(codes), _half(blocks, 0))


def _read_q5_1(blocks: Tensor) -> _Fields:
    codes = _unpack(blocks[:, :, 8:], 4, 16) | _unpack(blocks[:, :, 4:8], 1, 1) << 4
    return _Fields(_rows(codes), _half(blocks, 0), -_half(blocks, 2))


def _read_q8_0(blocks: Tensor) -> _Fields:
    return _Fields(_rows(blocks[:, :, 2:] ^ 128), _half(blocks, 0))


def _read_mxfp4(blocks: Tensor) -> _Fields:
    """Read exponents; a power is 2^(exponent - 128), as levels are doubled."""
    return _Fields(_rows(_unpack(blocks[:, :, 1:], 4, 16)), blocks[:, :, 0].to(torch.int32) - 128)


def _read_q2_k(blocks: Tensor) -> _Fields:
    codes, packed = _unpack(blocks[:, :, 16:80], 2, 32), _rows(blocks[:, :, :16])
    return _Fields(
        _rows(codes), (packed & 15).float(), (packed >> 4).float(), _half(blocks, 80), _half(blocks, 82)
    )


def _read_q3_k(blocks: Tensor) -> _Fields:
    codes = _unpack(blocks[:, :, 32:96], 2, 32) | _unpack(blocks[:, :, :32], 1, 32) << 2
    scales = _unpack(blocks[:, :, 96:104], 4, 8) | _unpack(blocks[:, :, 104:108], 2, 4) << 4
    return _Fields(_rows(codes), _rows(scales).float() - 32, unit=_half(blocks, 108))


def _scales_of_twelve_bytes(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Unpack eight 6-bit scales and minima of each block, float32 [rows, groups]."""
    a, b, c = packed[:, :, :4], packed[:, :, 4:8], packed[:, :, 8:]
    scales = torch.cat([a & 63, c & 15 | a >> 6 << 4], dim=2)
    minima = torch.cat([b & 63, c >> 4 | b >> 6 << 4], dim=2)
    return _rows(scales).float(), _rows(minima).float()


def _read_q4_k(blocks: Tensor) -> _Fields:
    scales, minima = _scales_of_twelve_bytes(blocks[:, :, 4:16])
    codes = _unpack(blocks[:, :, 16:], 4, 32)
    return _Fields(_rows(codes), scales, minima, _half(blocks, 0), _half(blocks, 2))


def _read_q5_k(blocks: Tensor) -> _Fields:
    scales, minima = _scales_of_twelve_bytes(blocks[:, :, 4:16])
    codes = _unpack(blocks[:, :, 48:], 4, 32) | _unpack(blocks[:, :, 16:48], 1, 32) << 4
    return _Fields(_rows(codes), scales, minima, _half(blocks, 0), _half(blocks, 2))


def _read_q6_k(blocks: Tensor) -> _Fields:
    codes = _unpack(blocks[:, :, :128], 4, 64) | _unpack(blocks[:, :, 128:192], 2, 32) << 4
    scales = _as(blocks[:, :, 192:208], torch.int8)
    return _Fields(_rows(codes), _rows(scales).float(), unit=_half(blocks, 208))


def _read_iq4_xs(blocks: Tensor) -> _Fields:
    scales = _unpack(blocks[:, :, 4:8], 4, 1) | _unpack(blocks[:, :, 2:4], 2, 1) << 4
    codes = _unpack(blocks[:, :, 8:], 4, 16)
    return _Fields(_rows(codes), _rows(scales).float() - 32, unit=_half(blocks, 0))


_READERS: dict[GGMLType, Callable[[Tensor], _Fields]] = {
    GGMLType.Q4_0: _read_q4_0,
    GGMLType.Q4_1: _read_q4_1,
    GGMLType.Q5_0: _read_q5_0,
    GGMLType.Q5_1: _read_q5_1,
    GGMLType.Q8_0: _read_q8_0,
    GGMLType.IQ4_NL: _read_q4_0,  # the codes are looked up in another table
    GGMLType.MXFP4: _read_mxfp4,
    GGMLType.Q2_K: _read_q2_k,
    GGMLType.Q3_K: _read_q3_k,
    GGMLType.Q4_K: _read_q4_k,
    GGMLType.Q5_K: _read_q5_k,
    GGMLType.Q6_K: _read_q6_k,
    GGMLType.IQ4_XS: _read_iq4_xs,
}
