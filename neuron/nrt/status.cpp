#include "neuron/nrt/status.h"

#include "neuron/nrt/loader.h"

namespace neuron::nrt {
namespace {

struct Row {
  NRT_STATUS status;
  const char* name;
  ErrorKind kind;
  bool fatal;
};

// Kinds: a bad model or argument is the caller's fault; memory has its own exception; the rest is
// the device's.
constexpr Row kRows[] = {
    {NRT_SUCCESS, "NRT_SUCCESS", ErrorKind::kInternal, false},
    {NRT_FAILURE, "NRT_FAILURE", ErrorKind::kDevice, false},
    {NRT_INVALID, "NRT_INVALID", ErrorKind::kInvalid, false},
    {NRT_INVALID_HANDLE, "NRT_INVALID_HANDLE", ErrorKind::kDevice, false},
    {NRT_RESOURCE, "NRT_RESOURCE", ErrorKind::kOutOfMemory, false},
    {NRT_TIMEOUT, "NRT_TIMEOUT", ErrorKind::kDevice, true},
    {NRT_HW_ERROR, "NRT_HW_ERROR", ErrorKind::kDevice, true},
    {NRT_QUEUE_FULL, "NRT_QUEUE_FULL", ErrorKind::kDevice, false},
    {NRT_LOAD_NOT_ENOUGH_NC, "NRT_LOAD_NOT_ENOUGH_NC", ErrorKind::kDevice, false},
    {NRT_UNSUPPORTED_NEFF_VERSION, "NRT_UNSUPPORTED_NEFF_VERSION", ErrorKind::kDevice, false},
    {NRT_FAIL_HOST_MEM_ALLOC, "NRT_FAIL_HOST_MEM_ALLOC", ErrorKind::kOutOfMemory, false},
    {NRT_UNINITIALIZED, "NRT_UNINITIALIZED", ErrorKind::kDevice, false},
    {NRT_CLOSED, "NRT_CLOSED", ErrorKind::kDevice, false},
    {NRT_QUEUE_EMPTY, "NRT_QUEUE_EMPTY", ErrorKind::kDevice, false},
    {NRT_EXEC_UNIT_UNRECOVERABLE, "NRT_EXEC_UNIT_UNRECOVERABLE", ErrorKind::kDevice, true},
    {NRT_EXEC_BAD_INPUT, "NRT_EXEC_BAD_INPUT", ErrorKind::kDevice, false},
    {NRT_EXEC_COMPLETED_WITH_NUM_ERR, "NRT_EXEC_COMPLETED_WITH_NUM_ERR", ErrorKind::kDevice, false},
    {NRT_EXEC_COMPLETED_WITH_ERR, "NRT_EXEC_COMPLETED_WITH_ERR", ErrorKind::kDevice, false},
    {NRT_EXEC_NC_BUSY, "NRT_EXEC_NC_BUSY", ErrorKind::kDevice, false},
    {NRT_EXEC_OOB, "NRT_EXEC_OOB", ErrorKind::kIndex, false},
    {NRT_COLL_PENDING, "NRT_COLL_PENDING", ErrorKind::kDevice, false},
    {NRT_EXEC_HW_ERR_COLLECTIVES, "NRT_EXEC_HW_ERR_COLLECTIVES", ErrorKind::kDevice, true},
    {NRT_EXEC_HW_ERR_HBM_UE, "NRT_EXEC_HW_ERR_HBM_UE", ErrorKind::kDevice, true},
    {NRT_EXEC_HW_ERR_NC_UE, "NRT_EXEC_HW_ERR_NC_UE", ErrorKind::kDevice, true},
    {NRT_EXEC_HW_ERR_DMA_ABORT, "NRT_EXEC_HW_ERR_DMA_ABORT", ErrorKind::kDevice, true},
    {NRT_EXEC_SW_NQ_OVERFLOW, "NRT_EXEC_SW_NQ_OVERFLOW", ErrorKind::kDevice, false},
    {NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE, "NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE", ErrorKind::kDevice,
     true},
    {NRT_NETWORK_PROXY_FAILURE, "NRT_NETWORK_PROXY_FAILURE", ErrorKind::kDevice, false},
};

const Row* find_row(int status) {
  for (const Row& row : kRows) {
    if (row.status == status) return &row;
  }
  return nullptr;
}

}  // namespace

const char* status_name(int status) {
  const Row* row = find_row(status);
  return row == nullptr ? "unknown NRT status" : row->name;
}

int status_from_name(std::string_view name) {
  for (const Row& row : kRows) {
    const std::string_view full = row.name;
    if (name == full || name == full.substr(4)) return row.status;
  }
  return -1;
}

ErrorKind error_kind(int status) {
  const Row* row = find_row(status);
  return row == nullptr ? ErrorKind::kDevice : row->kind;
}

bool is_fatal(int status) {
  const Row* row = find_row(status);
  return row != nullptr && row->fatal;
}

void raise_status(int status, const std::string& doing) {
  const Api& library = api();
  std::string detail;
  if (library.nrtsim_last_error != nullptr) detail = library.nrtsim_last_error();
  throw Error(error_kind(status),
              internal::join(doing, ": ", status_name(status), " (", status, ")",
                             detail.empty() ? "" : ": ", detail));
}

}  // namespace neuron::nrt
