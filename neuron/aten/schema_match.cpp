#include "neuron/aten/schema_match.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <string_view>

namespace neuron::aten {
namespace {

c10::TypePtr without_optional(const c10::TypePtr& type) {
  if (const auto optional = type->cast<c10::OptionalType>()) return optional->getElementType();
  return type;
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool is_tensor_like(const c10::Argument& argument) {
  const ArgumentType type = argument_type(argument);
  return type == ArgumentType::Tensor || type == ArgumentType::TensorList;
}

// Forms with out= take these from the buffer.
bool may_be_dropped(const std::string& name) {
  return name == "dtype" || name == "layout" || name == "device" || name == "pin_memory";
}

bool shares_alias_set(const c10::Argument& a, const c10::Argument& b) {
  if (a.alias_info() == nullptr || b.alias_info() == nullptr) return false;
  for (const c10::Symbol& set : a.alias_info()->beforeSets()) {
    if (b.alias_info()->beforeSets().count(set) != 0) return true;
  }
  return false;
}

// Fills in what every form has: returns, from the fresh targets and the alias marks.
bool describe_returns(const c10::FunctionSchema& candidate, Variant& variant) {
  size_t fresh = 0;
  for (size_t r = 0; r < candidate.returns().size(); ++r) {
    const c10::Argument& returned = candidate.returns()[r];
    if (argument_type(returned) == ArgumentType::Int) {
      variant.returns.push_back({Return::Kind::Integer, static_cast<int32_t>(r)});
      continue;
    }
    if (!is_tensor_like(returned)) return false;
    if (is_written(returned)) {
      int32_t found = -1;
      for (size_t a = 0; a < candidate.arguments().size() && found < 0; ++a) {
        if (shares_alias_set(returned, candidate.arguments()[a])) found = static_cast<int32_t>(a);
      }
      if (found < 0) return false;
      variant.returns.push_back({Return::Kind::Argument, found});
      continue;
    }
    while (fresh < variant.targets.size() && variant.targets[fresh].argument >= 0) ++fresh;
    if (fresh == variant.targets.size()) return false;
    variant.returns.push_back({Return::Kind::Value, static_cast<int32_t>(fresh++)});
  }
  return true;
}

bool has_fresh_type(const Variant& variant, const c10::FunctionSchema& candidate) {
  return std::none_of(variant.arguments.begin(), variant.arguments.end(),
                      [](const auto& argument) { return argument.type == ArgumentType::Other; });
}

}  // namespace

ArgumentType argument_type(const c10::Argument& argument) {
  const c10::TypePtr type = without_optional(argument.real_type());
  if (type->kind() == c10::TypeKind::ListType) {
    const c10::TypePtr element = without_optional(type->castRaw<c10::ListType>()->getElementType());
    switch (element->kind()) {
      case c10::TypeKind::TensorType:
        return ArgumentType::TensorList;
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        return ArgumentType::IntList;
      case c10::TypeKind::FloatType:
      case c10::TypeKind::NumberType:
        return ArgumentType::NumberList;
      case c10::TypeKind::BoolType:
        return ArgumentType::BoolList;
      default:
        return ArgumentType::Other;
    }
  }
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return ArgumentType::Tensor;
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
      return ArgumentType::Number;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return ArgumentType::Int;
    case c10::TypeKind::BoolType:
      return argument.name() == "pin_memory" ? ArgumentType::Ignored : ArgumentType::Bool;
    case c10::TypeKind::ScalarTypeType:
      return ArgumentType::Type;
    case c10::TypeKind::StringType:
      return ArgumentType::String;
    case c10::TypeKind::GeneratorType:
      return ArgumentType::Generator;
    case c10::TypeKind::DeviceObjType:
      return ArgumentType::Device;
    case c10::TypeKind::MemoryFormatType:
      return ArgumentType::MemoryFormat;
    case c10::TypeKind::LayoutType:
      return ArgumentType::Ignored;
    default:
      return ArgumentType::Other;
  }
}

std::optional<Variant> match_variant(const c10::FunctionSchema& functional,
                                     const std::vector<std::string>& writes,
                                     const c10::FunctionSchema& candidate) {
  Variant variant;
  const auto& ours = functional.arguments();
  variant.sources.assign(ours.size(), -1);

  std::vector<int32_t> outs, written;
  size_t next = 0;
  for (size_t a = 0; a < candidate.arguments().size(); ++a) {
    const c10::Argument& argument = candidate.arguments()[a];
    VariantArgument described;
    described.type = argument_type(argument);
    described.written = is_written(argument);
    described.out = argument.is_out();
    if (described.out) {
      outs.push_back(static_cast<int32_t>(a));
    } else {
      while (next < ours.size() && ours[next].name() != argument.name() &&
             may_be_dropped(ours[next].name())) {
        ++next;
      }
      if (next == ours.size() || ours[next].name() != argument.name()) return std::nullopt;
      if (argument_type(ours[next]) != described.type ||
          ours[next].real_type()->str() != argument.real_type()->str()) {
        return std::nullopt;
      }
      described.functional = static_cast<int32_t>(next);
      variant.sources[next] = static_cast<int32_t>(a);
      ++next;
      if (described.written) written.push_back(static_cast<int32_t>(a));
    }
    variant.arguments.push_back(described);
  }
  for (; next < ours.size(); ++next) {
    if (!may_be_dropped(ours[next].name())) return std::nullopt;
  }
  const bool dropped =
      std::find(variant.sources.begin(), variant.sources.end(), -1) != variant.sources.end();
  if (dropped && outs.empty()) return std::nullopt;

  // The functional op may itself be a mutable one (its own lowering): its values are then its fresh
  // returns and its written arguments.
  std::vector<bool> lists;
  for (const c10::Argument& returned : functional.returns()) {
    if (is_tensor_like(returned) && !is_written(returned)) {
      lists.push_back(argument_type(returned) == ArgumentType::TensorList);
    }
  }
  variant.functional_values = lists.size();
  std::vector<int32_t> own_written;
  for (const c10::Argument& argument : ours) {
    if (!is_written(argument)) continue;
    lists.push_back(argument_type(argument) == ArgumentType::TensorList);
  }

  size_t fresh = 0;
  for (const c10::Argument& returned : candidate.returns()) {
    if (is_tensor_like(returned) && !is_written(returned)) ++fresh;
  }
  if (fresh + outs.size() + written.size() != lists.size()) return std::nullopt;
  for (size_t k = 0; k < lists.size(); ++k) {
    Target target;
    target.list = lists[k];
    if (k >= fresh && k < fresh + outs.size()) target.argument = outs[k - fresh];
    if (k >= fresh + outs.size()) target.argument = written[k - fresh - outs.size()];
    if (target.argument >= 0) {
      const ArgumentType type = variant.arguments[static_cast<size_t>(target.argument)].type;
      if ((type == ArgumentType::TensorList) != target.list) return std::nullopt;
      variant.arguments[static_cast<size_t>(target.argument)].written = true;
    }
    variant.targets.push_back(target);
  }
  for (const std::string& name : writes) {
    const auto found = std::find_if(ours.begin(), ours.end(),
                                    [&](const c10::Argument& a) { return a.name() == name; });
    if (found == ours.end()) return std::nullopt;
    const int32_t source = variant.sources[static_cast<size_t>(found - ours.begin())];
    if (source < 0) return std::nullopt;
    variant.arguments[static_cast<size_t>(source)].written = true;
    variant.targets.push_back({source, argument_type(*found) == ArgumentType::TensorList});
  }
  variant.form = !outs.empty() ? Form::Out : !written.empty() ? Form::InPlace : Form::Functional;
  if (!describe_returns(candidate, variant)) return std::nullopt;
  if (!has_fresh_type(variant, candidate)) return std::nullopt;
  return variant;
}

std::vector<std::string> related_names(const std::string& functional) {
  std::vector<std::string> names = {functional, functional + "_"};
  constexpr std::string_view suffix = "_functional";
  if (functional.ends_with(suffix)) {
    const std::string base = functional.substr(0, functional.size() - suffix.size());
    names.push_back(base);
    names.push_back(base + "_");
  }
  const size_t dunder = functional.find("::__");
  if (dunder != std::string::npos) {
    names.push_back(functional.substr(0, dunder) + "::__i" + functional.substr(dunder + 4));
  }
  return names;
}

bool is_view(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const auto& returned) {
    return returned.alias_info() != nullptr && !returned.alias_info()->isWrite();
  });
}

bool same_signature(const c10::FunctionSchema& ours, const c10::FunctionSchema& torchs,
                    std::string* difference) {
  const auto compare = [&](const std::vector<c10::Argument>& a, const std::vector<c10::Argument>& b,
                           const char* what) {
    if (a.size() != b.size()) {
      *difference = std::string(what) + " count " + std::to_string(a.size()) + " against torch's " +
                    std::to_string(b.size());
      return false;
    }
    for (size_t i = 0; i < a.size(); ++i) {
      const std::string mine = a[i].real_type()->str(), theirs = b[i].real_type()->str();
      if (a[i].name() != b[i].name() || mine != theirs || is_written(a[i]) != is_written(b[i]) ||
          a[i].kwarg_only() != b[i].kwarg_only()) {
        *difference = std::string(what) + " " + std::to_string(i) + " is " + mine + " " +
                      a[i].name() + " against torch's " + theirs + " " + b[i].name();
        return false;
      }
    }
    return true;
  };
  return compare(ours.arguments(), torchs.arguments(), "argument") &&
         compare(ours.returns(), torchs.returns(), "return");
}

}  // namespace neuron::aten
