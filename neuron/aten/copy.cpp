#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/equal_native.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zero.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>

#include "neuron/aten/dispatch.h"
#include "neuron/aten/op_tracking.h"
#include "neuron/aten/tensor.h"

// Everything that moves tensors: between host and device, between devices, and on one device.
namespace neuron::aten {
namespace {

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides();
}

/// Dense in some order of dims: its bytes can be moved in one piece.
bool is_one_piece(const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); }

/// The tensor's memory without its lazy conj and neg bits.
at::Tensor without_bits(const at::Tensor& tensor) {
  if (!tensor.is_conj() && !tensor.is_neg()) return tensor;
  at::Tensor plain = tensor.alias();
  plain._set_conj(false);
  plain._set_neg(false);
  return plain;
}

void apply_bits(at::Tensor& plain, bool conj, bool neg) {
  if (conj) plain = at::conj_physical(plain);
  if (neg) plain = at::neg(plain);
}

void copy_on_device(const at::Tensor& source, const at::Tensor& destination);

// Programs know no pairs of halves: their parts are copied.
bool copy_halves(const at::Tensor& source, const at::Tensor& destination) {
  if (source.scalar_type() != c10::ScalarType::ComplexHalf &&
      destination.scalar_type() != c10::ScalarType::ComplexHalf) {
    return false;
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (!destination.is_complex()) {
    copy_on_device(at::view_as_real(source).select(-1, 0), destination);
  } else if (source.is_complex()) {
    copy_on_device(at::view_as_real(source), at::view_as_real(destination));
  } else {
    const at::Tensor parts = at::view_as_real(destination);
    copy_on_device(source, parts.select(-1, 0));
    parts.select(-1, 1).zero_();
  }
  return true;
}

void copy_on_device(const at::Tensor& source, const at::Tensor& destination) {
  if (source.is_same(destination)) return;
  at::assert_no_internal_overlap(destination);
  at::assert_no_partial_overlap(destination, source);
  const runtime::Buffer from = buffer_of(source);
  const runtime::Buffer to = buffer_of(destination);
  if (source.scalar_type() == destination.scalar_type() && same_layout(source, destination) &&
      is_one_piece(source)) {
    if (from.address == to.address) return;
    const size_t bytes = source.nbytes();
    const auto* a = static_cast<const char*>(from.address);
    const auto* b = static_cast<const char*>(to.address);
    if (a + bytes <= b || b + bytes <= a) {
      const c10::DeviceIndex device = destination.device().index();
      translating_errors([&] { runtime::copy(device, current_stream(device), to, from, bytes); });
      return;
    }
  }
  if (copy_halves(source, destination)) return;
  run_lowering_into("aten::copy", {destination, source, false}, destination);
}

void copy_between_devices(const at::Tensor& source, const at::Tensor& destination) {
  const c10::DeviceIndex from = source.device().index();
  const c10::DeviceIndex to = destination.device().index();
  // The source's stream fills a piece of plain memory; the destination's stream waits for it.
  at::Tensor sent = source.to(destination.scalar_type()).contiguous();
  translating_errors([&] { runtime::synchronize_stream(from, current_stream(from)); });
  const c10::DeviceGuard guard(destination.device());
  at::Tensor landed = destination.is_contiguous()
                          ? destination
                          : at::empty(destination.sizes(), destination.options());
  translating_errors([&] {
    runtime::copy(to, current_stream(to), buffer_of(landed), buffer_of(sent), sent.nbytes());
    runtime::synchronize_stream(to, current_stream(to));
  });
  if (!landed.is_same(destination)) copy_on_device(landed, destination);
}

void copy_to_device(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  at::Tensor host = source.resolve_conj().resolve_neg();
  const at::Tensor target = without_bits(destination);
  const c10::DeviceIndex device = target.device().index();
  const bool direct = is_one_piece(target);
  if (host.scalar_type() != target.scalar_type() ||
      (direct ? !same_layout(host, target) : !host.is_contiguous())) {
    at::Tensor staged =
        direct ? at::empty_strided(target.sizes(), target.strides(),
                                   host.options().dtype(target.scalar_type()).pinned_memory(false))
               : at::empty(target.sizes(),
                           host.options().dtype(target.scalar_type()).pinned_memory(false));
    host = staged.copy_(host);
  }
  const bool wait = !(non_blocking && host.is_same(source) && runtime::is_pinned(host.data_ptr()));
  at::Tensor landed = direct ? target : at::empty(target.sizes(), target.options());
  translating_errors([&] {
    runtime::write(device, current_stream(device), buffer_of(landed), host.const_data_ptr(),
                   landed.nbytes(), wait);
  });
  if (destination.is_conj() || destination.is_neg()) {
    apply_bits(landed, destination.is_conj(), destination.is_neg());
    copy_on_device(landed, target);
  } else if (!direct) {
    copy_on_device(landed, target);
  }
}

void copy_to_host(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  at::Tensor plain = without_bits(source);
  const c10::DeviceIndex device = plain.device().index();
  if (!is_one_piece(plain)) {
    // Not contiguous(), which may run on the CPU and come back here.
    const at::Tensor dense = at::empty(plain.sizes(), plain.options());
    copy_on_device(plain, dense);
    plain = dense;
  }
  const bool bits =
      source.is_conj() || source.is_neg() || destination.is_conj() || destination.is_neg();
  const bool direct =
      !bits && plain.scalar_type() == destination.scalar_type() && same_layout(plain, destination);
  at::Tensor host =
      direct ? destination
             : at::empty_strided(plain.sizes(), plain.strides(), plain.options().device(at::kCPU));
  const bool wait = !(non_blocking && direct && runtime::is_pinned(destination.data_ptr()));
  translating_errors([&] {
    runtime::read(device, current_stream(device), host.mutable_data_ptr(), buffer_of(plain),
                  plain.nbytes(), wait);
  });
  if (direct) return;
  if (source.is_conj()) host._set_conj(true);
  if (source.is_neg()) host._set_neg(true);
  at::Tensor out = destination;
  out.copy_(host);
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking) {
  static OpCounter& counter = counter_of("aten::copy_");
  counter.native.fetch_add(1, std::memory_order_relaxed);
  at::Tensor source = self.sizes() == destination.sizes() ? self : self.expand_as(destination);
  if (destination.numel() == 0) return destination;
  if (!on_device(source)) {
    TORCH_CHECK(source.device().is_cpu(), "cannot copy from ", source.device(), " to ",
                destination.device());
    // A host scalar spread over many elements is moved once.
    if (self.numel() == 1 && destination.numel() > 64) {
      at::Tensor one = at::empty(self.sizes(), destination.options());
      copy_to_device(self, one, non_blocking);
      return copy_from(one, destination, non_blocking);
    }
    copy_to_device(source, destination, non_blocking);
    return destination;
  }
  if (!on_device(destination)) {
    TORCH_CHECK(destination.device().is_cpu(), "cannot copy from ", source.device(), " to ",
                destination.device());
    copy_to_host(self.sizes() == destination.sizes() ? self : source.contiguous(), destination,
                 non_blocking);
    return destination;
  }
  // Resolve lazy bits: only what differs between both sides costs anything.
  const bool conj = source.is_conj() != destination.is_conj();
  const bool neg = source.is_neg() != destination.is_neg();
  at::Tensor from = without_bits(source);
  const at::Tensor to = without_bits(destination);
  apply_bits(from, conj, neg);
  if (from.device() == to.device()) {
    copy_on_device(from, to);
  } else {
    copy_between_devices(from, to);
  }
  return destination;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
  TORCH_CHECK(self.device().is_cpu() && on_device(destination),
              "_copy_from_and_resize: only support copy from cpu tensor to neuron tensor, got ",
              self.device(), " to ", destination.device());
  TORCH_CHECK(
      destination.numel() == 0 || self.sizes() == destination.sizes(),
      "_copy_from_and_resize: only support copy with same size, or to an empty tensor; got ",
      self.sizes(), " to ", destination.sizes());
  if (self.sizes() != destination.sizes()) destination.resize_(self.sizes());
  return copy_from(self, destination, false);
}

c10::Scalar local_scalar_dense(const at::Tensor& self) {
  static OpCounter& counter = counter_of("aten::_local_scalar_dense");
  counter.native.fetch_add(1, std::memory_order_relaxed);
  const size_t size = self.element_size();
  const c10::DeviceIndex device = self.device().index();
  alignas(16) char bytes[16] = {};
  const at::Tensor plain = without_bits(self);
  translating_errors([&] {
    runtime::read(device, current_stream(device), bytes, buffer_of(plain), size,
                  /*wait=*/true);
  });
  at::Tensor host = at::empty({}, at::TensorOptions().dtype(self.scalar_type()).device(at::kCPU));
  std::memcpy(host.mutable_data_ptr(), bytes, size);
  if (self.is_conj()) host._set_conj(true);
  if (self.is_neg()) host._set_neg(true);
  return host.item();
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.device() == other.device(),
              "Cannot compare two tensors on different devices. Got: ", self.device(), " and ",
              other.device());
  if (self.sizes() != other.sizes()) return false;
  if (self.numel() == 0) return true;
  // Of any two dtypes, as on other accelerators: autocast's users compare halves with floats.
  return self.eq(other).all().item<bool>();
}

}  // namespace
}  // namespace neuron::aten

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", TORCH_FN(neuron::aten::copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(neuron::aten::copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(neuron::aten::local_scalar_dense));
  m.impl("equal", TORCH_FN(neuron::aten::equal));
}

// The kernels above handle the lazy bits of both sides: without the fallthroughs torch would
// resolve them by a copy, which comes back here.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}
