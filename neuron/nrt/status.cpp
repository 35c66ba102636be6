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

constexpr Row kRows[] = {
#define NEURON_NRT_STATUS(name, kind, fatal) {name, #name, ErrorKind::kind, fatal},
#include "neuron/nrt/status.def"
#undef NEURON_NRT_STATUS
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
  throw Error(error_kind(status), internal::join(doing, ": ", status_name(status), " (", status,
                                                 ")", detail.empty() ? "" : ": ", detail));
}

}  // namespace neuron::nrt
