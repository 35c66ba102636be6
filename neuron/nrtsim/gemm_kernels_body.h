// The inner kernels over a vector type V; included by one source file per instruction set, inside
// an unnamed namespace, since each compiles it for another CPU.
//
// The order of additions into one result is a function of k alone, whatever rows and columns are
// computed beside it: results do not depend on how a product is cut.

// Arrays of vectors become registers only where the loops over them vanish.
#define NEURON_UNROLL _Pragma("GCC unroll 32")

constexpr int64_t kLanes = V::kLanes;

template <Stored kStored>
constexpr int64_t kBytes = kStored == Stored::kF32 ? 4 : 2;

template <Stored kStored>
inline typename V::Vec load_as_f32(const void* from) {
  if constexpr (kStored == Stored::kF32) return V::load(static_cast<const float*>(from));
  if constexpr (kStored == Stored::kBf16) return V::load_bf16(from);
  if constexpr (kStored == Stored::kF16) return V::load_f16(from);
}

// The first `count` elements, the rest zero.
template <Stored kStored>
inline typename V::Vec load_part(const void* from, int64_t count) {
  alignas(64) char padded[64] = {};
  std::memcpy(padded, from, static_cast<size_t>(count * kBytes<kStored>));
  return load_as_f32<kStored>(padded);
}

// --- Blocks --------------------------------------------------------------------------------------

template <int kRows, int kVectors, typename M>
inline void micro(const uint32_t* a, int64_t a_step, const uint32_t* b, int64_t b_step, int64_t k,
                  float* c, int64_t c_step, int64_t columns, bool accumulate) {
  typename V::Vec sum[kRows][kVectors];
  NEURON_UNROLL
  for (int i = 0; i < kRows; ++i) {
    NEURON_UNROLL
    for (int j = 0; j < kVectors; ++j) sum[i][j] = V::zero();
  }
  const int64_t last = columns - (kVectors - 1) * kLanes;  // Columns of the last vector.
  const auto mask = V::mask(last);
  // Rows by threes: one pointer and two multiples of the step reach each.
  const uint32_t* at[(kRows + 2) / 3];
  NEURON_UNROLL
  for (int i = 0; i < kRows; i += 3) at[i / 3] = a + i * a_step;
  for (int64_t l = 0; l < k; ++l) {
    typename V::Vec right[kVectors];
    NEURON_UNROLL
    for (int j = 0; j + 1 < kVectors; ++j) right[j] = V::load_units(b + j * kLanes);
    right[kVectors - 1] = V::load_units(b + (kVectors - 1) * kLanes, mask);
    NEURON_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const uint32_t* left = at[i / 3] + (i % 3) * a_step;
      NEURON_UNROLL
      for (int j = 0; j < kVectors; ++j) sum[i][j] = M::multiply_add(left, right[j], sum[i][j]);
    }
    NEURON_UNROLL
    for (int i = 0; i < (kRows + 2) / 3; ++i) ++at[i];
    b += b_step;
  }
  NEURON_UNROLL
  for (int i = 0; i < kRows; ++i) {
    float* row = c + i * c_step;
    NEURON_UNROLL
    for (int j = 0; j < kVectors; ++j) {
      const bool whole = j + 1 < kVectors;
      float* to = row + j * kLanes;
      if (accumulate) {
        const typename V::Vec before = whole ? V::load(to) : V::load(to, mask);
        sum[i][j] = V::add(before, sum[i][j]);
      }
      if (whole) {
        V::store(to, sum[i][j]);
      } else {
        V::store(to, sum[i][j], mask);
      }
    }
  }
}

template <int kVectors, typename M>
inline void strip(const BlockArgs& x, const uint32_t* b, float* c, int64_t columns) {
  int64_t i = 0;
  const auto run = [&](auto rows) {
    constexpr int kRows = decltype(rows)::value;
    for (; i + kRows <= x.m; i += kRows) {
      micro<kRows, kVectors, M>(x.a + i * x.a_step, x.a_step, b, x.b_step, x.k, c + i * x.c_step,
                                x.c_step, columns, x.accumulate);
    }
  };
  run(std::integral_constant<int, V::kRows>());
  if constexpr (V::kRows > 8) run(std::integral_constant<int, 8>());
  if constexpr (V::kRows > 4) run(std::integral_constant<int, 4>());
  run(std::integral_constant<int, 2>());
  run(std::integral_constant<int, 1>());
}

