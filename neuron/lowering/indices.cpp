#include "neuron/lowering/indices.h"

#include <cstring>

#include "neuron/base/error.h"

namespace neuron::lowering {

Value index_values(Builder& b, Value index) {
  NEURON_CHECK(is_integer(index.dtype()), kUnsupported, "an index of ", to_string(index.type()),
               " gives a result whose size depends on its values");
  return index.dtype() == DType::i32 ? index : b.convert(index, DType::i64);
}

Value wrapped_index(Builder& b, Value index, int64_t size) {
  const bool may_be_negative = is_signed_integer(index.dtype());
  index = index_values(b, index);
  if (!may_be_negative) return index;
  const Value from_end = b.add(index, b.constant_int(index.dtype(), size));
  return b.select(b.lt(index, b.constant_int(index.dtype(), 0)), from_end, index);
}

Value scatter(Builder& b, hlo::ScatterKind kind, Value x, Value updates, const Values& indices,
              DimsRef dims, int64_t position) {
  if (updates.count() == 0) return x;
  if (x.dtype() != DType::pred || kind == hlo::ScatterKind::Set) {
    return b.scatter(kind, x, updates, indices, dims, position);
  }
  const Value counted = b.scatter(kind, b.convert(x, DType::i32), b.convert(updates, DType::i32),
                                  indices, dims, position);
  return b.convert(counted, DType::pred);
}

Value running_position(Builder& b, Value mask) {
  const Value flat = b.convert(b.reshape(mask, Dims{mask.count()}), DType::i64);
  return b.sub(b.scan(hlo::ScanKind::Sum, flat, 0), b.constant_int(DType::i64, 1));
}

Value index_literal(Builder& b, std::span<const int64_t> values) {
  return b.literal(DType::i64, Dims{static_cast<int64_t>(values.size())}, std::as_bytes(values));
}

Value float_literal(Builder& b, DType dtype, std::span<const double> values) {
  const Dims sizes{static_cast<int64_t>(values.size())};
  if (dtype == DType::f64) return b.literal(dtype, sizes, std::as_bytes(values));
  const std::vector<float> narrow(values.begin(), values.end());
  return b.convert(b.literal(DType::f32, sizes, std::as_bytes(std::span(narrow))), dtype);
}

}  // namespace neuron::lowering
