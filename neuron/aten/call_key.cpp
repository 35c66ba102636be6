#include "neuron/aten/call_key.h"

#include <c10/core/DefaultDtype.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <bit>

#include "neuron/aten/tensor.h"
#include "neuron/base/hash.h"

namespace neuron::aten {
namespace {

// First words of an argument: no two kinds of argument may look alike.
constexpr uint64_t kNone = 0x4E6F6E65ull << 32;
constexpr uint64_t kUndefined = 0x556E6466ull << 32;
constexpr uint64_t kList = 0x4C697374ull << 32;
constexpr uint64_t kOverlaps = 0x4F766572ull << 32;

constexpr c10::DispatchKeySet kLazyBits{c10::DispatchKey::Conjugate, c10::DispatchKey::Negative};

struct Interval {
  uintptr_t begin, end;
  int32_t tensor;
};

Interval interval_of(const at::Tensor& tensor, int32_t index) {
  const at::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  int64_t extent = 1;
  const at::IntArrayRef sizes = impl->sizes(), strides = impl->strides();
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return {0, 0, index};
    extent += (sizes[i] - 1) * strides[i];
  }
  const auto address = reinterpret_cast<uintptr_t>(buffer_of(tensor).address);
  return {address, address + static_cast<uintptr_t>(extent) * impl->itemsize(), index};
}

// Appends every pair of overlapping tensors of which one is written: the alias pattern. Sorting
// keeps optimizer lists of hundreds of tensors cheap.
void add_overlaps(const SmallVector<uint8_t, 24>& written, CallView& view) {
  SmallVector<Interval, 24> intervals;
  for (size_t i = 0; i < view.tensors.size(); ++i) {
    const at::Tensor& tensor = *view.tensors[i];
    if (!tensor.defined() || !on_device(tensor)) continue;
    const Interval interval = interval_of(tensor, static_cast<int32_t>(i));
    if (interval.begin != interval.end) intervals.push_back(interval);
  }
  if (intervals.size() < 2) return;
  if (intervals.size() == 2) {
    const Interval &a = intervals[0], &b = intervals[1];
    if (a.end <= b.begin || b.end <= a.begin) return;
  }
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.tensor < b.tensor;
  });
  SmallVector<uint64_t, 8> pairs;
  for (size_t i = 0; i < intervals.size(); ++i) {
    for (size_t k = i + 1; k < intervals.size() && intervals[k].begin < intervals[i].end; ++k) {
      const auto a = static_cast<uint32_t>(std::min(intervals[i].tensor, intervals[k].tensor));
      const auto b = static_cast<uint32_t>(std::max(intervals[i].tensor, intervals[k].tensor));
      if (!written[a] && !written[b]) continue;
      const Overlap overlap = overlap_of(*view.tensors[a], *view.tensors[b]);
      pairs.push_back(kOverlaps | static_cast<uint64_t>(a) << 17 | static_cast<uint64_t>(b) << 2 |
                      static_cast<uint64_t>(overlap));
    }
  }
  view.overlaps = !pairs.empty();
  // Address order must not leak into the key.
  std::sort(pairs.begin(), pairs.end());
  view.key.append(pairs.begin(), pairs.end());
}

