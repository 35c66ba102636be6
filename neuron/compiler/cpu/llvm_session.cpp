#include "neuron/compiler/cpu/llvm_session.h"

#include <llvm/ADT/SmallVector.h>
#include <llvm/ADT/StringMap.h>
#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/CommandLine.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/Target/TargetOptions.h>
#include <llvm/TargetParser/Host.h>

#include <algorithm>
#include <mutex>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/emit_nest.h"

namespace neuron::compiler::cpu {
namespace {

/// A processor that code is for.
struct Processor {
  std::string triple;
  std::string name;
  std::string features;  // "+avx2,+fma,..."
  std::string summary;   // for keys
  TargetTraits traits;
};

constexpr char kX86[] = "x86_64-unknown-linux-gnu";
constexpr char kArm[] = "aarch64-unknown-linux-gnu";

Processor detect_host() {
  Processor host;
  host.name = llvm::sys::getHostCPUName().str();
  const llvm::StringMap<bool> all = llvm::sys::getHostCPUFeatures();
  std::vector<std::string> names;
  for (const auto& entry : all) {
    if (entry.second) names.push_back(entry.first().str());
  }
  std::sort(names.begin(), names.end());
#if defined(__aarch64__)
  host.triple = kArm;
#else
  host.triple = kX86;
  const auto has = [&](const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  NEURON_CHECK(has("avx2") && has("fma") && has("f16c"), kUnsupported,
               "generating code for this processor (", host.name,
               "): AVX2, FMA and F16C are needed");
  host.traits.avx512 = has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl");
#endif
  host.summary = host.name;
  for (const std::string& name : names) {
    host.features += (host.features.empty() ? "+" : ",+") + name;
    host.summary += "+" + name;
  }
  return host;
}

const Processor& host() {
  static const Processor detected = detect_host();
  return detected;
}

Processor processor_of(LlvmSession::Level level) {
  switch (level) {
    case LlvmSession::Level::kHost:
      break;
    case LlvmSession::Level::kAvx2:
      return {kX86, "haswell", "", "", {}};
    case LlvmSession::Level::kArm64:
      return {kArm, "neoverse-n1", "", "", {}};
  }
  return host();
}

void initialize_llvm() {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
    LLVMInitializeAArch64TargetInfo();
    LLVMInitializeAArch64Target();
    LLVMInitializeAArch64TargetMC();
    LLVMInitializeAArch64AsmPrinter();
    // Our loops have one counter and plain addresses already; loop strength reduction finds nothing
    // and took 40 % of the time.
    auto& options = llvm::cl::getRegisteredOptions();
    const auto found = options.find("disable-lsr");
    if (found != options.end()) static_cast<llvm::cl::opt<bool>*>(found->second)->setValue(true);
  });
}

}  // namespace

const std::string& host_features() { return host().summary; }

struct LlvmSession::State {
  Processor processor;
  std::unique_ptr<llvm::TargetMachine> machine;

  std::unique_ptr<llvm::Module> build(llvm::LLVMContext& context, const LoopNest& nest,
                                      const std::string& symbol) {
    auto module = std::make_unique<llvm::Module>("kernel", context);
    module->setTargetTriple(processor.triple);
    module->setDataLayout(machine->createDataLayout());
    emit_nest(*module, nest, symbol, processor.traits);
    return module;
  }

  llvm::SmallVector<char, 0> generate(const LoopNest& nest, const std::string& symbol,
                                      llvm::CodeGenFileType type) {
    // A fresh context for each kernel: it would keep every constant of every kernel otherwise.
    llvm::LLVMContext context;
    const std::unique_ptr<llvm::Module> module = build(context, nest, symbol);
#ifndef NDEBUG
    std::string problem;
    llvm::raw_string_ostream stream(problem);
    NEURON_ASSERT(!llvm::verifyModule(*module, &stream), "broken IR: ", stream.str());
#endif
    llvm::SmallVector<char, 0> bytes;
    llvm::raw_svector_ostream out(bytes);
    llvm::legacy::PassManager passes;
    NEURON_ASSERT(!machine->addPassesToEmitFile(passes, out, nullptr, type, true),
                  "LLVM cannot write objects for the host");
    passes.run(*module);
    return bytes;
  }
};

LlvmSession::LlvmSession(Level level) : state_(std::make_unique<State>()) {
  initialize_llvm();
  state_->processor = processor_of(level);
  const Processor& processor = state_->processor;
  std::string problem;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(processor.triple, problem);
  NEURON_ASSERT(target != nullptr, "LLVM has no code generator for ", processor.triple, ": ",
                problem);
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  options.UnsafeFPMath = false;
  state_->machine.reset(target->createTargetMachine(
      processor.triple, processor.name, processor.features, options, llvm::Reloc::PIC_,
      llvm::CodeModel::Small, llvm::CodeGenOptLevel::Default));
  NEURON_ASSERT(state_->machine != nullptr);
}

LlvmSession::~LlvmSession() = default;

std::vector<std::byte> LlvmSession::compile(const LoopNest& nest, const std::string& symbol) {
  const auto bytes = state_->generate(nest, symbol, llvm::CodeGenFileType::ObjectFile);
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
  return {data, data + bytes.size()};
}

std::string LlvmSession::assembly(const LoopNest& nest, const std::string& symbol) {
  const auto bytes = state_->generate(nest, symbol, llvm::CodeGenFileType::AssemblyFile);
  return {bytes.data(), bytes.size()};
}

std::string LlvmSession::ir(const LoopNest& nest, const std::string& symbol) {
  llvm::LLVMContext context;
  const std::unique_ptr<llvm::Module> module = state_->build(context, nest, symbol);
  std::string text;
  llvm::raw_string_ostream stream(text);
  module->print(stream, nullptr);
  stream << "\n";
  std::string problem;
  llvm::raw_string_ostream problems(problem);
  if (llvm::verifyModule(*module, &problems)) stream << "; BROKEN: " << problems.str() << "\n";
  return stream.str();
}

}  // namespace neuron::compiler::cpu
