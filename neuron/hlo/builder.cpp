// Leaves, elementwise ops and views. Structured ops are in builder_structured.cpp.
#include "neuron/hlo/builder.h"

#include <algorithm>
#include <cstring>

#include "neuron/base/error.h"
#include "neuron/hlo/element.h"

namespace neuron::hlo {

namespace {

/// What an elementwise op accepts, as a set.
enum Accepts : unsigned {
  kPred = 1,
  kInteger = 2,
  kFloat = 4,
  kComplex = 8,
  kNumber = kInteger | kFloat | kComplex,
  kAny = kPred | kNumber,
};

unsigned kind_of(DType dtype) {
  if (dtype == DType::pred) return kPred;
  if (is_complex(dtype)) return kComplex;
  return is_floating(dtype) ? kFloat : kInteger;
}

unsigned accepted_by(Op op) {
  switch (op) {
    case Op::Convert:
    case Op::BitcastConvert:
    case Op::Select:
    case Op::Compare:
    case Op::Add:
    case Op::Multiply:
      return kAny;  // Add and Multiply of pred are "or" and "and".
    case Op::Abs:
    case Op::Negate:
    case Op::Sign:
    case Op::Subtract:
    case Op::Divide:
    case Op::Power:
    case Op::Fma:
      return kNumber;
    case Op::Remainder:
      return kInteger | kFloat;
    case Op::Maximum:
    case Op::Minimum:
      return kPred | kInteger | kFloat;
    case Op::Not:
    case Op::And:
    case Op::Or:
    case Op::Xor:
      return kPred | kInteger;
    case Op::Popcnt:
    case Op::ShiftLeft:
    case Op::ShiftRightArithmetic:
    case Op::ShiftRightLogical:
      return kInteger;
    case Op::Real:
    case Op::Imag:
      return kComplex;
    case Op::Ceil:
    case Op::Floor:
    case Op::Trunc:
    case Op::RoundNearestEven:
    case Op::Erf:
    case Op::Erfc:
    case Op::ErfInv:
    case Op::Lgamma:
    case Op::Digamma:
    case Op::IsFinite:
    case Op::IsNan:
    case Op::Atan2:
    case Op::NextAfter:
    case Op::Complex:
      return kFloat;
    default:
      return kFloat | kComplex;  // Exponentials, logarithms, roots, trigonometry.
  }
}

const char* describe(unsigned accepted) {
  switch (accepted) {
    case kNumber:
      return "integers, floats and complex numbers";
    case kInteger | kFloat:
      return "integers and floats";
    case kPred | kInteger | kFloat:
      return "pred, integers and floats";
    case kPred | kInteger:
      return "pred and integers";
    case kInteger:
      return "integers";
    case kFloat:
      return "floats";
    case kComplex:
      return "complex numbers";
    case kFloat | kComplex:
      return "floats and complex numbers";
    default:
      return "any dtype";
  }
}

void check_accepted(Op op, Value x) {
  NEURON_ASSERT(x.defined(), "an operand is undefined: ", name_of(op));
  const unsigned accepted = accepted_by(op);
  NEURON_CHECK((accepted & kind_of(x.dtype())) != 0, kInvalid, name_of(op), ": operand is ",
               to_string(x.type()), "; it takes ", describe(accepted));
}

DType result_dtype(Op op, DType dtype) {
  switch (op) {
    case Op::Abs:
    case Op::Real:
    case Op::Imag:
      return real_of(dtype);
    case Op::IsFinite:
    case Op::IsNan:
      return DType::pred;
    case Op::Complex:
      return dtype == DType::f64 ? DType::c128 : DType::c64;
    default:
      return dtype;
  }
}

void check_rank(std::string_view op, Value x, std::string_view what, DimsRef dims) {
  NEURON_CHECK(static_cast<int64_t>(dims.size()) == x.rank(), kInvalid, op, ": ", what, " ",
               to_string(dims), " has ", dims.size(), " entries; operand is ", to_string(x.type()));
}

void check_dims(std::string_view op, DimsRef dims) {
  for (int64_t size : dims) {
    NEURON_CHECK(size >= 0, kInvalid, op, ": negative size in ", to_string(dims));
  }
}

bool all_equal_to(DimsRef dims, int64_t value) {
  return std::all_of(dims.begin(), dims.end(), [&](int64_t d) { return d == value; });
}

void check_same_dtype(Op op, Value a, Value b) {
  NEURON_CHECK(a.dtype() == b.dtype(), kInvalid, name_of(op), ": operands are ",
               to_string(a.type()), " and ", to_string(b.type()), "; they must have one dtype");
}

template <typename T>
std::vector<std::byte> element_bytes(DType dtype, T number) {
  std::vector<std::byte> bytes(size_of(dtype));
  with_compute_type(dtype, [&](auto tag) {
    store_element(dtype, convert_number<decltype(tag)>(number), bytes.data());
  });
  return bytes;
}

}  // namespace

Value Builder::push(Node node) {
  auto& nodes = module_.nodes_;
  if (nodes.capacity() == 0) nodes.reserve(16);
  const auto id = static_cast<ValueId>(nodes.size());
  types_.push_back(node.type);
  nodes.push_back(std::move(node));
  return Value(this, id);
}

// --- Leaves ---------------------------------------------------------------------------------

Value Builder::parameter(DType dtype, DimsRef dims, DimsRef strides) {
  check_dims("parameter", dims);
  Parameter parameter{{dtype, Dims(dims)}, Dims(strides), kNoValue};
  if (strides.empty() && !dims.empty()) {
    parameter.strides = contiguous_strides(dims);
  } else {
    NEURON_CHECK(strides.size() == dims.size(), kInvalid, "parameter: strides ", to_string(strides),
                 " do not fit ", to_string(parameter.type));
    for (int64_t stride : strides) {
      NEURON_CHECK(stride >= 0, kInvalid, "parameter: negative stride in ", to_string(strides));
    }
  }
  Node node{Op::Parameter, parameter.type};
  node.ints.push_back(static_cast<int64_t>(module_.parameters_.size()));
  const Value value = push(std::move(node));
  parameter.value = value.id();
  module_.parameters_.push_back(std::move(parameter));
  return value;
}

Value Builder::scalar(DType kind) {
  NEURON_CHECK(
      kind == DType::i64 || kind == DType::u64 || kind == DType::f64 || kind == DType::c128,
      kInvalid, "scalar: kind is ", name_of(kind), "; it must be i64, u64, f64 or c128");
  Node node{Op::ScalarParameter, {kind, {}}};
  node.ints.push_back(static_cast<int64_t>(module_.scalars_.size()));
  const Value value = push(std::move(node));
  module_.scalars_.push_back({kind, value.id()});
  return value;
}

Value Builder::constant(DType dtype, double value, DimsRef dims) {
  check_dims("constant", dims);
  Node node{Op::Constant, {dtype, Dims(dims)}};
  node.bytes = is_integer(dtype)
                   ? element_bytes(dtype, value >= 0 ? static_cast<int64_t>(truncate_to_u64(value))
                                                     : truncate_to_i64(value))
                   : element_bytes(dtype, value);
  return push(std::move(node));
}

Value Builder::constant_int(DType dtype, int64_t value, DimsRef dims) {
  check_dims("constant", dims);
  Node node{Op::Constant, {dtype, Dims(dims)}};
  node.bytes = element_bytes(dtype, value);
  return push(std::move(node));
}

Value Builder::constant_complex(DType dtype, std::complex<double> value, DimsRef dims) {
  if (!is_complex(dtype)) return constant(dtype, value.real(), dims);
  check_dims("constant", dims);
  Node node{Op::Constant, {dtype, Dims(dims)}};
  node.bytes = element_bytes(dtype, value);
  return push(std::move(node));
}

Value Builder::literal(DType dtype, DimsRef dims, std::span<const std::byte> bytes) {
  check_dims("literal", dims);
  const size_t element = size_of(dtype);
  const auto count = static_cast<size_t>(count_elements(dims));
  NEURON_CHECK(bytes.size() == count * element, kInvalid, "literal: ", bytes.size(),
               " bytes were given for ", to_string(dtype, dims));
  Node node{Op::Constant, {dtype, Dims(dims)}};
  // A splat has one spelling only: the single element.
  bool splat = true;
  for (size_t i = 1; splat && i < count; ++i) {
    splat = std::memcmp(bytes.data(), bytes.data() + i * element, element) == 0;
  }
  if (count == 0) {
    node.bytes.resize(element);
  } else {
    node.bytes.assign(bytes.begin(),
                      splat ? bytes.begin() + static_cast<ptrdiff_t>(element) : bytes.end());
  }
  if (dtype == DType::pred) {
    for (std::byte& b : node.bytes) b = std::byte{b != std::byte{0}};
  }
  return push(std::move(node));
}

Value Builder::iota(DType dtype, DimsRef dims, int64_t dim) {
  check_dims("iota", dims);
  NEURON_CHECK(dtype != DType::pred, kInvalid, "iota: pred has no sequence");
  NEURON_CHECK(dim >= 0 && dim < static_cast<int64_t>(dims.size()), kInvalid, "iota: dim ", dim,
               " is not one of ", to_string(dtype, dims));
  return push({Op::Iota, {dtype, Dims(dims)}, {}, {dim}});
}

// --- Elementwise ----------------------------------------------------------------------------

Value Builder::unary(Op op, Value x) {
  NEURON_ASSERT(class_of(op) == OpClass::Elementwise && operand_count(op) == 1 &&
                    op != Op::Convert && op != Op::BitcastConvert,
                "not a plain unary op: ", name_of(op));
  check_accepted(op, x);
  return push({op, {result_dtype(op, x.dtype()), x.dims()}, {x.id()}});
}

Value Builder::binary(Op op, Value a, Value b) {
  NEURON_ASSERT(class_of(op) == OpClass::Elementwise && operand_count(op) == 2 && op != Op::Compare,
                "not a plain binary op: ", name_of(op));
  check_accepted(op, a);
  check_accepted(op, b);
  check_same_dtype(op, a, b);
  if (op == Op::Complex) {
    NEURON_CHECK(a.dtype() == DType::f32 || a.dtype() == DType::f64, kInvalid,
                 "Complex: parts are ", name_of(a.dtype()), "; they must be f32 or f64");
  }
  if (!(a.dims() == b.dims())) {
    const Dims dims = broadcast_shapes(a.dims(), b.dims());
    a = broadcast_to(a, dims);
    b = broadcast_to(b, dims);
  }
  return push({op, {result_dtype(op, a.dtype()), a.dims()}, {a.id(), b.id()}});
}

Value Builder::convert(Value x, DType dtype) {
  NEURON_ASSERT(x.defined(), "Convert: the operand is undefined");
  if (x.dtype() == dtype) return x;
  return push({Op::Convert, {dtype, x.dims()}, {x.id()}});
}

Value Builder::bitcast(Value x, DType dtype) {
  NEURON_ASSERT(x.defined(), "BitcastConvert: the operand is undefined");
  if (x.dtype() == dtype) return x;
  NEURON_CHECK(size_of(x.dtype()) == size_of(dtype) && is_complex(x.dtype()) == is_complex(dtype),
               kInvalid, "BitcastConvert: operand is ", to_string(x.type()), ", target is ",
               name_of(dtype), "; element sizes must be equal and neither complex");
  return push({Op::BitcastConvert, {dtype, x.dims()}, {x.id()}});
}

Value Builder::compare(Direction direction, Value a, Value b) {
  check_accepted(Op::Compare, a);
  check_accepted(Op::Compare, b);
  check_same_dtype(Op::Compare, a, b);
  NEURON_CHECK(!is_complex(a.dtype()) || direction == Direction::EQ || direction == Direction::NE,
               kInvalid, "Compare: ", name_of(a.dtype()), " has no order");
  if (!(a.dims() == b.dims())) {
    const Dims dims = broadcast_shapes(a.dims(), b.dims());
    a = broadcast_to(a, dims);
    b = broadcast_to(b, dims);
  }
  return push(
      {Op::Compare, {DType::pred, a.dims()}, {a.id(), b.id()}, {static_cast<int64_t>(direction)}});
}

Value Builder::select(Value predicate, Value on_true, Value on_false) {
  NEURON_ASSERT(predicate.defined(), "Select: the predicate is undefined");
  check_accepted(Op::Select, on_true);
  check_accepted(Op::Select, on_false);
  NEURON_CHECK(predicate.dtype() == DType::pred, kInvalid, "Select: predicate is ",
               to_string(predicate.type()), "; it must be pred");
  check_same_dtype(Op::Select, on_true, on_false);
  if (!(on_true.dims() == on_false.dims()) || !(on_true.dims() == predicate.dims())) {
    const Dims dims =
        broadcast_shapes(predicate.dims(), broadcast_shapes(on_true.dims(), on_false.dims()));
    predicate = broadcast_to(predicate, dims);
    on_true = broadcast_to(on_true, dims);
    on_false = broadcast_to(on_false, dims);
  }
  return push({Op::Select, on_true.type(), {predicate.id(), on_true.id(), on_false.id()}});
}

Value Builder::fma(Value a, Value b, Value c) {
  check_accepted(Op::Fma, a);
  check_accepted(Op::Fma, b);
  check_accepted(Op::Fma, c);
  check_same_dtype(Op::Fma, a, b);
  check_same_dtype(Op::Fma, a, c);
  if (!(a.dims() == b.dims()) || !(a.dims() == c.dims())) {
    const Dims dims = broadcast_shapes(a.dims(), broadcast_shapes(b.dims(), c.dims()));
    a = broadcast_to(a, dims);
    b = broadcast_to(b, dims);
    c = broadcast_to(c, dims);
  }
  return push({Op::Fma, a.type(), {a.id(), b.id(), c.id()}});
}

Value Builder::philox_word(Value seed, Value offset, int64_t word, DimsRef dims) {
  check_dims("PhiloxWord", dims);
  NEURON_CHECK(word >= 0 && word < 4, kInvalid, "PhiloxWord: word is ", word,
               "; a block has words 0 to 3");
  for (Value x : {seed, offset}) {
    NEURON_CHECK(x.dtype() == DType::u64 && x.rank() == 0, kInvalid,
                 "PhiloxWord: seed and offset must be u64[], not ", to_string(x.type()));
  }
  return push({Op::PhiloxWord, {DType::u32, Dims(dims)}, {seed.id(), offset.id()}, {word}});
}

// --- Views ----------------------------------------------------------------------------------

Value Builder::broadcast_in_dim(Value x, DimsRef dims, DimsRef mapping) {
  check_dims("BroadcastInDim", dims);
  check_rank("BroadcastInDim", x, "mapping", mapping);
  bool identity = mapping.size() == dims.size();
  for (size_t i = 0; i < mapping.size(); ++i) {
    const int64_t to = mapping[i];
    NEURON_CHECK(to >= 0 && to < static_cast<int64_t>(dims.size()), kInvalid,
                 "BroadcastInDim: mapping ", to_string(mapping), " leaves the result ",
                 to_string(dims));
    const int64_t size = x.dims()[i];
    NEURON_CHECK(size == 1 || size == dims[static_cast<size_t>(to)], kInvalid,
                 "BroadcastInDim: operand ", to_string(x.type()), " does not fit result ",
                 to_string(dims), " under mapping ", to_string(mapping));
    for (size_t k = 0; k < i; ++k) {
      NEURON_CHECK(mapping[k] != to, kInvalid, "BroadcastInDim: mapping ", to_string(mapping),
                   " names a dim twice");
    }
    identity = identity && to == static_cast<int64_t>(i) && size == dims[i];
  }
  if (identity) return x;
  Node node{Op::BroadcastInDim, {x.dtype(), Dims(dims)}, {x.id()}};
  node.ints.append(mapping.begin(), mapping.end());
  return push(std::move(node));
}

Value Builder::broadcast_to(Value x, DimsRef dims) {
  NEURON_ASSERT(x.defined(), "BroadcastInDim: the operand is undefined");
  NEURON_CHECK(x.dims().size() <= dims.size(), kInvalid, "BroadcastInDim: ", to_string(x.type()),
               " cannot be broadcast to ", to_string(dims));
  const size_t lead = dims.size() - x.dims().size();
  Dims mapping;
  for (size_t i = lead; i < dims.size(); ++i) mapping.push_back(static_cast<int64_t>(i));
  return broadcast_in_dim(x, dims, mapping);
}

Value Builder::reshape(Value x, DimsRef dims) {
  check_dims("Reshape", dims);
  NEURON_CHECK(count_elements(dims) == x.count(), kInvalid, "Reshape: ", to_string(x.type()),
               " has ", x.count(), " elements and cannot become ", to_string(dims));
  if (x.dims() == Dims(dims)) return x;
  return push({Op::Reshape, {x.dtype(), Dims(dims)}, {x.id()}});
}

Value Builder::transpose(Value x, DimsRef permutation) {
  check_rank("Transpose", x, "permutation", permutation);
  Node node{Op::Transpose, {x.dtype(), {}}, {x.id()}};
  bool identity = true;
  for (size_t i = 0; i < permutation.size(); ++i) {
    const int64_t from = permutation[i];
    bool good = from >= 0 && from < x.rank();
    for (size_t k = 0; good && k < i; ++k) good = permutation[k] != from;
    NEURON_CHECK(good, kInvalid, "Transpose: ", to_string(permutation),
                 " is not a permutation of the dims of ", to_string(x.type()));
    identity = identity && from == static_cast<int64_t>(i);
    node.type.dims.push_back(x.dims()[static_cast<size_t>(from)]);
  }
  if (identity) return x;
  node.ints.append(permutation.begin(), permutation.end());
  return push(std::move(node));
}

Value Builder::slice(Value x, DimsRef start, DimsRef limit, DimsRef stride) {
  check_rank("Slice", x, "start", start);
  check_rank("Slice", x, "limit", limit);
  if (!stride.empty()) check_rank("Slice", x, "stride", stride);
  Node node{Op::Slice, {x.dtype(), {}}, {x.id()}};
  bool identity = true;
  const size_t rank = start.size();
  for (size_t i = 0; i < rank; ++i) {
    const int64_t size = x.dims()[i];
    const int64_t step = stride.empty() ? 1 : stride[i];
    NEURON_CHECK(start[i] >= 0 && start[i] <= limit[i] && limit[i] <= size && step >= 1, kInvalid,
                 "Slice: ", start[i], ":", limit[i], ":", step, " of dim ", i, " does not fit ",
                 to_string(x.type()));
    const int64_t count = (limit[i] - start[i] + step - 1) / step;
    identity = identity && count == size && start[i] == 0;
    node.type.dims.push_back(count);
  }
  if (identity) return x;
  node.ints.reserve(rank * 3);
  node.ints.append(start.begin(), start.end());
  node.ints.append(limit.begin(), limit.end());
  for (size_t i = 0; i < rank; ++i) node.ints.push_back(stride.empty() ? 1 : stride[i]);
  return push(std::move(node));
}

Value Builder::slice_dim(Value x, int64_t dim, int64_t start, int64_t limit, int64_t stride) {
  if (dim < 0) dim += x.rank();
  NEURON_CHECK(dim >= 0 && dim < x.rank(), kInvalid, "Slice: dim ", dim, " is not one of ",
               to_string(x.type()));
  Dims starts(x.dims().size(), 0), limits = x.dims(), strides(x.dims().size(), 1);
  const auto d = static_cast<size_t>(dim);
  starts[d] = start;
  limits[d] = limit;
  strides[d] = stride;
  return slice(x, starts, limits, strides);
}

Value Builder::pad(Value x, Value fill, DimsRef low, DimsRef high, DimsRef interior) {
  check_rank("Pad", x, "low", low);
  check_rank("Pad", x, "high", high);
  if (!interior.empty()) check_rank("Pad", x, "interior", interior);
  NEURON_CHECK(fill.rank() == 0 && fill.dtype() == x.dtype(), kInvalid, "Pad: operand is ",
               to_string(x.type()), ", fill is ", to_string(fill.type()),
               "; fill must be rank 0 of the same dtype");
  Node node{Op::Pad, {x.dtype(), {}}, {x.id(), fill.id()}};
  const size_t rank = low.size();
  for (size_t i = 0; i < rank; ++i) {
    const int64_t inside = interior.empty() ? 0 : interior[i];
    const int64_t size = x.dims()[i];
    const int64_t result = low[i] + high[i] + size + (size > 0 ? (size - 1) * inside : 0);
    NEURON_CHECK(inside >= 0 && result >= 0, kInvalid, "Pad: ", low[i], ", ", high[i],
                 " (interior ", inside, ") of dim ", i, " does not fit ", to_string(x.type()));
    node.type.dims.push_back(result);
  }
  if (all_equal_to(low, 0) && all_equal_to(high, 0) && all_equal_to(interior, 0)) return x;
  node.ints.reserve(rank * 3);
  node.ints.append(low.begin(), low.end());
  node.ints.append(high.begin(), high.end());
  for (size_t i = 0; i < rank; ++i) node.ints.push_back(interior.empty() ? 0 : interior[i]);
  return push(std::move(node));
}

Value Builder::concatenate(std::span<const Value> parts, int64_t dim) {
  NEURON_CHECK(!parts.empty(), kInvalid, "Concatenate: no operands");
  const Value first = parts[0];
  if (dim < 0) dim += first.rank();
  NEURON_CHECK(dim >= 0 && dim < first.rank(), kInvalid, "Concatenate: dim ", dim,
               " is not one of ", to_string(first.type()));
  if (parts.size() == 1) return first;
  Node node{Op::Concatenate, first.type(), {}, {dim}};
  node.operands.reserve(parts.size());
  const auto d = static_cast<size_t>(dim);
  int64_t total = 0;
  for (Value part : parts) {
    bool fits = part.dtype() == first.dtype() && part.rank() == first.rank();
    for (size_t i = 0; fits && i < part.dims().size(); ++i) {
      fits = i == d || part.dims()[i] == first.dims()[i];
    }
    NEURON_CHECK(fits, kInvalid, "Concatenate: ", to_string(part.type()), " does not fit ",
                 to_string(first.type()), " along dim ", dim);
    total += part.dims()[d];
    node.operands.push_back(part.id());
  }
  node.type.dims[d] = total;
  return push(std::move(node));
}

Value Builder::reverse(Value x, DimsRef dims) {
  Node node{Op::Reverse, x.type(), {x.id()}};
  for (int64_t dim : dims) {
    if (dim < 0) dim += x.rank();
    NEURON_CHECK(dim >= 0 && dim < x.rank(), kInvalid, "Reverse: dims ", to_string(dims),
                 " are not dims of ", to_string(x.type()));
    NEURON_CHECK(std::find(node.ints.begin(), node.ints.end(), dim) == node.ints.end(), kInvalid,
                 "Reverse: dims ", to_string(dims), " name a dim twice");
    node.ints.push_back(dim);
  }
  if (dims.empty()) return x;
  std::sort(node.ints.begin(), node.ints.end());
  return push(std::move(node));
}

Value Builder::as_strided(Value x, DimsRef dims, DimsRef strides, int64_t offset) {
  check_dims("AsStrided", dims);
  NEURON_CHECK(strides.size() == dims.size() && offset >= 0 &&
                   std::all_of(strides.begin(), strides.end(), [](int64_t s) { return s >= 0; }),
               kInvalid, "AsStrided: strides ", to_string(strides), " at offset ", offset,
               " do not fit ", to_string(dims));
  const int64_t extent = storage_extent(dims, strides);
  NEURON_CHECK(extent == 0 || offset + extent <= x.count(), kInvalid,
               "AsStrided: ", to_string(dims), " with strides ", to_string(strides), " at offset ",
               offset, " leaves the ", x.count(), " elements of ", to_string(x.type()));
  if (offset == 0 && is_contiguous(dims, strides) && count_elements(dims) == x.count()) {
    return reshape(x, dims);
  }
  Node node{Op::AsStrided, {x.dtype(), Dims(dims)}, {x.id()}, {offset}};
  node.ints.append(strides.begin(), strides.end());
  return push(std::move(node));
}

Value Builder::squeeze(Value x, int64_t dim) {
  if (dim < 0) dim += x.rank();
  NEURON_CHECK(dim >= 0 && dim < x.rank() && x.dim(dim) == 1, kInvalid, "Reshape: dim ", dim,
               " of ", to_string(x.type()), " cannot be squeezed");
  Dims dims = x.dims();
  dims.erase(static_cast<size_t>(dim));
  return reshape(x, dims);
}

Value Builder::unsqueeze(Value x, int64_t dim) {
  if (dim < 0) dim += x.rank() + 1;
  NEURON_CHECK(dim >= 0 && dim <= x.rank(), kInvalid, "Reshape: a dim ", dim,
               " cannot be added to ", to_string(x.type()));
  Dims dims = x.dims();
  dims.insert(static_cast<size_t>(dim), 1);
  return reshape(x, dims);
}

// --- End ------------------------------------------------------------------------------------

void Builder::result(Value value, DimsRef strides, int32_t alias, bool staged) {
  NEURON_ASSERT(value.defined(), "result: the value is undefined");
  Result result{value.id(), Dims(strides), alias, staged};
  if (strides.empty()) {
    result.strides = contiguous_strides(value.dims());
  } else {
    NEURON_CHECK(strides.size() == value.dims().size(), kInvalid, "result: strides ",
                 to_string(strides), " do not fit ", to_string(value.type()));
  }
  NEURON_CHECK(alias >= -1 && alias < static_cast<int32_t>(module_.parameters_.size()), kInvalid,
               "result: alias ", alias, " is not one of ", module_.parameters_.size(),
               " parameters");
  module_.results_.push_back(std::move(result));
}

}  // namespace neuron::hlo
