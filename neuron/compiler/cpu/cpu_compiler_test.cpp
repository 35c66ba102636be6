#include "neuron/compiler/cpu/cpu_compiler.h"

#include <gtest/gtest.h>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/flat_programs.h"
#include "neuron/hlo/builder.h"
#include "neuron/neff/program.h"

namespace neuron::compiler::cpu {
namespace {

hlo::Module scaled_sum(int64_t rows, int64_t columns) {
  hlo::Builder b;
  const hlo::Value x = b.parameter(DType::f32, Dims{rows, columns});
  const hlo::Value y = b.parameter(DType::f32, Dims{rows, columns});
  b.result(b.add(x, b.mul(y, b.convert(b.scalar(DType::f64), DType::f32))), {}, 0);
  return b.finish();
}

TEST(CpuCompiler, WritesANeffThatStandsAlone) {
  std::unique_ptr<Compiler> compiler = make_compiler("cpu", "trn2");
  EXPECT_EQ(compiler->name(), "cpu");
  for (int i = 0; i < 2; ++i) {
    const std::vector<std::byte> bytes = compiler->compile(scaled_sum(3, 5));
    const neff::Program program = neff::read_neff(bytes.data(), bytes.size());
    ASSERT_EQ(program.kernels.size(), 1u);
    EXPECT_FALSE(program.kernels[0].object.empty());
    ASSERT_EQ(program.steps.size(), 1u);
    EXPECT_EQ(program.results[0].alias, 0);
    EXPECT_EQ(program.scalar_count, 1u);
    EXPECT_EQ(program.target, "trn2");
  }
}

TEST(CpuCompiler, OneKernelServesEveryShape) {
  std::unique_ptr<Compiler> compiler = make_compiler("cpu", "trn3");
  compiler->compile(scaled_sum(4, 4));
  const uint64_t before = compiler->stats().kernels;
  for (int64_t n : {1, 7, 64, 300}) {
    const std::vector<std::byte> bytes = compiler->compile(scaled_sum(n, n + 1));
    const neff::Program program = neff::read_neff(bytes.data(), bytes.size());
    ASSERT_EQ(program.kernels.size(), 1u);
  }
  EXPECT_EQ(compiler->stats().kernels, before);
  EXPECT_EQ(compiler->stats().programs, 5u);
}

TEST(CpuCompiler, LargeLoopsAreSplitSmallOnesAreNot) {
  CpuCompiler compiler("trn2");
  EXPECT_EQ(compiler.compile_program(scaled_sum(16, 16)).steps[0].kernel.grain, 0);
  const neff::Program large = compiler.compile_program(scaled_sum(2048, 2048));
  EXPECT_GT(large.steps[0].kernel.grain, 0);
  EXPECT_LT(large.steps[0].kernel.grain, large.steps[0].kernel.extent);
}

// A pointwise program of one shape, overwriting its first operand if `alias` is 0.
hlo::Module flat_chain(DType type, Dims dims, int32_t alias) {
  hlo::Builder b;
  const Dims strides = contiguous_strides(dims);
  const hlo::Value x = b.parameter(type, dims, strides);
  const hlo::Value y = b.parameter(type, dims, strides);
  const hlo::Value scale = b.convert(b.scalar(DType::f64), type);
  const hlo::Value sum = b.add(b.mul(x, b.broadcast_to(scale, dims)), y);
  b.result(b.select(b.gt(sum, b.constant(type, 3)), sum, b.constant(type, 7)), strides, alias);
  return b.finish();
}

TEST(CpuCompiler, FlatProgramsOfNewSizesAreWhatPlanningGives) {
  std::unique_ptr<Compiler> compiler = make_compiler("cpu", "trn2");
  for (DType type : {DType::f32, DType::bf16, DType::i64}) {
    for (int32_t alias : {-1, 0}) {
      for (const Dims& dims : {Dims{100}, Dims{2}, Dims{3, 5}, Dims{1, 17}, Dims{1 << 12, 33},
                               Dims{1 << 11, 1 << 12}, Dims{7, 1, 64}, Dims{4096}}) {
        const hlo::Module module = flat_chain(type, dims, alias);
        const std::vector<std::byte> known = compiler->compile(module);
        CpuCompiler::forget_plans();
        EXPECT_EQ(known, compiler->compile(module)) << to_string(module.parameters()[0].type);
      }
    }
  }
}

TEST(CpuCompiler, OnlyPointwiseProgramsOfOneShapeAreFlat) {
  EXPECT_TRUE(flat_key(flat_chain(DType::f32, Dims{4, 5}, -1)).has_value());
  EXPECT_FALSE(flat_key(flat_chain(DType::f32, Dims{}, -1)).has_value());
  EXPECT_FALSE(flat_key(flat_chain(DType::f32, Dims{0, 3}, -1)).has_value());
  EXPECT_EQ(flat_key(flat_chain(DType::f32, Dims{4, 5}, -1))->structure,
            flat_key(flat_chain(DType::f32, Dims{3, 2}, -1))->structure);
  EXPECT_NE(flat_key(flat_chain(DType::f32, Dims{4, 5}, -1))->structure,
            flat_key(flat_chain(DType::f32, Dims{4, 5}, 0))->structure);
  EXPECT_NE(flat_key(flat_chain(DType::f32, Dims{4, 5}, -1))->structure,
            flat_key(flat_chain(DType::bf16, Dims{4, 5}, -1))->structure);
  hlo::Builder b;
  const hlo::Value x = b.parameter(DType::f32, Dims{4, 4});
  b.result(b.add(x, b.transpose(x, Dims{1, 0})));
  EXPECT_FALSE(flat_key(b.finish()).has_value());
  hlo::Builder strided;
  strided.result(strided.neg(strided.parameter(DType::f32, Dims{4, 4}, Dims{8, 1})));
  EXPECT_FALSE(flat_key(strided.finish()).has_value());
}

TEST(CpuCompiler, IndexErrorsNameTheStep) {
  hlo::Builder b;
  const hlo::Value x = b.parameter(DType::f32, Dims{10, 4});
  const hlo::Value i = b.parameter(DType::i64, Dims{3});
  b.result(b.gather(x, {{i}}, Dims{0}, 0));
  CpuCompiler compiler("trn2");
  const neff::Program program = compiler.compile_program(b.finish());
  bool found = false;
  for (const neff::BufferRef& ref : program.steps[0].kernel.pointers) {
    found = found || ref.kind == neff::BufferRef::Kind::Status;
  }
  EXPECT_TRUE(found);
}

TEST(CpuCompiler, RefusesUnknownNamesAndTargets) {
  EXPECT_THROW(make_compiler("gpu", "trn2"), Error);
  EXPECT_THROW(make_compiler("cpu", "trn9"), Error);
}

}  // namespace
}  // namespace neuron::compiler::cpu
