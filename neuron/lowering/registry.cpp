#include "neuron/lowering/registry.h"

#include <cstdio>
#include <cstdlib>
#include <unordered_map>

namespace neuron::lowering {
namespace {

// Registrars run during static initialisation, in any order, so the list is made on first use.
std::vector<Lowering>& registered() {
  static auto* list = new std::vector<Lowering>();
  return *list;
}

std::string_view name_part(std::string_view schema) { return schema.substr(0, schema.find('(')); }

using Index = std::unordered_map<std::string_view, const Lowering*>;

Index build_index() {
  Index index;
  for (const Lowering& lowering : registered()) {
    const auto [found, inserted] = index.emplace(name_part(lowering.schema), &lowering);
    if (!inserted) {
      std::fprintf(stderr, "two lowerings are registered under one name:\n  %s\n  %s\n",
                   found->second->schema, lowering.schema);
      std::abort();
    }
  }
  return index;
}

const Index& index() {
  static const auto* made = new Index(build_index());
  return *made;
}

}  // namespace

std::string Lowering::name() const { return std::string(name_part(schema)); }

std::span<const Lowering> all_lowerings() {
  index();  // Refuses duplicates before anybody walks the list.
  return registered();
}

const Lowering* find_lowering(std::string_view name) {
  const auto found = index().find(name);
  return found == index().end() ? nullptr : found->second;
}

namespace internal {

Registrar::Registrar(const char* schema, LoweringFunction function,
                     std::initializer_list<const char*> writes, bool library) {
  registered().push_back({schema, function, writes, library});
}

}  // namespace internal
}  // namespace neuron::lowering