template <typename M>
void block_of(const BlockArgs& x) {
  const uint32_t* b = x.b;
  for (int64_t j = 0; j < x.n; j += V::kPanel, b += x.b_panel) {
    const int64_t columns = std::min<int64_t>(V::kPanel, x.n - j);
    if (columns > kLanes) {
      strip<2, M>(x, b, x.c + j, columns);
    } else {
      strip<1, M>(x, b, x.c + j, columns);
    }
  }
}

// --- Packing -------------------------------------------------------------------------------------

template <Stored kStored>
inline float element(const char* from) {
  if constexpr (kStored == Stored::kF32) {
    float value;
    std::memcpy(&value, from, 4);
    return value;
  } else {
    uint16_t bits;
    std::memcpy(&bits, from, 2);
    return kStored == Stored::kBf16 ? bf16_to_float(bits) : f16_to_float(bits);
  }
}

// Unit l of one row or column: k_stride in bytes.
template <Stored kStored, Unit kUnit>
inline uint32_t unit_at(const char* from, int64_t k_stride, int64_t l, int64_t k) {
  if constexpr (kUnit == Unit::kF32) {
    return std::bit_cast<uint32_t>(element<kStored>(from + l * k_stride));
  } else {
    uint16_t low, high = 0;
    std::memcpy(&low, from + 2 * l * k_stride, 2);
    if (2 * l + 1 < k) std::memcpy(&high, from + (2 * l + 1) * k_stride, 2);
    return low | uint32_t{high} << 16;
  }
}

// Any strides, one unit at a time.
template <Stored kStored, Unit kUnit>
inline void pack_scalar(const PackArgs& x, int64_t units) {
  const auto* from = static_cast<const char*>(x.from);
  const int64_t stride = x.stride * kBytes<kStored>, k_stride = x.k_stride * kBytes<kStored>;
  if (!x.by_k) {
    for (int64_t i = 0; i < x.count; ++i) {
      for (int64_t l = 0; l < units; ++l) {
        x.to[i * x.step + l] = unit_at<kStored, kUnit>(from + i * stride, k_stride, l, x.k);
      }
    }
    return;
  }
  for (int64_t first = 0; first < x.count; first += V::kPanel) {
    uint32_t* panel = x.to + first * units;
    const int64_t used = std::min<int64_t>(V::kPanel, x.count - first);
    for (int64_t l = 0; l < units; ++l) {
      for (int64_t i = 0; i < used; ++i) {
        panel[l * V::kPanel + i] =
            unit_at<kStored, kUnit>(from + (first + i) * stride, k_stride, l, x.k);
      }
      for (int64_t i = used; i < V::kPanel; ++i) panel[l * V::kPanel + i] = 0;
    }
  }
}

// --- Skinny products -----------------------------------------------------------------------------

