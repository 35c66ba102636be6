#include "neuron/aten/dispatch.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/ops/_copy_from.h>

#include <mutex>

#include "neuron/aten/convert.h"
#include "neuron/aten/fallback.h"
#include "neuron/aten/lowered_op.h"
#include "neuron/aten/tensor.h"
#include "neuron/runtime/capture.h"

namespace neuron::aten {
namespace {

c10::IValue make_return(const ReturnPlan& plan, c10::SmallVector<at::Tensor, 4>& results,
                        const c10::IValue* arguments) {
  switch (plan.kind) {
    case ReturnPlan::Kind::Result:
      return std::move(results[static_cast<size_t>(plan.index)]);
    case ReturnPlan::Kind::List: {
      c10::List<at::Tensor> members;
      members.reserve(static_cast<size_t>(plan.count));
      for (int32_t k = 0; k < plan.count; ++k) {
        members.push_back(std::move(results[static_cast<size_t>(plan.index + k)]));
      }
      return members;
    }
    case ReturnPlan::Kind::Argument:
      return arguments[plan.index];
    case ReturnPlan::Kind::Integer:
      return plan.integer;
  }
  return {};
}

}  // namespace

namespace {

struct AllOps {
  std::mutex mutex;
  std::vector<LoweredOp*> ops;
};
AllOps& all_ops() {
  static auto* const all = new AllOps;
  return *all;
}

}  // namespace

LoweredOp::LoweredOp(Overload& overload) : overload_(overload) {
  const std::lock_guard lock(all_ops().mutex);
  all_ops().ops.push_back(this);
}

void LoweredOp::clear_caches() {
  const std::lock_guard lock(all_ops().mutex);
  for (LoweredOp* op : all_ops().ops) op->cache_.clear();
}

void clear_entry_caches() { LoweredOp::clear_caches(); }

void LoweredOp::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                           torch::jit::Stack* stack) {
  const size_t count = overload_.variant.arguments.size();
  const c10::IValue* arguments = stack->data() + (stack->size() - count);
  if (overload_.check != nullptr) overload_.check(arguments);
  if (overload_.rewrite != nullptr) {
    if (overload_.rewrite(overload_, stack)) return;
    arguments = stack->data() + (stack->size() - count);
  }
  CallView view;
  std::shared_ptr<const Entry> entry;
  try {
    entry = entry_for(arguments, view);
    if (view.lazy_bits) {
      run_resolved(stack);
      return;
    }
    if (entry != nullptr && entry->kind <= Entry::Kind::Nothing) {
      Results results;
      run(*entry, view, results);
      push_returns(*entry, view, results, stack);
      return;
    }
  } catch (const Error& error) {
    rethrow_as_torch(error);
  }
  if (entry != nullptr && entry->kind == Entry::Kind::Members) {
    run_members(stack);
  } else {
    run_fallback(overload_.handle, stack, *overload_.counter, overload_.writes);
  }
}

std::shared_ptr<const Entry> LoweredOp::entry_for(const c10::IValue* arguments, CallView& view) {
  // Twice anew at most: once for a resized out= tensor, then for numbers that joined the key.
  for (int attempt = 0; attempt < 8; ++attempt) {
    const uint64_t numbers = overload_.static_numbers.load(std::memory_order_relaxed);
    if (!build_key(overload_.variant, numbers, arguments, view) || view.lazy_bits) return nullptr;
    if (std::shared_ptr<const Entry> found = cache_.find(view)) return found;
    // No lock is held here: metadata may take the GIL.
    if (std::shared_ptr<Entry> made = prepare(overload_, view)) return cache_.insert(made);
  }
  raise(ErrorKind::kInternal, overload_.name, ": the key of a call does not settle");
}

void LoweredOp::run_trusted(const std::vector<c10::IValue>& arguments) {
  translating_errors([&] {
    CallView view;
    const std::shared_ptr<const Entry> entry = entry_for(arguments.data(), view);
    NEURON_CHECK(entry != nullptr && entry->kind <= Entry::Kind::Nothing, kUnsupported,
                 overload_.name, ": no neuron kernel for these tensors");
    Results results;
    run(*entry, view, results);
  });
}

