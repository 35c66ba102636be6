#include "neuron/nrtsim/faults.h"

#include <charconv>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "neuron/nrtsim/error.h"

namespace neuron::nrtsim::faults {
namespace {

struct Fault {
  Point point;
  int status = 0;
  int64_t delay_us = 0;
  int64_t nth = 1;  // 0: always.
};

constexpr std::pair<std::string_view, Point> kPoints[] = {
    {"nrt_init", Point::Init},        {"nrt_load", Point::Load},
    {"nrt_execute", Point::Execute},  {"nrt_tensor_allocate", Point::Allocate},
    {"nrt_tensor_read", Point::Read}, {"nrt_tensor_write", Point::Write},
    {"nrt_tensor_copy", Point::Copy}, {"nrta_execute_schedule", Point::Schedule},
};

std::mutex g_mutex;
std::vector<Fault> g_faults;  // Guarded by g_mutex.

[[noreturn]] void refuse(std::string_view entry) {
  std::string calls;
  for (const auto& [name, point] : kPoints) {
    calls += calls.empty() ? "" : ", ";
    calls += name;
  }
  raise(ErrorKind::kInvalid, "fault '", entry, "' is malformed, allowed: call:status[@n] or ",
        "call:delay=microseconds[@n], n a number from 1 or *, call one of ", calls);
}

bool parse_number(std::string_view text, int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

Fault parse(std::string_view entry) {
  Fault fault{};
  const size_t colon = entry.find(':');
  if (colon == std::string_view::npos) refuse(entry);
  const std::string_view call = entry.substr(0, colon);
  bool known = false;
  for (const auto& [name, point] : kPoints) {
    if (name == call) {
      fault.point = point;
      known = true;
    }
  }
  if (!known) refuse(entry);
  std::string_view what = entry.substr(colon + 1);
  if (const size_t at = what.find('@'); at != std::string_view::npos) {
    const std::string_view when = what.substr(at + 1);
    if (when == "*") {
      fault.nth = 0;
    } else if (!parse_number(when, fault.nth) || fault.nth < 1) {
      refuse(entry);
    }
    what = what.substr(0, at);
  }
  int64_t number = 0;
  if (what.starts_with("delay=")) {
    if (!parse_number(what.substr(6), fault.delay_us) || fault.delay_us < 0) refuse(entry);
  } else if (parse_number(what, number)) {
    if (number < 1 || number > 9999) refuse(entry);
    fault.status = static_cast<int>(number);
  } else {
    fault.status = status_from_name(what);
    if (fault.status <= 0) refuse(entry);
  }
  return fault;
}

}  // namespace

std::atomic<bool> g_armed{false};

void configure(std::string_view spec) {
  std::vector<Fault> faults;
  while (!spec.empty()) {
    const size_t comma = spec.find(',');
    faults.push_back(parse(spec.substr(0, comma)));
    if (comma == std::string_view::npos) break;
    spec.remove_prefix(comma + 1);
  }
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_faults = std::move(faults);
  g_armed.store(!g_faults.empty());
}

int check_armed(Point point) {
  int status = 0;
  int64_t delay_us = 0;
  {
    const std::lock_guard<std::mutex> lock(g_mutex);
    for (size_t i = 0; i < g_faults.size();) {
      Fault& fault = g_faults[i];
      const bool counted = fault.nth > 0;
      if (fault.point != point || (counted && --fault.nth > 0)) {
        ++i;
        continue;
      }
      if (status == 0) status = fault.status;
      delay_us += fault.delay_us;
      if (counted) {
        g_faults.erase(g_faults.begin() + static_cast<int64_t>(i));  // Strikes once.
      } else {
        ++i;
      }
    }
  }
  if (delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
  if (status != 0) fail(status, "injected by NEURON_SIM_FAULTS");
  return status;
}

}  // namespace neuron::nrtsim::faults