// One row of w with one of x: four sums.
template <Stored kStored>
inline float row_by_row(const float* x, const char* w, int64_t k) {
  typename V::Vec sum[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
  int64_t l = 0;
  for (; l + 4 * kLanes <= k; l += 4 * kLanes) {
    V::prefetch(w + l * kBytes<kStored> + 8192);
    NEURON_UNROLL
    for (int u = 0; u < 4; ++u) {
      const int64_t at = l + u * kLanes;
      sum[u] = V::fma(V::load(x + at), load_as_f32<kStored>(w + at * kBytes<kStored>), sum[u]);
    }
  }
  for (; l + kLanes <= k; l += kLanes) {
    sum[0] = V::fma(V::load(x + l), load_as_f32<kStored>(w + l * kBytes<kStored>), sum[0]);
  }
  if (l < k) {
    sum[1] = V::fma(load_part<Stored::kF32>(x + l, k - l),
                    load_part<kStored>(w + l * kBytes<kStored>, k - l), sum[1]);
  }
  return V::sum(V::add(V::add(sum[0], sum[1]), V::add(sum[2], sum[3])));
}

// kW rows of w with kM rows of x: one sum for each pair.
template <Stored kStored, int kM, int kW>
inline void rows_by_rows(const RowsArgs& a, int64_t n) {
  typename V::Vec sum[kW][kM];
  NEURON_UNROLL
  for (int j = 0; j < kW; ++j) {
    NEURON_UNROLL
    for (int i = 0; i < kM; ++i) sum[j][i] = V::zero();
  }
  const auto* x = static_cast<const float*>(a.x);
  const auto* w = static_cast<const char*>(a.w) + n * a.w_step * kBytes<kStored>;
  int64_t l = 0;
  for (; l + kLanes <= a.k; l += kLanes) {
    typename V::Vec weight[kW];
    NEURON_UNROLL
    for (int j = 0; j < kW; ++j) {
      weight[j] = load_as_f32<kStored>(w + (j * a.w_step + l) * kBytes<kStored>);
    }
    NEURON_UNROLL
    for (int i = 0; i < kM; ++i) {
      const typename V::Vec left = V::load(x + i * a.x_step + l);
      NEURON_UNROLL
      for (int j = 0; j < kW; ++j) sum[j][i] = V::fma(left, weight[j], sum[j][i]);
    }
  }
  if (l < a.k) {
    NEURON_UNROLL
    for (int j = 0; j < kW; ++j) {
      const typename V::Vec weight =
          load_part<kStored>(w + (j * a.w_step + l) * kBytes<kStored>, a.k - l);
      NEURON_UNROLL
      for (int i = 0; i < kM; ++i) {
        sum[j][i] =
            V::fma(load_part<Stored::kF32>(x + i * a.x_step + l, a.k - l), weight, sum[j][i]);
      }
    }
  }
  NEURON_UNROLL
  for (int j = 0; j < kW; ++j) {
    NEURON_UNROLL
    for (int i = 0; i < kM; ++i) a.out[i * a.out_step + n + j] = V::sum(sum[j][i]);
  }
}

// Rows of w beside m rows of x: as many sums as there are registers.
constexpr int rows_at_once(int m) {
  if (V::kRegisters == 32) return m >= 5 ? 3 : 2;
  return m <= 5 ? 2 : 1;
}

template <typename Function>
inline void with_rows(int m, Function&& function) {
  switch (m) {
    case 1:
      return function(std::integral_constant<int, 1>());
    case 2:
      return function(std::integral_constant<int, 2>());
    case 3:
      return function(std::integral_constant<int, 3>());
    case 4:
      return function(std::integral_constant<int, 4>());
    case 5:
      return function(std::integral_constant<int, 5>());
    case 6:
      return function(std::integral_constant<int, 6>());
    case 7:
      return function(std::integral_constant<int, 7>());
    default:
      return function(std::integral_constant<int, 8>());
  }
}

template <Stored kStored>
void rows_of(const RowsArgs& a) {
  if (a.m == 1) {
    const auto* w = static_cast<const char*>(a.w);
    for (int64_t n = 0; n < a.n; ++n) {
      a.out[n] = row_by_row<kStored>(static_cast<const float*>(a.x),
                                     w + n * a.w_step * kBytes<kStored>, a.k);
    }
    return;
  }
  with_rows(a.m, [&](auto m) {
    constexpr int kM = decltype(m)::value, kW = rows_at_once(kM);
    int64_t n = 0;
    for (; n + kW <= a.n; n += kW) rows_by_rows<kStored, kM, kW>(a, n);
    for (; n < a.n; ++n) rows_by_rows<kStored, kM, 1>(a, n);
  });
}

// Rows l to l + kK of w, all columns.
template <Stored kStored, int kM, int kK>
inline void columns_step(const ColumnsArgs& a, int64_t l) {
  const auto* x = static_cast<const float*>(a.x) + l;
  const auto* w = static_cast<const char*>(a.w) + l * a.w_step * kBytes<kStored>;
  int64_t n = 0;
  for (; n + kLanes <= a.n; n += kLanes) {
    typename V::Vec weight[kK];
    NEURON_UNROLL
    for (int u = 0; u < kK; ++u) {
      weight[u] = load_as_f32<kStored>(w + (u * a.w_step + n) * kBytes<kStored>);
      // The next rows: each is too short a run for the CPU to guess it. Rows of 2^n bytes share the
      // sets of the first cache, so they wait in the second one.
      V::prefetch_l2(w + ((u + kK) * a.w_step + n) * kBytes<kStored>);
    }
    NEURON_UNROLL
    for (int i = 0; i < kM; ++i) {
      float* y = a.y + i * a.y_step + n;
      typename V::Vec sum = V::load(y);
      NEURON_UNROLL
      for (int u = 0; u < kK; ++u) sum = V::fma(V::splat(x[i * a.x_step + u]), weight[u], sum);
      V::store(y, sum);
    }
  }
  if (n < a.n) {
    const auto mask = V::mask(a.n - n);
    typename V::Vec weight[kK];
    NEURON_UNROLL
    for (int u = 0; u < kK; ++u) {
      weight[u] = load_part<kStored>(w + (u * a.w_step + n) * kBytes<kStored>, a.n - n);
    }
    NEURON_UNROLL
    for (int i = 0; i < kM; ++i) {
      float* y = a.y + i * a.y_step + n;
      typename V::Vec sum = V::load(y, mask);
      NEURON_UNROLL
      for (int u = 0; u < kK; ++u) sum = V::fma(V::splat(x[i * a.x_step + u]), weight[u], sum);
      V::store(y, sum, mask);
    }
  }
}

template <Stored kStored>
void columns_of(const ColumnsArgs& a) {
  with_rows(a.m, [&](auto m) {
    constexpr int kM = decltype(m)::value;
    int64_t l = 0;
    for (; l + 4 <= a.k; l += 4) columns_step<kStored, kM, 4>(a, l);
    for (; l < a.k; ++l) columns_step<kStored, kM, 1>(a, l);
  });
}

// --- Conversion ----------------------------------------------------------------------------------

void widen_any(Stored stored, const void* from, int64_t count, float* to) {
  const auto run = [&](auto tag) {
    constexpr Stored kStored = decltype(tag)::value;
    const auto* bytes = static_cast<const char*>(from);
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      V::store(to + i, load_as_f32<kStored>(bytes + i * kBytes<kStored>));
    }
    if (i < count) {
      V::store(to + i, load_part<kStored>(bytes + i * kBytes<kStored>, count - i),
               V::mask(count - i));
    }
  };
  switch (stored) {
    case Stored::kF32:
      return run(std::integral_constant<Stored, Stored::kF32>());
    case Stored::kBf16:
      return run(std::integral_constant<Stored, Stored::kBf16>());
    case Stored::kF16:
      return run(std::integral_constant<Stored, Stored::kF16>());
  }
}