void LoweredOp::run(const Entry& entry, const CallView& view, Results& results) {
  const auto device = static_cast<c10::DeviceIndex>(view.device);
  for (const ResultPlan& plan : entry.results) {
    if (!plan.defined || plan.tensor >= 0) {
      results.emplace_back();
    } else {
      results.push_back(empty_strided_unchecked({plan.sizes.data(), plan.sizes.size()},
                                                {plan.strides.data(), plan.strides.size()},
                                                plan.dtype, device));
    }
  }
  if (entry.kind == Entry::Kind::Program) {
    SmallVector<runtime::Buffer, 16> parameters;
    for (const int32_t position : entry.parameters) {
      parameters.push_back(buffer_of(*view.tensors[static_cast<size_t>(position)]));
    }
    SmallVector<runtime::ScalarSlot, 8> scalars;
    PhiloxDraw draw{0, 0};
    if (entry.philox_counters > 0) {
      std::optional<at::Generator> generator;
      if (view.generator != nullptr) generator = view.generator->toGenerator();
      draw = draw_philox(generator, device, entry.philox_counters);
    }
    for (const ScalarSource& source : entry.scalars) {
      runtime::ScalarSlot slot;
      slot.integer = slot.unused = 0;
      switch (source.kind) {
        case lowering::InputSource::Kind::Number:
          slot = to_slot(*view.numbers[static_cast<size_t>(source.index)]);
          break;
        case lowering::InputSource::Kind::HostScalar:
          slot = read_host_scalar(*view.tensors[static_cast<size_t>(source.index)]);
          break;
        case lowering::InputSource::Kind::PhiloxSeed:
          slot.integer = static_cast<int64_t>(draw.seed);
          break;
        case lowering::InputSource::Kind::PhiloxOffset:
          slot.integer = static_cast<int64_t>(draw.offset);
          break;
        case lowering::InputSource::Kind::Tensor:
        case lowering::InputSource::Kind::OutBuffer:
          break;
      }
      scalars.push_back(slot);
    }
    SmallVector<runtime::Buffer, 8> outputs;
    for (const int32_t index : entry.outputs) {
      const ResultPlan& plan = entry.results[static_cast<size_t>(index)];
      outputs.push_back(buffer_of(plan.tensor >= 0 ? *view.tensors[static_cast<size_t>(plan.tensor)]
                                                   : results[static_cast<size_t>(index)]));
    }
    runtime::launch(device, current_stream(device), entry.program, parameters, scalars, outputs,
                    overload_.name.c_str());
    runtime::raise_if_run(device, current_stream(device));
    if (entry.philox_counters > 0 && runtime::is_capturing(device, current_stream(device)))
        [[unlikely]] {
      draw_again_on_replay(entry, view, device);
    }
  }
  overload_.counter->native.fetch_add(1, std::memory_order_relaxed);
}

void LoweredOp::draw_again_on_replay(const Entry& entry, const CallView& view,
                                     c10::DeviceIndex device) {
  std::optional<at::Generator> generator;
  if (view.generator != nullptr) generator = view.generator->toGenerator();
  std::vector<size_t> seeds, offsets;
  for (size_t i = 0; i < entry.scalars.size(); ++i) {
    if (entry.scalars[i].kind == lowering::InputSource::Kind::PhiloxSeed) seeds.push_back(i);
    if (entry.scalars[i].kind == lowering::InputSource::Kind::PhiloxOffset) offsets.push_back(i);
  }
  runtime::refresh_before_replay(
      device, current_stream(device),
      [=, counters = entry.philox_counters](std::span<runtime::ScalarSlot> scalars) {
        const PhiloxDraw draw = draw_philox(generator, device, counters);
        for (const size_t i : seeds) scalars[i].integer = static_cast<int64_t>(draw.seed);
        for (const size_t i : offsets) scalars[i].integer = static_cast<int64_t>(draw.offset);
      });
}

