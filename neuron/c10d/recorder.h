#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace neuron::distributed {

/// Sizes and dtype of one tensor.
struct TensorFacts {
  std::vector<int64_t> sizes;
  c10::ScalarType type = c10::ScalarType::Undefined;
};

/// What the flight recorder knows of one collective or transfer.
struct Record {
  uint64_t id = 0;
  std::string group;
  const char* op = "";    // "all_reduce"
  uint64_t sequence = 0;  // Of the group's collectives, or of its transfers
  bool is_transfer = false;
  int rank = 0;
  bool ended = false;
  std::string error;
  std::vector<TensorFacts> inputs, outputs;
  int64_t created_ns = 0;    // Since the epoch
  int64_t completed_ns = 0;  // 0: not yet
  int64_t timeout_ms = 0;
};

/// Notes an operation in the ring of the last TORCH_NEURONX_FLIGHT_RECORDER_SIZE ones; returns its
/// id. Thread-safe, as everything here.
uint64_t record_start(Record record, at::TensorList inputs, at::TensorList outputs);
void record_end(uint64_t id, std::string error);
/// Oldest first.
std::vector<Record> recorded();
void clear_records();

}  // namespace neuron::distributed
