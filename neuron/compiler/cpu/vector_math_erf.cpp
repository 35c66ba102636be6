#include <llvm/IR/IRBuilder.h>

#include "neuron/compiler/cpu/vector_math_builder.h"

// The error function and its relatives.
namespace neuron::compiler::cpu {

using V = MathBuilder::V;

V MathBuilder::erf(V x) {
  V a = abs(x);
  V z = mul(a, a);
  if (single_) {
    V near = poly(z, {0.128379166, -0.37612626, 0.112835944, -0.0268542115, 0.00518908724,
                      -0.00080168643, 7.87587487e-05});
    near = fma(a, near, a);
    // Further out erfc is the fourth power of a polynomial; from 3.92 on the result rounds to 1.
    V t = at_most(a, 3.95);
    V far =
        poly(t, {0.998345435, -0.272596657, -0.143634826, 0.0518744029, -0.0169690046, 0.0225067008,
                 -0.0128750363, 0.00364052714, -0.000567785813, 4.74360786e-05, -1.67496955e-06});
    far = mul(far, far);
    far = fma(neg(far), far, c(1.0));
    return copysign(select(lt(a, c(1.0)), near, far), x);
  }
  V near = poly(z, {0.12837916709551259, -0.37612638903183754, 0.11283791670955121,
                    -0.02686617064512984, 0.0052239776254232985, -0.00085483270219348297,
                    0.00012055332902888736, -1.4925647567519332e-05, 1.6462045441468418e-06,
                    -1.6364642158167616e-07, 1.4792401209404813e-08, -1.216456005728345e-09,
                    8.7090451290531062e-11, -4.2309458242953377e-12});
  near = fma(a, near, a);
  V far = sub(c(1.0), erfc_positive(a));
  return copysign(select(lt(a, c(1.0)), near, far), x);
}

// exp(-x^2) times (1 + 2x) erfcx(x) / (1 + 2x); the second factor is smooth in (x - 3) / (x + 3).
V MathBuilder::erfc_positive(V x) {
  V t = at_most(x, 30.0);
  V u = div(sub(t, c(3.0)), add(t, c(3.0)));
  V p = poly(u, {1.2530080582697296,      -0.13562110612458117,    -0.04756229435345059,
                 0.12964515870276003,     -0.11927366341531823,    0.06830802734402695,
                 -0.023770514918381697,   0.0025293918147731432,   0.0018886903546140909,
                 -0.0007798322551939028,  -0.00010515974928361634, 0.00012509922496446247,
                 4.94913930961331e-06,    -2.00999696471663e-05,   -7.300374150661487e-07,
                 3.470596843930402e-06,   3.5286829798208073e-07,  -6.13061439971216e-07,
                 -1.3486881513272816e-07, 9.741294646053261e-08,   3.490218083437474e-08,
                 -1.0153704394535562e-08, -4.635009283508557e-09});
  V square = mul(t, t);
  V lost = fma(t, t, neg(square));
  V e = exp_sum(neg(square), neg(lost));
  return mul(e, div(p, fma(c(2.0), t, c(1.0))));
}

V MathBuilder::erfc(V x) {
  V a = abs(x);
  V z = mul(a, a);
  V near = poly(z, {0.12837916709551259, -0.37612638903183754, 0.11283791670955121,
                    -0.02686617064512984, 0.0052239776254232985, -0.00085483270219348297,
                    0.00012055332902888736, -1.4925647567519332e-05, 1.6462045441468418e-06,
                    -1.6364642158167616e-07, 1.4792401209404813e-08, -1.216456005728345e-09,
                    8.7090451290531062e-11, -4.2309458242953377e-12});
  near = sub(c(1.0), fma(x, near, x));
  V far = erfc_positive(a);
  far = select(lt(x, c(0.0)), sub(c(2.0), far), far);
  return select(lt(a, c(0.47)), near, far);
}

// In w = -log(1 - x^2) the function is smooth; a step of Halley's method on erf then gives all
// digits of a double.
V MathBuilder::erf_inv(V x, bool refine) {
  V a = abs(x);
  V w = neg(log(mul(sub(c(1.0), a), add(c(1.0), a))));
  V root = sqrt(at_least(w, 1.0));
  V p1 = poly(
      sub(w, c(3.125)),
      {1.6536545626831027, 0.24015817844735166, -0.0060336710322855154, -0.00074069103254301952,
       0.00018673466051691629, -1.389214124592301e-05, -1.3658217507589212e-06,
       4.2698513895053384e-07, -2.8958960379483319e-08, -4.7527456191519952e-09,
       1.0363882341451174e-09, 5.6882164791170869e-12, -1.2570814414523687e-11});
  V p2 =
      poly(sub(root, c(3.25)),
           {3.0838856059231405, 1.0052589684577558, 0.0053713212093162935, -0.0037512768086153166,
            0.0024856201950225068, -0.0016872723525769616, 0.00098268259547437502,
            -0.00036038249087117137, -3.7471700003254784e-05, 8.0746910576933248e-05});
  V p3 =
      poly(sub(root, c(5.1)),
           {4.9509348532559141, 1.010266564421445, -0.00019886614832857909, -0.00018650969105700097,
            6.6846954273099075e-05, -1.7184122437939772e-05, 3.7876398750701045e-06,
            -7.8386798811329134e-07, 2.6344802762479594e-07, -8.4903664824264069e-09});
  V y = mul(a, select(lt(w, c(6.25)), p1, select(lt(w, c(16.0)), p2, p3)));
  if (refine) {
    // erf(y) - a, from the side on which it cancels least.
    V complement = erfc_positive(y);
    V error = select(lt(a, c(0.5)), sub(erf(y), a), sub(sub(c(1.0), a), complement));
    V slope = mul(c(0x1.20dd750429b6dp+0), exp(neg(mul(y, y))));
    V step = div(error, slope);
    y = sub(y, div(step, fma(y, step, c(1.0))));
  }
  V result = select(eq(a, c(1.0)), infinity(), y);
  result = select(lt(a, c(0x1p-60)), mul(a, c(0x1.c5bf891b4ef6bp-1)), result);
  return copysign(select(gt(a, c(1.0)), nan(), result), x);
}

}  // namespace neuron::compiler::cpu
