#include "neuron/compiler/cpu/testing/run_plan.h"

#include <cmath>
#include <cstring>
#include <map>
#include <memory>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/interpret_nest.h"
#include "neuron/compiler/cpu/kernel_loader_test.h"
#include "neuron/hlo/evaluate_internal.h"
#include "neuron/nrtsim/builtins.h"

namespace neuron::compiler::cpu::testing {

namespace {

/// Calls body(offset in the strided buffer, linear index).
template <typename Body>
void for_each_element(DimsRef dims, DimsRef strides, Body&& body) {
  hlo::internal::for_each_index(dims, [&](const Dims& index, int64_t linear) {
    body(hlo::internal::offset_of(index, strides), linear);
  });
}

/// The plainest product: tests of plans should not depend on a tuned one.
void run_dot(const neff::LibraryStep& step, const std::function<void*(neff::BufferRef)>& find) {
  const neff::LibraryTensor &a = step.inputs[0], &b = step.inputs[1], &c = step.outputs[0];
  const auto* from_a = static_cast<const std::byte*>(find(a.buffer));
  const auto* from_b = static_cast<const std::byte*>(find(b.buffer));
  auto* to = static_cast<std::byte*>(find(c.buffer));
  const auto size_in = static_cast<int64_t>(size_of(a.dtype));
  const auto size_out = static_cast<int64_t>(size_of(c.dtype));
  hlo::with_compute_type(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    using Sum = hlo::internal::accumulator_t<T>;
    hlo::internal::for_each_index(c.dims, [&](const Dims& i, int64_t) {
      Sum sum{};
      for (int64_t k = 0; k < a.dims[2]; ++k) {
        const int64_t at_a = i[0] * a.strides[0] + i[1] * a.strides[1] + k * a.strides[2];
        const int64_t at_b = i[0] * b.strides[0] + k * b.strides[1] + i[2] * b.strides[2];
        const auto x = static_cast<Sum>(hlo::load_element<T>(a.dtype, from_a + at_a * size_in));
        const auto y = static_cast<Sum>(hlo::load_element<T>(b.dtype, from_b + at_b * size_in));
        sum = hlo::internal::plus(sum, hlo::internal::times(x, y));
      }
      hlo::store_element<T>(c.dtype, static_cast<T>(sum),
                            to + hlo::internal::offset_of(i, c.strides) * size_out);
    });
  });
}

void run_library(const neff::LibraryStep& step, const std::function<void*(neff::BufferRef)>& find) {
  if (step.name == "neuron.dot") return run_dot(step, find);
  const nrtsim::Builtin* found = nullptr;
  for (const nrtsim::Builtin& b : nrtsim::builtins()) {
    if (b.name == step.name) found = &b;
  }
  NEURON_CHECK(found != nullptr, kUnsupported, "no built-in kernel ", step.name);
  std::vector<nrtsim_lib_tensor_t> inputs, outputs;
  std::vector<void*> in, out;
  auto add = [&](const neff::LibraryTensor& t, std::vector<nrtsim_lib_tensor_t>& to,
                 std::vector<void*>& pointers) {
    to.push_back({static_cast<uint32_t>(t.dtype), static_cast<uint32_t>(t.dims.size()),
                  t.dims.data(), t.strides.data()});
    pointers.push_back(find(t.buffer));
  };
  for (const auto& t : step.inputs) add(t, inputs, in);
  for (const auto& t : step.outputs) add(t, outputs, out);
  nrtsim_lib_call_t call{};
  call.struct_size = sizeof(call);
  call.name = step.name.c_str();
  call.inputs = inputs.data();
  call.input_count = static_cast<uint32_t>(inputs.size());
  call.outputs = outputs.data();
  call.output_count = static_cast<uint32_t>(outputs.size());
  call.ints = step.ints.data();
  call.int_count = step.ints.size();
  call.arguments = step.arguments.data();
  call.argument_bytes = step.arguments.size();
  nrtsim_lib_context_t context{};
  context.struct_size = sizeof(context);
  context.parallel_for = [](void (*body)(void*, int64_t, int64_t), void* user, int64_t count,
                            int64_t) { body(user, 0, count); };
  context.threads = 1;
  char message[512] = "";
  void* state = found->kernel.prepare != nullptr ? found->kernel.prepare(&call) : nullptr;
  const int status =
      found->kernel.run(state, &call, in.data(), out.data(), &context, message, sizeof(message));
  if (found->kernel.destroy != nullptr) found->kernel.destroy(state);
  NEURON_CHECK(status == 0, kDevice, step.name, " failed: ", message);
}

}  // namespace

NestRunner interpreted() {
  return [](const LoopNest& nest, void* const* pointers) { interpret_nest(nest, pointers); };
}

NestRunner generated(int pieces) {
  auto loaded = std::make_shared<std::map<Hash128, std::unique_ptr<LoadedKernel>>>();
  return [loaded, pieces](const LoopNest& nest, void* const* pointers) {
    const Hash128 key = key_of(nest);
    auto& kernel = (*loaded)[key];
    if (!kernel) {
      const LoopNest* one = &nest;
      kernel = std::make_unique<LoadedKernel>(*kernel_cache().get({&one, 1})[0].object);
    }
    const std::vector<int64_t> args = arguments_of(nest);
    const int64_t count = iterations_of(nest);
    // Backwards, so that a dependence of one piece on another shows.
    for (int p = pieces; p-- > 0;) {
      kernel->function()(pointers, args.data(), count * p / pieces, count * (p + 1) / pieces);
    }
  };
}

