#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "neuron/compiler/cpu/kernel_loader_test.h"
#include "neuron/compiler/cpu/llvm_session.h"
#include "neuron/compiler/cpu/loop_nest.h"
#include "neuron/neff/program.h"

// Short ways to write nests in tests, and to run them.
namespace neuron::compiler::cpu::testing {

inline Stride stride_kind(int64_t stride) {
  return stride == 0 ? Stride::Zero : stride == 1 ? Stride::Unit : Stride::Other;
}

/// strides: outer axes, then the row.
inline Access access(int pointer, DType type, std::vector<int64_t> strides) {
  Access result;
  result.pointer = static_cast<uint16_t>(pointer);
  result.stored = type;
  for (int64_t stride : strides) {
    result.kind.push_back(stride_kind(stride));
    result.stride.push_back(stride);
  }
  return result;
}

inline Stmt load(int pointer, DType type, std::vector<int64_t> strides) {
  Stmt stmt;
  stmt.kind = StmtKind::Load;
  stmt.type = type;
  stmt.access = access(pointer, type, std::move(strides));
  return stmt;
}

inline Stmt compute(hlo::Op op, DType type, std::initializer_list<int> in, int64_t number = 0) {
  Stmt stmt;
  stmt.op = op;
  stmt.type = type;
  for (int id : in) stmt.in.push_back(static_cast<StmtId>(id));
  stmt.number = number;
  return stmt;
}

inline Stmt constant(float value) {
  Stmt stmt;
  stmt.kind = StmtKind::Constant;
  stmt.type = DType::f32;
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  stmt.bits[0] = bits;
  return stmt;
}

inline Stmt constant_i64(int64_t value) {
  Stmt stmt;
  stmt.kind = StmtKind::Constant;
  stmt.type = DType::i64;
  stmt.bits[0] = static_cast<uint64_t>(value);
  return stmt;
}

inline Stmt reduced(int number, DType type) {
  Stmt stmt;
  stmt.kind = StmtKind::Reduced;
  stmt.type = type;
  stmt.number = number;
  return stmt;
}

inline Stmt axis_index(int axis) {
  Stmt stmt;
  stmt.kind = StmtKind::Index;
  stmt.type = DType::i64;
  stmt.number = axis;
  return stmt;
}

inline Store store(int value, int pointer, DType type, std::vector<int64_t> strides) {
  Store result;
  result.value = static_cast<StmtId>(value);
  result.access = access(pointer, type, std::move(strides));
  return result;
}

/// Which code run_nest() takes: the host's, from the kernel cache, or that for AVX2 alone.
inline LlvmSession::Level& code_level() {
  static LlvmSession::Level level = LlvmSession::Level::kHost;
  return level;
}

/// Generates (once per structure), loads and runs a nest; the iterations in two or three calls.
inline void run_nest(const LoopNest& nest, std::vector<void*> pointers) {
  static std::map<Hash128, std::unique_ptr<LoadedKernel>> loaded[2];
  const bool host = code_level() == LlvmSession::Level::kHost;
  const Hash128 hash = key_of(nest);
  std::unique_ptr<LoadedKernel>& code = loaded[host ? 0 : 1][hash];
  if (code == nullptr && host) {
    const LoopNest* list[] = {&nest};
    code = std::make_unique<LoadedKernel>(*kernel_cache().get(list).front().object);
  } else if (code == nullptr) {
    static LlvmSession session(LlvmSession::Level::kAvx2);
    code = std::make_unique<LoadedKernel>(session.compile(nest, neff::kernel_symbol(hash)));
  }
  const std::vector<int64_t> args = arguments_of(nest);
  const int64_t count = iterations_of(nest);
  const int64_t cut = count / 3;
  code->function()(pointers.data(), args.data(), 0, cut);
  code->function()(pointers.data(), args.data(), cut, cut);
  code->function()(pointers.data(), args.data(), cut, count);
}

/// Every test runs the host's code and that for processors without AVX-512.
class LevelTest : public ::testing::TestWithParam<LlvmSession::Level> {
 protected:
  void SetUp() override { code_level() = GetParam(); }
  void TearDown() override { code_level() = LlvmSession::Level::kHost; }
};
inline auto all_levels() {
  return ::testing::Values(LlvmSession::Level::kHost, LlvmSession::Level::kAvx2);
}
inline std::string level_name(const ::testing::TestParamInfo<LlvmSession::Level>& info) {
  return info.param == LlvmSession::Level::kHost ? "Host" : "Avx2";
}

template <typename T>
T* fill(const GuardedBuffer& buffer, size_t count, unsigned seed) {
  std::mt19937 random(seed);
  auto* data = static_cast<T*>(buffer.data());
  for (size_t k = 0; k < count; ++k) {
    data[k] = static_cast<T>(static_cast<double>(random() % 2000) / 100.0 - 10.0);
  }
  return data;
}

inline const std::vector<int64_t>& row_lengths() {
  static const std::vector<int64_t> lengths = {0,  1,  2,   15,  16,  17,   63,   64,
                                               65, 96, 100, 128, 300, 1000, 4097, 9000};
  return lengths;
}

}  // namespace neuron::compiler::cpu::testing
