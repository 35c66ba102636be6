#include "neuron/aten/generator.h"

#include <ATen/Utils.h>
#include <ATen/core/TensorBase.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <deque>
#include <mutex>

namespace neuron::aten {
namespace {
constexpr size_t kStateBytes = 16;
}  // namespace

NeuronGenerator::NeuronGenerator(c10::DeviceIndex device)
    : GeneratorImpl(c10::Device(c10::DeviceType::PrivateUse1, device),
                    c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

void NeuronGenerator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

void NeuronGenerator::set_offset(uint64_t offset) {
  TORCH_CHECK(offset % 4 == 0, "a Philox offset must be a multiple of 4, got ", offset);
  offset_ = offset;
}

uint64_t NeuronGenerator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

c10::intrusive_ptr<c10::TensorImpl> NeuronGenerator::get_state() const {
  at::Tensor state = at::empty({static_cast<int64_t>(kStateBytes)},
                               at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  auto* bytes = static_cast<uint8_t*>(state.mutable_data_ptr());
  std::memcpy(bytes, &seed_, 8);
  std::memcpy(bytes + 8, &offset_, 8);
  return state.getIntrusivePtr();
}

void NeuronGenerator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  const size_t bytes = static_cast<size_t>(state.numel());
  TORCH_CHECK(bytes == kStateBytes || bytes == 8, "RNG state is wrong size: expected ", kStateBytes,
              " bytes (seed, offset) or 8 (seed), got ", bytes);
  const auto* data = static_cast<const uint8_t*>(state.data());
  uint64_t seed = 0;
  uint64_t offset = 0;
  std::memcpy(&seed, data, 8);
  if (bytes == kStateBytes) std::memcpy(&offset, data + 8, 8);
  seed_ = seed;
  set_offset(offset);
}

void NeuronGenerator::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) {
  const auto* other = dynamic_cast<const NeuronGenerator*>(state.get());
  TORCH_CHECK(other != nullptr, "graphsafe_set_state: expected a generator of a neuron device");
  seed_ = other->seed_;
  offset_ = other->offset_;
}

c10::intrusive_ptr<c10::GeneratorImpl> NeuronGenerator::graphsafe_get_state() const {
  return c10::intrusive_ptr<c10::GeneratorImpl>::reclaim(clone_impl());
}

NeuronGenerator* NeuronGenerator::clone_impl() const {
  auto* copy = new NeuronGenerator(device().index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

PhiloxDraw NeuronGenerator::draw(int64_t counters) {
  const PhiloxDraw drawn{seed_, offset_};
  offset_ += (static_cast<uint64_t>(counters) + 3) / 4 * 4;
  return drawn;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  // Leaked on purpose: used until the very end of the process.
  static auto* const generators = [] {
    auto* all = new std::deque<at::Generator>;
    const int count = std::max(runtime::device_count(), 1);
    for (int i = 0; i < count; ++i) {
      all->push_back(at::make_generator<NeuronGenerator>(static_cast<c10::DeviceIndex>(i)));
      all->back().seed();
    }
    return all;
  }();
  const c10::DeviceIndex index = device == -1 ? current_device() : device;
  TORCH_CHECK(index >= 0 && static_cast<size_t>(index) < generators->size(),
              "neuron:", static_cast<int>(index), ": no such device; valid indices are 0 to ",
              generators->size() - 1);
  return (*generators)[static_cast<size_t>(index)];
}

at::Generator new_generator(c10::DeviceIndex device) {
  return at::make_generator<NeuronGenerator>(device == -1 ? current_device() : device);
}

PhiloxDraw draw_philox(const std::optional<at::Generator>& generator, c10::DeviceIndex device,
                       int64_t counters) {
  const at::Generator& source =
      generator.has_value() && generator->defined() ? *generator : default_generator(device);
  TORCH_CHECK(source.device().type() == c10::DeviceType::PrivateUse1,
              "Expected a 'neuron' device type for generator but found '", source.device().type(),
              "'");
  auto* impl = static_cast<NeuronGenerator*>(source.unsafeGetGeneratorImpl());
  const std::scoped_lock lock(impl->mutex_);
  return impl->draw(counters);
}

}  // namespace neuron::aten
