#include "neuron/nrtsim/error.h"

#include <new>

namespace neuron::nrtsim {
namespace {

struct StatusRow {
  int status;
  std::string_view name;
  bool fatal;
};

constexpr StatusRow kStatusRows[] = {
#define NEURON_NRT_STATUS(name, kind, fatal) {name, #name, fatal},
#include "neuron/nrt/status.def"
#undef NEURON_NRT_STATUS
};

}  // namespace

int status_from_name(std::string_view name) {
  for (const StatusRow& row : kStatusRows) {
    if (name == row.name || name == row.name.substr(4)) return row.status;
  }
  return -1;
}

bool is_fatal(int status) {
  for (const StatusRow& row : kStatusRows) {
    if (row.status == status) return row.fatal;
  }
  return false;
}

std::string& last_error() {
  thread_local std::string text;
  return text;
}

NRT_STATUS fail_with_current_exception() {
  try {
    throw;
  } catch (const Error& error) {
    switch (error.kind()) {
      case ErrorKind::kInvalid:
      case ErrorKind::kType:
      case ErrorKind::kUnsupported:
        return fail(NRT_INVALID, error.what());
      case ErrorKind::kIndex:
        return fail(NRT_EXEC_OOB, error.what());
      case ErrorKind::kOutOfMemory:
        return fail(NRT_RESOURCE, error.what());
      case ErrorKind::kCollective:
        return fail(NRT_EXEC_HW_ERR_COLLECTIVES, error.what());
      case ErrorKind::kDevice:
      case ErrorKind::kIo:
      case ErrorKind::kInternal:
        return fail(NRT_FAILURE, error.what());
    }
    return fail(NRT_FAILURE, error.what());
  } catch (const std::bad_alloc&) {
    return fail(NRT_RESOURCE, "out of host memory");
  } catch (const std::exception& error) {
    return fail(NRT_FAILURE, error.what());
  } catch (...) {
    return fail(NRT_FAILURE, "unknown failure");
  }
}

}  // namespace neuron::nrtsim
