#include "neuron/compiler/compiler.h"

#include "neuron/base/error.h"

namespace neuron::compiler {

namespace {

struct Entry {
  const char* name;
  CompilerFactory factory;
};

std::vector<Entry>& entries() {
  static std::vector<Entry> all;
  return all;
}

}  // namespace

bool register_compiler(const char* name, CompilerFactory factory) {
  entries().push_back({name, factory});
  return true;
}

std::unique_ptr<Compiler> make_compiler(std::string_view name, std::string_view target) {
  NEURON_CHECK(target == "trn2" || target == "trn3", kInvalid, "no compiler for target \"", target,
               "\"; the targets are trn2 and trn3");
  std::string known;
  for (const Entry& entry : entries()) {
    if (name == entry.name) return entry.factory(target);
    known += known.empty() ? "" : ", ";
    known += entry.name;
  }
  raise(ErrorKind::kInvalid, "no compiler named \"", name, "\"; there are: ", known);
}

}  // namespace neuron::compiler