bool add_tensor(const at::Tensor& tensor, CallView& view) {
  view.tensors.push_back(&tensor);
  if (!tensor.defined()) {
    view.key.push_back(kUndefined);
    return true;
  }
  const at::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const std::optional<DType> dtype = dtype_of(c10::typeMetaToScalarType(impl->dtype()));
  if (!dtype.has_value() || impl->layout() != c10::kStrided || impl->has_symbolic_sizes_strides()) {
    return false;
  }
  if (impl->key_set().has_any(kLazyBits)) view.lazy_bits = true;
  const c10::Device device = impl->device();
  const bool ours = device.type() == c10::DeviceType::PrivateUse1;
  if (ours) {
    if (view.device < 0) {
      view.device = device.index();
    } else if (view.device != device.index()) {
      view.mixed_devices = true;
    }
  } else {
    view.mixed_devices = true;
  }
  const at::IntArrayRef sizes = impl->sizes(), strides = impl->strides();
  view.key.push_back(static_cast<uint64_t>(*dtype) | static_cast<uint64_t>(sizes.size()) << 8 |
                     static_cast<uint64_t>(impl->is_wrapped_number()) << 16 |
                     static_cast<uint64_t>(static_cast<uint8_t>(device.type())) << 24 |
                     static_cast<uint64_t>(static_cast<uint8_t>(device.index())) << 32 |
                     static_cast<uint64_t>(1) << 40);
  for (const int64_t size : sizes) view.key.push_back(static_cast<uint64_t>(size));
  for (const int64_t stride : strides) view.key.push_back(static_cast<uint64_t>(stride));
  return true;
}

bool add_number(const c10::IValue& value, bool is_static, CallView& view) {
  view.numbers.push_back(&value);
  uint64_t kind;
  if (value.isDouble()) {
    kind = 1;
    if (is_static) view.key.push_back(std::bit_cast<uint64_t>(value.toDouble()));
  } else if (value.isInt()) {
    kind = 2;
    if (is_static) view.key.push_back(static_cast<uint64_t>(value.toInt()));
  } else if (value.isBool()) {
    kind = 3;
    if (is_static) view.key.push_back(value.toBool());
  } else if (value.isComplexDouble()) {
    kind = 4;
    if (is_static) {
      const c10::complex<double> number = value.toComplexDouble();
      view.key.push_back(std::bit_cast<uint64_t>(number.real()));
      view.key.push_back(std::bit_cast<uint64_t>(number.imag()));
    }
  } else if (value.isScalar() && !value.isSymInt() && !value.isSymFloat()) {
    kind = 5;  // An unsigned 64-bit number.
    if (is_static) view.key.push_back(value.toScalar().toUInt64());
  } else {
    return false;
  }
  view.key.push_back(kind << 8 | static_cast<uint64_t>(is_static));
  return true;
}

bool add_list(const VariantArgument& argument, const c10::IValue& value, bool is_static,
              CallView& view) {
  const c10::ArrayRef<c10::IValue> members = value.toListRef();
  view.key.push_back(kList | members.size());
  for (const c10::IValue& member : members) {
    switch (argument.type) {
      case ArgumentType::TensorList: {
        static const at::Tensor undefined;
        if (!add_tensor(member.isNone() ? undefined : member.toTensor(), view)) return false;
        break;
      }
      case ArgumentType::NumberList:
        if (!add_number(member, is_static, view)) return false;
        break;
      case ArgumentType::BoolList:
        view.key.push_back(member.toBool());
        break;
      default:
        if (!member.isInt()) return false;
        view.key.push_back(static_cast<uint64_t>(member.toInt()));
        break;
    }
  }
  return true;
}