RunOutcome run_plan(const hlo::Module& module, const Plan& plan,
                    std::span<const hlo::Array> parameters,
                    std::span<const std::complex<double>> scalars, const NestRunner& runner) {
  RunOutcome outcome;
  std::vector<std::vector<std::byte>> inputs, results;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const hlo::Parameter& p = module.parameters()[i];
    const size_t size = size_of(p.type.dtype);
    auto& buffer = inputs.emplace_back(
        static_cast<size_t>(storage_extent(p.type.dims, p.strides)) * size, std::byte{0x5A});
    for_each_element(p.type.dims, p.strides, [&](int64_t at, int64_t linear) {
      std::memcpy(buffer.data() + static_cast<size_t>(at) * size,
                  parameters[i].bytes.data() + static_cast<size_t>(linear) * size, size);
    });
  }
  for (const hlo::Result& r : module.results()) {
    const hlo::Type& type = module.node(r.value).type;
    results.emplace_back(
        static_cast<size_t>(storage_extent(type.dims, r.strides)) * size_of(type.dtype),
        std::byte{0xA5});
  }
  std::vector<std::byte> block(16 * std::max<size_t>(1, scalars.size()));
  for (size_t i = 0; i < scalars.size(); ++i) {
    const DType kind = module.scalars()[i].kind;
    std::byte* to = block.data() + 16 * i;
    if (kind == DType::f64 || kind == DType::c128) {
      std::memcpy(to, &scalars[i], 16);
    } else {
      const auto integer = static_cast<int64_t>(scalars[i].real());
      std::memcpy(to, &integer, 8);
    }
  }
  std::vector<std::byte> arena(static_cast<size_t>(plan.arena_bytes), std::byte{0xEE});
  std::vector<std::byte> constants = plan.constants;
  auto find = [&](neff::BufferRef ref) -> void* {
    using Kind = neff::BufferRef::Kind;
    std::byte* base = nullptr;
    switch (ref.kind) {
      case Kind::Parameter:
        base = inputs[ref.index].data();
        break;
      case Kind::Result: {
        const int32_t alias = module.results()[ref.index].alias;
        base = alias >= 0 ? inputs[static_cast<size_t>(alias)].data() : results[ref.index].data();
        break;
      }
      case Kind::Scalars:
        base = block.data();
        break;
      case Kind::Arena:
        base = arena.data();
        break;
      case Kind::Constant:
        base = constants.data();
        break;
      case Kind::Status:
        base = reinterpret_cast<std::byte*>(&outcome.status);
        break;
    }
    return base + ref.offset;
  };
  int64_t number = 0;
  for (const PlannedStep& step : plan.steps) {
    ++number;
    if (step.library) {
      ++outcome.library_steps;
      run_library(step.call, find);
      continue;
    }
    ++outcome.kernel_steps;
    std::vector<void*> pointers;
    for (const neff::BufferRef& ref : step.pointers) pointers.push_back(find(ref));
    LoopNest nest = step.nest;
    nest.status_value = number;
    runner(nest, pointers.data());
  }
  for (size_t r = 0; r < module.results().size(); ++r) {
    const hlo::Result& result = module.results()[r];
    const hlo::Type& type = module.node(result.value).type;
    hlo::Array array = hlo::internal::make_array(type);
    const size_t size = size_of(type.dtype);
    auto* base =
        static_cast<std::byte*>(find({neff::BufferRef::Kind::Result, static_cast<uint32_t>(r), 0}));
    for_each_element(type.dims, result.strides, [&](int64_t at, int64_t linear) {
      std::memcpy(array.bytes.data() + static_cast<size_t>(linear) * size,
                  base + static_cast<size_t>(at) * size, size);
    });
    outcome.results.push_back(std::move(array));
  }
  return outcome;
}

std::string difference(const hlo::Array& actual, const hlo::Array& expected, double rtol,
                       double atol) {
  if (!(actual.type == expected.type)) return "types differ";
  const int64_t count = count_elements(actual.type.dims);
  std::string text;
  hlo::with_compute_type(actual.type.dtype, [&](auto tag) {
    using T = decltype(tag);
    for (int64_t i = 0; i < count && text.empty(); ++i) {
      const T a = hlo::internal::load_at<T>(actual, i), e = hlo::internal::load_at<T>(expected, i);
      bool same = a == e;
      if constexpr (hlo::is_complex_v<T>) {
        same = same || std::abs(a - e) <= rtol * std::abs(e) + atol ||
               (std::isnan(std::abs(a)) && std::isnan(std::abs(e)));
      } else if constexpr (std::is_floating_point_v<T>) {
        same = same || (std::isnan(a) && std::isnan(e)) ||
               std::abs(static_cast<double>(a) - static_cast<double>(e)) <=
                   rtol * std::abs(static_cast<double>(e)) + atol;
      }
      if (!same) {
        text =
            internal::join("element ", i, " of ", to_string(actual.type), " is ", a, ", not ", e);
      }
    }
  });
  return text;
}

}  // namespace neuron::compiler::cpu::testing
