// exp, silu and tanh over sixteen lanes, from the same operations on every ISA.
// Included after one simd_*.h.
#pragma once

namespace edk {
namespace {

/// e^x within 2 units in the last place; x below -87 gives about 1e-38, above 88 about 1e38.
/// Source: range reduction and minimax coefficients as in Cephes expf.
inline Floats exp(Floats x) {
  x = max(min(x, set1(88.0f)), set1(-87.0f));
  const Floats n = round(mul(x, set1(1.44269504f)));
  Floats r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  Floats p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(mul(r, r), p, add(r, set1(1.0f)));
  return mul(p, power_of_two(n));
}

/// x / (1 + e^-x)
inline Floats silu(Floats x) {
  return div(x, add(set1(1.0f), exp(sub(set1(0.0f), x))));
}

/// The hyperbolic tangent, within 1e-7.
inline Floats tanh(Floats x) {
  const Floats e = exp(add(x, x));
  return sub(set1(1.0f), div(set1(2.0f), add(e, set1(1.0f))));
}

}  // namespace
}  // namespace edk