bool add_argument(const VariantArgument& argument, const c10::IValue& value, bool is_static,
                  CallView& view) {
  if (argument.type == ArgumentType::Tensor) {
    static const at::Tensor undefined;
    return add_tensor(value.isTensor() ? value.toTensor() : undefined, view);
  }
  if (value.isNone()) {
    view.key.push_back(kNone);
    return true;
  }
  switch (argument.type) {
    case ArgumentType::Number:
      return add_number(value, is_static, view);
    case ArgumentType::TensorList:
    case ArgumentType::NumberList:
    case ArgumentType::IntList:
    case ArgumentType::BoolList:
      // An int[2] argument may be given as one int.
      if (!value.isList()) {
        if (!value.isInt()) return false;
        view.key.push_back(static_cast<uint64_t>(value.toInt()));
        return true;
      }
      return add_list(argument, value, is_static, view);
    case ArgumentType::Int:
    case ArgumentType::Type:
    case ArgumentType::MemoryFormat:
      if (!value.isInt()) return false;
      view.key.push_back(static_cast<uint64_t>(value.toInt()));
      return true;
    case ArgumentType::Bool:
      view.key.push_back(value.toBool());
      return true;
    case ArgumentType::String: {
      const std::string_view text = value.toStringView();
      Hasher hasher;
      hasher.add_bytes(text.data(), text.size());
      const Hash128 hash = hasher.finish();
      view.key.push_back(hash.low);
      view.key.push_back(hash.high);
      return true;
    }
    case ArgumentType::Device: {
      const c10::Device device = value.toDevice();
      if (device.type() != c10::DeviceType::PrivateUse1) return false;
      const int32_t index = device.has_index() ? device.index() : current_device();
      if (view.device < 0) view.device = index;
      view.key.push_back(static_cast<uint64_t>(index));
      return true;
    }
    case ArgumentType::Generator:
      view.generator = &value;
      view.key.push_back(1);
      return true;
    case ArgumentType::Ignored:
      // pin_memory, or a layout other than strided.
      if (value.isInt() && value.toInt() != static_cast<int64_t>(c10::kStrided)) return false;
      view.key.push_back(2);
      return true;
    case ArgumentType::Tensor:
    case ArgumentType::Other:
      break;
  }
  return false;
}

}  // namespace

Overlap overlap_of(const at::Tensor& a, const at::Tensor& b) {
  const Interval first = interval_of(a, 0), second = interval_of(b, 1);
  if (first.begin == first.end || second.begin == second.end) return Overlap::None;
  if (first.end <= second.begin || second.end <= first.begin) return Overlap::None;
  const bool same = first.begin == second.begin && a.dtype() == b.dtype() &&
                    a.sizes() == b.sizes() && a.strides() == b.strides();
  return same ? Overlap::Same : Overlap::Partial;
}

int32_t tensor_count(const Variant& variant, const CallView& view, size_t argument) {
  const c10::IValue& value = view.arguments[argument];
  switch (variant.arguments[argument].type) {
    case ArgumentType::Tensor:
      return 1;
    case ArgumentType::TensorList:
      return value.isNone() ? 0 : static_cast<int32_t>(value.toListRef().size());
    default:
      return 0;
  }
}

int32_t first_tensor(const Variant& variant, const CallView& view, size_t argument) {
  int32_t position = 0;
  for (size_t a = 0; a < argument; ++a) position += tensor_count(variant, view, a);
  return position;
}

bool build_key(const Variant& variant, uint64_t static_numbers, const c10::IValue* arguments,
               CallView& view) {
  view.arguments = arguments;
  view.tensors.clear();
  view.numbers.clear();
  view.key.clear();
  view.device = -1;
  view.generator = nullptr;
  view.mixed_devices = false;
  view.overlaps = false;
  view.lazy_bits = false;
  view.key.push_back(static_numbers ^ static_cast<uint64_t>(c10::get_default_dtype_as_scalartype())
                                          << 56);
  bool writes = false;
  for (size_t a = 0; a < variant.arguments.size(); ++a) {
    const VariantArgument& argument = variant.arguments[a];
    const bool is_static =
        argument.functional >= 0 && (static_numbers >> argument.functional & 1) != 0;
    if (!add_argument(argument, arguments[a], is_static, view)) return false;
    writes |= argument.written;
  }
  if (view.device < 0) view.device = current_device();
  view.key.push_back(static_cast<uint64_t>(view.device));
  if (writes && view.tensors.size() > 1) {
    SmallVector<uint8_t, 24> written;
    for (size_t a = 0; a < variant.arguments.size(); ++a) {
      const int32_t count = tensor_count(variant, view, a);
      for (int32_t k = 0; k < count; ++k) written.push_back(variant.arguments[a].written);
    }
    add_overlaps(written, view);
  }
  uint64_t hash = 0x243F6A8885A308D3ull;
  for (const uint64_t word : view.key) hash = mix64(hash ^ word, 0x9E3779B97F4A7C15ull);
  view.hash = hash;
  return true;
}

}  // namespace neuron::aten
