#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "neuron/nrt/loader.h"
#include "neuron/nrt/nrt.h"
#include "neuron/nrt/status.h"

namespace neuron::nrt::conformance {

/// The library under test.
const Api& library();

/// A program out = in0 + in1 over `count` floats, in the library's own format; empty if this suite
/// has no compiler for it.
std::vector<std::byte> add_program(int64_t count);
/// out = in[index], over an index tensor of three i64 and four floats.
std::vector<std::byte> gather_program();

#define EXPECT_NRT(call, expected)                                                \
  do {                                                                            \
    const int conformance_status = static_cast<int>(call);                        \
    EXPECT_EQ(conformance_status, expected)                                       \
        << #call << ": " << ::neuron::nrt::status_name(conformance_status) << " " \
        << ::neuron::nrt::conformance::detail();                                  \
  } while (false)
#define ASSERT_NRT(call) \
  ASSERT_EQ(static_cast<int>(call), NRT_SUCCESS) << ::neuron::nrt::conformance::detail()

/// The library's own words about its last error, if it has any.
std::string detail();

/// Opens the runtime for each test and closes it.
class Opened : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
  const Api& nrt = library();

  nrt_tensor_t* device_tensor(size_t bytes, int core = 0);
  nrt_tensor_set_t* make_set(std::vector<std::pair<const char*, nrt_tensor_t*>> tensors);
  /// Loads add_program, or skips the test.
  nrt_model_t* load_add(int64_t count);

  std::vector<nrt_tensor_t*> tensors_;  // Freed at the end.
  std::vector<nrt_tensor_set_t*> sets_;
  std::vector<nrt_model_t*> models_;
};

}  // namespace neuron::nrt::conformance