void store_any(Stored stored, const float* from, int64_t count, void* to) {
  if (stored == Stored::kF32) {
    std::memcpy(to, from, static_cast<size_t>(count) * 4);
    return;
  }
  auto* halves = static_cast<uint16_t*>(to);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    stored == Stored::kBf16 ? V::store_bf16(halves + i, V::load(from + i))
                            : V::store_f16(halves + i, V::load(from + i));
  }
  for (; i < count; ++i) {
    halves[i] = stored == Stored::kBf16 ? float_to_bf16(from[i]) : float_to_f16(from[i]);
  }
}

struct MultiplyF32 {
  static typename V::Vec multiply_add(const uint32_t* left, typename V::Vec right,
                                      typename V::Vec sum) {
    return V::fma(V::splat(left), right, sum);
  }
};

void rows_any(Stored stored, const RowsArgs& a) {
  switch (stored) {
    case Stored::kF32:
      return rows_of<Stored::kF32>(a);
    case Stored::kBf16:
      return rows_of<Stored::kBf16>(a);
    case Stored::kF16:
      return rows_of<Stored::kF16>(a);
  }
}

void columns_any(Stored stored, const ColumnsArgs& a) {
  switch (stored) {
    case Stored::kF32:
      return columns_of<Stored::kF32>(a);
    case Stored::kBf16:
      return columns_of<Stored::kBf16>(a);
    case Stored::kF16:
      return columns_of<Stored::kF16>(a);
  }
}
