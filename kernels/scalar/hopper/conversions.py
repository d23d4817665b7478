# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""Conversions between float32 and 16 bits (bfloat16, float16), two values at a time.

Left to itself the compiler converts one by one, at a quarter of the rate.
"""

from triton import constexpr_function
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def converted(x, dtype: gl.constexpr, bfloat16: gl.constexpr, float16: gl.constexpr):
    """Convert float32 x to dtype by the instructions given for it: two float32, $1 and $2, to two of 16 bits, $0."""
    if dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(bfloat16, "=r,f,f", [x], gl.bfloat16, is_pure=True, pack=2)
    else:
        return gl.inline_asm_elementwise(float16, "=r,f,f", [x], gl.float16, is_pure=True, pack=2)


@gluon.jit
def nearest(x, dtype: gl.constexpr):
    """Round float32 x to dtype."""
    return converted(x, dtype, "cvt.rn.bf16x2.f32 $0, $2, $1;", "cvt.rn.f16x2.f32 $0, $2, $1;")


@gluon.jit
def nearest_of_negative(x, dtype: gl.constexpr):
    """Round -x to dtype. What is converted twice the same way the compiler would keep in registers in between."""
    bfloat16: gl.constexpr = "{ .reg .f32 a, b; neg.f32 a, $1; neg.f32 b, $2; cvt.rn.bf16x2.f32 $0, b, a; }"
    float16: gl.constexpr = "{ .reg .f32 a, b; neg.f32 a, $1; neg.f32 b, $2; cvt.rn.f16x2.f32 $0, b, a; }"
    return converted(x, dtype, bfloat16, float16)


@gluon.jit
def upper(x, dtype: gl.constexpr):
    """Truncate float32 x to dtype. Products with `upper` and with `lower` have twice as many bits of x together."""
    return converted(x, dtype, "prmt.b32 $0, $1, $2, 0x7632;", "cvt.rz.f16x2.f32 $0, $2, $1;")


@constexpr_function
def float16_remainder(rounding):
    """Return instructions for `converted`: x minus its float16, in float16; infinite beyond 2 * 65504."""
    return f"""{{ .reg .b32 two; .reg .b16 low, high; .reg .f32 a, b; cvt.{rounding}.f16x2.f32 two, $2, $1;
        mov.b32 {{low, high}}, two; cvt.f32.f16 a, low; cvt.f32.f16 b, high;
        sub.f32 a, $1, a; sub.f32 b, $2, b; cvt.rn.f16x2.f32 $0, b, a; }}"""


@gluon.jit
def lower(x, dtype: gl.constexpr):
    """Return x minus `upper` of it, in dtype."""
    bfloat16: gl.constexpr = """{ .reg .f32 a, b; and.b32 a, $1, 0xffff0000; and.b32 b, $2, 0xffff0000;
        sub.f32 a, $1, a; sub.f32 b, $2, b; cvt.rn.bf16x2.f32 $0, b, a; }"""
    return converted(x, dtype, bfloat16, float16_remainder("rz"))


@gluon.jit
def remainder(x, dtype: gl.constexpr):
    """Return x minus `nearest` of it, in dtype: products with both have twice as many bits of x together."""
    bfloat16: gl.constexpr = """{ .reg .b32 two, a, b; .reg .f32 c, d; cvt.rn.bf16x2.f32 two, $2, $1;
        shl.b32 a, two, 16; and.b32 b, two, 0xffff0000; mov.b32 c, a; mov.b32 d, b;
        sub.f32 c, $1, c; sub.f32 d, $2, d; cvt.rn.bf16x2.f32 $0, d, c; }"""
    return converted(x, dtype, bfloat16, float16_remainder("rn"))


@gluon.jit
def rounded(x, dtype: gl.constexpr):
    """Round float32 x to dtype and back: x.to(dtype).to(float32)."""
    if dtype == gl.bfloat16:
        asm: gl.constexpr = """{ .reg .b32 two; cvt.rn.bf16x2.f32 two, $3, $2;
            shl.b32 $0, two, 16; and.b32 $1, two, 0xffff0000; }"""
    else:
        asm: gl.constexpr = """{ .reg .b32 two; .reg .b16 low, high; cvt.rn.f16x2.f32 two, $3, $2;
            mov.b32 {low, high}, two; cvt.f32.f16 $0, low; cvt.f32.f16 $1, high; }"""
    return gl.inline_asm_elementwise(asm, "=f,=f,f,f", [x], gl.float32, is_pure=True, pack=2)


@gluon.jit
def widened(x):
    """Convert x of 16 bits to float32: bfloat16 by one instruction a value, where the compiler takes three."""
    if x.dtype == gl.bfloat16:
        asm: gl.constexpr = "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;"
        return gl.inline_asm_elementwise(asm, "=f,=f,r", [x], gl.float32, is_pure=True, pack=2)
    else:
        return x.to(gl.float32)
