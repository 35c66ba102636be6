// Bessel functions, zeta and polygamma.
//
// Chebyshev series fitted to exp(-|x|) I_n(x): on [0, 8] in x / 4 - 1 (order 1: divided by x),
// above in 16 / x - 1, times sqrt(x). The largest error of a fit is below 4e-15.

#include "neuron/lowering/special_functions.h"

#include <cmath>
#include <limits>
#include <numbers>
#include <span>

namespace neuron::lowering {
namespace {

constexpr double kI0Small[] = {
    0.338397637204738,     -0.30468267234319835,    0.17162090152220863,    -0.09490109704804749,
    0.049305284239670545,  -0.023737414805899353,   0.010546460394594748,   -0.004324309995050515,
    0.001639475616941317,  -0.0005763755745385569,  0.00018850288509575486, -5.754195010051921e-05,
    1.644844807049961e-05, -4.416738358531402e-06,  1.1173875389114407e-06, -2.6707938531211896e-07,
    6.046995004727052e-08, -1.3000250169148409e-08, 2.659823703510256e-09,  -5.18979322849944e-10,
    9.675803380737591e-11, -1.726826348580346e-11,  2.954790856435352e-12,  -4.85346207668158e-13,
    7.646439037500841e-14, -1.1679268663300491e-14,
};

constexpr double kI0Large[] = {
    0.40224520550705434,     0.003369116478255698,    6.889758346915187e-05,
    2.891370520892167e-06,   2.048918588570814e-07,   2.266668996497856e-08,
    3.396231893493251e-09,   4.940602815750595e-10,   1.1889156326105876e-11,
    -3.149915883682297e-11,  -1.3215872840532938e-11, -1.7940782193193173e-12,
    7.179368211041038e-13,   3.8527847578961885e-13,  1.5307755063531658e-14,
    -4.1466829969749597e-14, -9.658940314238862e-15,  3.733680031814402e-15,
    1.8118839761882555e-15,  -2.3092638912203257e-16,
};

constexpr double kI1Small[] = {
    0.1262935932218168,      -0.176416518357834,      0.10264365868984704,
    -0.05294598120809491,    0.02472644903062644,     -0.010564084894626142,
    0.004156422944312771,    -0.0015135724506312276,  0.0005122859561685564,
    -0.00016176081582588043, 4.781565107545474e-05,   -1.3273163655881659e-05,
    3.470251308021477e-06,   -8.568720265031416e-07,  2.0032947525422396e-07,
    -4.4450591245304154e-08, 9.38153729673763e-09,    -1.887249776177935e-09,
    3.625590050404526e-10,   -6.663478213653207e-11,  1.1736166483089506e-11,
    -1.9839861697956705e-12, 3.2226415980218806e-13,  -5.028963356856764e-14,
    7.457368056407177e-15,   -1.1096332186433244e-15,
};

constexpr double kI1Large[] = {
    0.3892881175091401,      -0.009761097491361425,   -0.00011058893876265907,
    -3.8825648088014475e-06, -2.512236238816357e-07,  -2.631468840164075e-08,
    -3.835380517624998e-09,  -5.589743112821566e-10,  -1.8974946058847308e-11,
    3.2526044080327665e-11,  1.4125753899918436e-11,  2.035722701521081e-12,
    -7.199396634405275e-13,  -4.0836001247157586e-13, -2.111644192837048e-14,
    4.275690912436403e-14,   1.0311751452718453e-14,  -3.884670363163423e-15,
    -1.8407497748285097e-15, 4.440892098500626e-16,
};

// Clenshaw's recurrence; terms that cannot show in x's type are left out.
Value series(Builder& b, Value t, std::span<const double> terms) {
  size_t count = terms.size();
  if (t.dtype() != DType::f64) {
    while (count > 2 && std::abs(terms[count - 1]) < 1e-9) --count;
  }
  const Value twice = b.mul(t, b.like(t, 2));
  Value next = b.like(t, terms[count - 1]);
  Value after = b.like(t, 0);
  for (size_t i = count - 1; i-- > 1;) {
    const Value current = b.add(b.sub(b.mul(twice, next), after), b.like(t, terms[i]));
    after = next;
    next = current;
  }
  return b.add(b.sub(b.mul(t, next), after), b.like(t, terms[0]));
}

Value low_argument(Builder& b, Value size) {
  return b.sub(b.mul(size, b.like(size, 0.25)), b.like(size, 1));
}

Value high_argument(Builder& b, Value size) {
  return b.sub(b.div(b.like(size, 16), size), b.like(size, 1));
}

}  // namespace

Value bessel_i0e(Builder& b, Value x) {
  const Value size = b.abs(x);
  const Value low = series(b, low_argument(b, size), kI0Small);
  const Value high = b.div(series(b, high_argument(b, size), kI0Large), b.sqrt(size));
  return b.select(b.le(size, b.like(x, 8)), low, high);
}

Value bessel_i0(Builder& b, Value x) { return b.mul(b.exp(b.abs(x)), bessel_i0e(b, x)); }

Value bessel_i1e(Builder& b, Value x) {
  const Value size = b.abs(x);
  const Value low = b.mul(x, series(b, low_argument(b, size), kI1Small));
  const Value high =
      b.mul(b.sign(x), b.div(series(b, high_argument(b, size), kI1Large), b.sqrt(size)));
  return b.select(b.le(size, b.like(x, 8)), low, high);
}

Value bessel_i1(Builder& b, Value x) { return b.mul(b.exp(b.abs(x)), bessel_i1e(b, x)); }

namespace {

// B_2j / (2j)! for j = 1, 2, ...: the coefficients of Euler-Maclaurin summation.
constexpr double kEulerMaclaurin[] = {
    1.0 / 12,
    -1.0 / 720,
    1.0 / 30240,
    -1.0 / 1209600,
    1.0 / 47900160,
    -691.0 / 1307674368000,
    1.0 / 74724249600,
    -3617.0 / 10670622842880000,
    43867.0 / 5109094217170944000,
};
// Terms summed one by one before the tail is integrated.
constexpr int kDirectTerms = 12;

}  // namespace

Value hurwitz_zeta(Builder& b, Value s, Value q) {
  const auto number = [&](double value) { return b.like(q, value); };
  const Value minus_s = b.neg(s);
  Value sum = b.pow(q, minus_s);
  for (int k = 1; k < kDirectTerms; ++k) {
    sum = b.add(sum, b.pow(b.add(q, number(k)), minus_s));
  }
  const Value end = b.add(q, number(kDirectTerms));
  const Value term = b.pow(end, minus_s);
  const Value integral = b.div(b.mul(term, end), b.sub(s, number(1)));
  sum = b.add(b.add(sum, integral), b.mul(term, number(0.5)));
  // factor = s (s + 1) ... (s + 2j - 2) end^(-s - 2j + 1)
  Value factor = b.div(b.mul(term, s), end);
  const Value inverse_square = b.div(number(1), b.mul(end, end));
  double j = 1;
  for (double coefficient : kEulerMaclaurin) {
    sum = b.add(sum, b.mul(factor, number(coefficient)));
    const Value next = b.mul(b.add(s, number(2 * j - 1)), b.add(s, number(2 * j)));
    factor = b.mul(b.mul(factor, next), inverse_square);
    ++j;
  }
  const Value infinity = number(std::numeric_limits<double>::infinity());
  const Value nan = number(std::numeric_limits<double>::quiet_NaN());
  const Value zero = number(0);
  // Poles at the non-positive integers; no real value between them for fractional s.
  const Value at_pole = b.eq(q, b.floor(q));
  const Value fractional = b.ne(s, b.floor(s));
  const Value left = b.select(at_pole, infinity, b.select(fractional, nan, sum));
  const Value inside = b.select(b.le(q, zero), left, sum);
  return b.select(b.eq(s, number(1)), infinity, b.select(b.lt(s, number(1)), nan, inside));
}

Value polygamma(Builder& b, int64_t n, Value x) {
  if (n == 1) {
    // Reflected at 1/2: psi'(1 - x) + psi'(x) = (pi / sin(pi x))^2.
    const Value one = b.like(x, 1), pi = b.like(x, std::numbers::pi);
    const Value reflected = b.lt(x, b.like(x, 0.5));
    const Value zeta = hurwitz_zeta(b, b.like(x, 2), b.select(reflected, b.sub(one, x), x));
    const Value ratio = b.div(pi, b.sin(b.mul(pi, x)));
    return b.select(reflected, b.sub(b.mul(ratio, ratio), zeta), zeta);
  }
  const double order = static_cast<double>(n);
  const double factor = (n % 2 == 0 ? -1.0 : 1.0) * std::tgamma(order + 1);
  return b.mul(b.like(x, factor), hurwitz_zeta(b, b.like(x, order + 1), x));
}

}  // namespace neuron::lowering