void LoweredOp::push_returns(const Entry& entry, const CallView& view, Results& results,
                             torch::jit::Stack* stack) {
  const size_t count = overload_.variant.arguments.size();
  if (entry.returns.size() == 1) {
    // The common case without a second move: the value takes the first argument's place.
    c10::IValue value = make_return(entry.returns[0], results, view.arguments);
    const size_t base = stack->size() - count;
    stack->resize(base + (count > 0 ? 1 : 0));
    if (count > 0) {
      (*stack)[base] = std::move(value);
    } else {
      stack->push_back(std::move(value));
    }
    return;
  }
  c10::SmallVector<c10::IValue, 4> values;
  for (const ReturnPlan& plan : entry.returns) {
    values.push_back(make_return(plan, results, view.arguments));
  }
  torch::jit::drop(*stack, count);
  for (c10::IValue& value : values) stack->push_back(std::move(value));
}

namespace {

bool is_lazy(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.is_conj() || tensor.is_neg());
}

at::Tensor resolved(const at::Tensor& tensor) {
  if (!is_lazy(tensor) || !on_device(tensor)) return tensor;
  // Not clone(), which would come here again.
  const auto strides = tensor.is_non_overlapping_and_dense()
                           ? tensor.strides().vec()
                           : at::infer_dense_strides(tensor.sizes(), tensor.strides());
  at::Tensor plain = empty_strided_unchecked(tensor.sizes(), strides, tensor.scalar_type(),
                                             tensor.device().index());
  at::_copy_from(tensor, plain);
  return plain;
}

}  // namespace

void LoweredOp::run_resolved(torch::jit::Stack* stack) {
  const size_t count = overload_.variant.arguments.size();
  const size_t base = stack->size() - count;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<std::pair<at::Tensor, at::Tensor>> written;  // original, plain
  for (size_t a = 0; a < count; ++a) {
    c10::IValue& value = (*stack)[base + a];
    if (value.isTensor() && is_lazy(value.toTensor())) {
      at::Tensor original = value.toTensor();
      at::Tensor plain = resolved(original);
      if (overload_.variant.arguments[a].written) written.emplace_back(original, plain);
      value = std::move(plain);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> members;
      for (const c10::IValue& member : value.toListRef()) {
        members.push_back(resolved(member.toTensor()));
      }
      value = std::move(members);
    }
  }
  overload_.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), stack);
  for (const auto& [original, plain] : written) {
    at::_copy_from(plain, original);
    for (size_t i = base; i < stack->size(); ++i) {
      if ((*stack)[i].isTensor() && (*stack)[i].toTensor().is_same(plain)) (*stack)[i] = original;
    }
  }
}

void LoweredOp::run_members(torch::jit::Stack* stack) {
  const size_t count = overload_.variant.arguments.size();
  const size_t base = stack->size() - count;
  const torch::jit::Stack arguments(stack->begin() + static_cast<std::ptrdiff_t>(base),
                                    stack->end());
  const size_t members = arguments[0].toListRef().size();
  std::vector<c10::List<at::Tensor>> lists(overload_.variant.returns.size());
  for (size_t k = 0; k < members; ++k) {
    torch::jit::Stack one;
    for (size_t a = 0; a < count; ++a) {
      const c10::IValue& value = arguments[a];
      const ArgumentType type = overload_.variant.arguments[a].type;
      const bool splits = (type == ArgumentType::TensorList || type == ArgumentType::NumberList) &&
                          value.isList() && value.toListRef().size() == members;
      if (!splits) {
        one.push_back(value);
        continue;
      }
      const c10::IValue& member = value.toListRef()[k];
      if (value.isTensorList()) {
        one.emplace_back(c10::List<at::Tensor>({member.toTensor()}));
      } else if (value.isDoubleList()) {
        one.emplace_back(c10::List<double>({member.toDouble()}));
      } else {
        c10::List<at::Scalar> single;
        single.push_back(member.toScalar());
        one.emplace_back(c10::impl::toList(std::move(single)));
      }
    }
    overload_.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &one);
    for (size_t r = 0; r < lists.size() && r < one.size(); ++r) {
      if (one[r].isTensorList()) lists[r].push_back(one[r].toListRef()[0].toTensor());
    }
  }
  torch::jit::drop(*stack, count);
  for (const c10::List<at::Tensor>& list : lists) stack->emplace_back(list);
}

}  // namespace neuron::aten
