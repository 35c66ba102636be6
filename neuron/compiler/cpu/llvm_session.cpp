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

/// The processor the code is for, detected once.
struct Host {
  std::string triple;
  std::string cpu;
  std::string features;  // "+avx2,+fma,..."
  std::string summary;   // for keys
  TargetTraits traits;
};

Host detect_host() {
  Host host;
  host.triple = "x86_64-unknown-linux-gnu";
  host.cpu = llvm::sys::getHostCPUName().str();
  const llvm::StringMap<bool> all = llvm::sys::getHostCPUFeatures();
  std::vector<std::string> names;
  for (const auto& entry : all) {
    if (entry.second) names.push_back(entry.first().str());
  }
  std::sort(names.begin(), names.end());
  const auto has = [&](const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  NEURON_CHECK(has("avx2") && has("fma") && has("f16c"), kUnsupported,
               "generating code for this processor (", host.cpu,
               "): AVX2, FMA and F16C are needed");
  host.traits.avx512 =
      has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl");
  host.summary = host.cpu;
  for (const std::string& name : names) {
    host.features += (host.features.empty() ? "+" : ",+") + name;
    host.summary += "+" + name;
  }
  return host;
}

const Host& host() {
  static const Host detected = detect_host();
  return detected;
}

void initialize_llvm() {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
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
  std::unique_ptr<llvm::TargetMachine> machine;
  TargetTraits traits;

  std::unique_ptr<llvm::Module> build(llvm::LLVMContext& context, const LoopNest& nest,
                                      const std::string& symbol) {
    auto module = std::make_unique<llvm::Module>("kernel", context);
    module->setTargetTriple(host().triple);
    module->setDataLayout(machine->createDataLayout());
    emit_nest(*module, nest, symbol, traits);
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
  std::string problem;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(host().triple, problem);
  NEURON_ASSERT(target != nullptr, "LLVM has no code generator for the host: ", problem);
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  options.UnsafeFPMath = false;
  const bool full = level == Level::kHost;
  if (full) state_->traits = host().traits;
  state_->machine.reset(target->createTargetMachine(
      host().triple, full ? host().cpu : "haswell", full ? host().features : "", options,
      llvm::Reloc::PIC_, llvm::CodeModel::Small, llvm::CodeGenOptLevel::Default));
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
