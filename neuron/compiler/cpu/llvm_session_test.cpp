#include "neuron/compiler/cpu/llvm_session.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/nest_builder_test.h"

namespace neuron::compiler::cpu {
namespace {

using hlo::Op;
using testing::compute;
using testing::load;
using testing::store;

// Every op that the generator claims for `type`, in one nest each.
std::vector<LoopNest> all_ops(DType type) {
  std::vector<LoopNest> nests;
  for (int number = 0; number < 256; ++number) {
    const auto op = static_cast<Op>(number);
    if (number > static_cast<int>(Op::TupleElement)) break;
    if (hlo::class_of(op) != hlo::OpClass::Elementwise || !supports(op, type)) continue;
    if (op == Op::BitcastConvert || op == Op::Convert) continue;
    DType result = type;
    if (op == Op::Compare || op == Op::IsFinite || op == Op::IsNan) result = DType::pred;
    if (op == Op::Complex) result = type == DType::f32 ? DType::c64 : DType::c128;
    if (is_complex(type) && (op == Op::Abs || op == Op::Real || op == Op::Imag)) {
      result = real_of(type);
    }
    LoopNest nest;
    nest.row = 20;
    nest.pointer_count = 4;
    Sweep sweep;
    const int operands = hlo::operand_count(op);
    Stmt stmt = compute(op, result, {});
    for (int k = 0; k < operands; ++k) {
      sweep.body.push_back(load(k, op == Op::Select && k == 0 ? DType::pred : type, {1}));
      stmt.in.push_back(static_cast<StmtId>(k));
    }
    sweep.body.push_back(stmt);
    sweep.stores = {store(operands, 3, result, {1})};
    nest.sweeps = {sweep};
    nests.push_back(nest);
  }
  return nests;
}

void expect_self_contained(const std::vector<std::byte>& object, const std::string& what) {
  const auto* base = reinterpret_cast<const char*>(object.data());
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(base);
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(base + header->e_shoff);
  for (int s = 0; s < header->e_shnum; ++s) {
    if (sections[s].sh_type != SHT_SYMTAB) continue;
    const auto* symbols = reinterpret_cast<const Elf64_Sym*>(base + sections[s].sh_offset);
    const char* names = base + sections[sections[s].sh_link].sh_offset;
    for (size_t k = 1; k < sections[s].sh_size / sizeof(Elf64_Sym); ++k) {
      EXPECT_NE(symbols[k].st_shndx, SHN_UNDEF) << what << " needs " << names + symbols[k].st_name;
    }
  }
}

// A call that LLVM made out of an operation could not be resolved by the loader.
TEST(LlvmSession, NoOpNeedsALibrary) {
  using Types = std::vector<DType>;
  const std::pair<LlvmSession::Level, Types> cases[] = {
      {LlvmSession::Level::kHost, {DType::f32, DType::f64, DType::i64, DType::pred, DType::c64}},
      {LlvmSession::Level::kAvx2, {DType::f32, DType::i64, DType::u8}},
      {LlvmSession::Level::kArm64, {DType::f32}}};
  for (const auto& [level, types] : cases) {
    LlvmSession session(level);
    for (DType type : types) {
      for (const LoopNest& nest : all_ops(type)) {
        const std::string what = std::string(hlo::name_of(nest.sweeps[0].body.back().op)) + " of " +
                                 std::string(name_of(type)) + " at level " +
                                 std::to_string(static_cast<int>(level));
        expect_self_contained(session.compile(nest, "kernel"), what);
      }
    }
  }
}

// x86 runs its conversions in emit_nest_test.cpp.
TEST(LlvmSession, NoConversionNeedsALibraryOnArm) {
  LlvmSession session(LlvmSession::Level::kArm64);
  for (DType other : {DType::bf16, DType::f16, DType::f8e5m2, DType::f64, DType::u64}) {
    LoopNest nest;
    nest.row = 20;
    nest.pointer_count = 4;
    Sweep sweep;
    sweep.body = {load(0, other, {1}), compute(Op::Convert, DType::f32, {0}),
                  load(1, DType::f32, {1}), compute(Op::Convert, other, {2})};
    sweep.stores = {store(1, 2, DType::f32, {1}), store(3, 3, other, {1})};
    nest.sweeps = {sweep};
    expect_self_contained(session.compile(nest, "kernel"), std::string(name_of(other)));
  }
}

TEST(LlvmSession, TheIrIsWellFormed) {
  LlvmSession session;
  for (const LoopNest& nest : all_ops(DType::f32)) {
    EXPECT_EQ(session.ir(nest, "kernel").find("; BROKEN"), std::string::npos)
        << hlo::name_of(nest.sweeps[0].body.back().op);
  }
}

TEST(LlvmSession, NamesTheProcessor) {
  EXPECT_FALSE(host_features().empty());
  EXPECT_NE(host_features().find('+'), std::string::npos);
}

}  // namespace
}  // namespace neuron::compiler::cpu
