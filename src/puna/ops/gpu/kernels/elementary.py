"""Elementary functions of float32 for kernels, accurate to two units in the last place unless stated.

Triton's `exp` and division are the hardware's approximations, whose errors grow with the argument, and its
precise functions are not known to the interpreter. These need only additions, products and exact divisions,
and give the same bits on every device that fuses the same products and sums.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def exp(x):
    """Return e^x: 0 below -104, infinity above 89."""
    x = tl.where(x > 89.0, 89.0, x)
    x = tl.where(x < -104.0, -104.0, x)
    n = tl.floor(x * 1.4426950408889634 + 0.5)
    # ln 2 in two parts: the products with the first are exact.
    rest = tl.fma(n, -0.693359375, x)
    rest = tl.fma(n, 2.12194440e-4, rest)
    # The polynomial is Cephes', for |rest| <= ln(2) / 2.
    y = tl.fma(rest, 1.9875691500e-4, 1.3981999507e-3)
    y = tl.fma(rest, y, 8.3334519073e-3)
    y = tl.fma(rest, y, 4.1665795894e-2)
    y = tl.fma(rest, y, 1.6666665459e-1)
    y = tl.fma(rest, y, 5.0000001201e-1)
    y = tl.fma(rest * rest, y, rest) + 1.0
    # In two steps, since 2^n may be beyond the range of normal numbers where the result is not.
    whole = tl.where(n == n, n, 0.0).to(tl.int32)
    half = whole >> 1
    return y * _power_of_two(half) * _power_of_two(whole - half)


@triton.jit
def _power_of_two(n):
    return ((n + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + e^-x)."""
    return tl.div_rn(1.0, 1.0 + exp(-x))


@triton.jit
def tanh(x):
    """Return the hyperbolic tangent."""
    size = tl.abs(x)
    large = 1.0 - tl.div_rn(2.0, exp(2.0 * size) + 1.0)
    square = x * x
    # Cephes' polynomial, for |x| < 0.625.
    y = tl.fma(square, -5.70498872745e-3, 2.06390887954e-2)
    y = tl.fma(square, y, -5.37397155531e-2)
    y = tl.fma(square, y, 1.33314422036e-1)
    y = tl.fma(square, y, -3.33332819422e-1)
    small = tl.fma(square * y, x, x)
    return tl.where(size < 0.625, small, tl.where(x < 0, -large, large))


@triton.jit
def softplus(x):
    """Return ln(1 + e^x)."""
    # ln(1 + u) is 2 artanh(s) with s = u / (2 + u), at most 1/3: the series ends at s^15 / 15.
    u = exp(-tl.abs(x))
    s = tl.div_rn(u, 2.0 + u)
    square = s * s
    y = tl.fma(square, 1 / 15, 1 / 13)
    y = tl.fma(square, y, 1 / 11)
    y = tl.fma(square, y, 1 / 9)
    y = tl.fma(square, y, 1 / 7)
    y = tl.fma(square, y, 1 / 5)
    y = tl.fma(square, y, 1 / 3)
    logarithm = 2.0 * tl.fma(square * y, s, s)
    return tl.where(x > 0, x, tl.where(x == x, 0.0, x)) + logarithm


@triton.jit
def cos_sin(turns):
    """Return the cosine and sine of angles in turns, as int64 in units of 2^-64 of a turn.

    Both are within 1e-7.
    """
    # The nearest quarter is left out exactly; an eighth of a turn remains on either side of it.
    quarter = ((turns >> 61) + 1) >> 1
    rest = turns - (quarter << 62)
    angle = (rest >> 32).to(tl.float32) * 1.4629180792671596e-09  # 2 pi / 2^32
    square = angle * angle
    # Cephes' polynomials, for |angle| <= pi / 4.
    s = tl.fma(square, -1.9515295891e-4, 8.3321608736e-3)
    s = tl.fma(square, s, -1.6666654611e-1)
    s = tl.fma(square * s, angle, angle)
    c = tl.fma(square, 2.443315711809948e-5, -1.388731625493765e-3)
    c = tl.fma(square, c, 4.166664568298827e-2)
    c = tl.fma(square * square, c, tl.fma(square, -0.5, 1.0))
    crossed = (quarter & 1) == 1
    cosine, sine = tl.where(crossed, s, c), tl.where(crossed, c, s)
    cosine = tl.where(((quarter + 1) & 2) == 2, -cosine, cosine)
    sine = tl.where((quarter & 2) == 2, -sine, sine)
    return cosine, sine


@triton.jit
def order_of(x):
    """Return uint32 that are larger for the larger number; that of -infinity is 0x007FFFFF."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)  # no -0
    return (bits ^ ((bits >> 31) | -2147483648)).to(tl.uint32, bitcast=True)
