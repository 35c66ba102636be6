#include "neuron/runtime/program_dump.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "neuron/base/env.h"
#include "neuron/base/error.h"

namespace neuron::runtime {
namespace {

void write_file(const std::string& path, const void* data, size_t bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  file.close();
  NEURON_CHECK(file, kIo, "cannot write ", path, " (TORCH_NEURONX_DUMP)");
}

std::string file_name(const Hash128& hash) {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high),
                static_cast<unsigned long long>(hash.low));
  return text;
}

}  // namespace

std::unique_ptr<ProgramDump> ProgramDump::create(const hlo::Module& module) {
  const std::string& folder = env::dump_dir();
  if (folder.empty()) return nullptr;
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  const std::string base = folder + "/" + file_name(hlo::fingerprint(module));
  const std::string text = hlo::to_stablehlo(module);
  write_file(base + ".mlir", text.data(), text.size());
  std::vector<DType> kinds;
  for (const hlo::Scalar& scalar : module.scalars()) kinds.push_back(scalar.kind);
  return std::unique_ptr<ProgramDump>(new ProgramDump(base, std::move(kinds), env::dump_data()));
}

bool ProgramDump::claim_run() noexcept { return data_pending_.exchange(false); }

void ProgramDump::write_inputs(std::span<const Buffer> parameters, std::span<const size_t> bytes,
                               std::span<const ScalarSlot> scalars) const {
  size_t index = 0;
  for (size_t i = 0; i < parameters.size(); ++i, ++index) {
    write_file(base_ + ".in" + std::to_string(index), parameters[i].address, bytes[i]);
  }
  for (size_t i = 0; i < scalars.size(); ++i, ++index) {
    const size_t width = scalar_kinds_[i] == DType::c128 ? 16 : 8;
    write_file(base_ + ".in" + std::to_string(index), &scalars[i], width);
  }
}

void ProgramDump::write_outputs(std::span<const Buffer> results,
                                std::span<const size_t> bytes) const {
  for (size_t i = 0; i < results.size(); ++i) {
    write_file(base_ + ".out" + std::to_string(i), results[i].address, bytes[i]);
  }
}

void ProgramDump::write_op(const char* op) const {
  write_file(base_ + ".op", op, std::char_traits<char>::length(op));
}

}  // namespace neuron::runtime
