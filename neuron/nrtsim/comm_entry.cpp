#include <cstdio>
#include <memory>

#include "neuron/base/error.h"
#include "neuron/nrtsim/comm.h"
#include "neuron/nrtsim/comm_engine.h"
#include "neuron/nrtsim/comm_group.h"

// The C faces of groups and operations. No exception leaves them.
struct nrtsim_comm_group {
  std::shared_ptr<neuron::nrtsim::comm::Group> group;
};
struct nrtsim_comm_op {
  std::shared_ptr<neuron::nrtsim::comm::Operation> op;
};

namespace neuron::nrtsim::comm {
namespace {

void fill(nrtsim_comm_error_t* error, ErrorKind kind, const char* text) noexcept {
  if (error == nullptr) return;
  error->kind = static_cast<int32_t>(kind);
  std::snprintf(error->text, sizeof(error->text), "%s", text);
}

template <typename Body>
auto guarded(nrtsim_comm_error_t* error, Body body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (const Error& caught) {
    fill(error, caught.kind(), caught.what());
  } catch (const std::exception& caught) {
    fill(error, ErrorKind::kInternal, caught.what());
  }
  return {};
}

nrtsim_comm_t* create(const nrtsim_comm_config_t* config, nrtsim_comm_error_t* error) {
  error->text[0] = '\0';
  return guarded(error, [&]() -> nrtsim_comm_t* {
    auto group = Group::create(*config);
    return group == nullptr ? nullptr : new nrtsim_comm_group{std::move(group)};
  });
}

nrtsim_comm_op_t* collective(nrtsim_comm_t* comm, const nrtsim_comm_collective_t* call,
                             const nrtsim_comm_start_t* start, nrtsim_comm_error_t* error) {
  return guarded(error, [&]() -> nrtsim_comm_op_t* {
    Engine::instance();  // Refuses forked children.
    return new nrtsim_comm_op{comm->group->start(*call, *start)};
  });
}

nrtsim_comm_op_t* transfer(nrtsim_comm_t* comm, const nrtsim_comm_transfer_t* call,
                           const nrtsim_comm_start_t* start, nrtsim_comm_error_t* error) {
  return guarded(error, [&]() -> nrtsim_comm_op_t* {
    Engine::instance();
    return new nrtsim_comm_op{comm->group->start(*call, *start)};
  });
}

void release(nrtsim_comm_op_t* op) {
  if (Engine::is_forked_child()) return;
  op->op->release();
  Engine::instance().poke();
}

int state_with_error(const Operation& op, int state, nrtsim_comm_error_t* error) {
  if (state == NRTSIM_COMM_FAILED) fill(error, op.failure().kind, op.failure().text.c_str());
  return state;
}

int state(const nrtsim_comm_op_t* op, nrtsim_comm_error_t* error) {
  return state_with_error(*op->op, op->op->state(), error);
}

int wait(nrtsim_comm_op_t* op, int64_t timeout_ms, nrtsim_comm_error_t* error) {
  const bool refused = Engine::is_forked_child();
  const int result = guarded(error, [&] {
    Engine& engine = Engine::instance();
    std::optional<Clock::time_point> deadline;
    if (timeout_ms >= 0) deadline = Clock::now() + Milliseconds(timeout_ms);
    const int state = engine.wait(*op->op, deadline);
    if (state == NRTSIM_COMM_RUNNING) {
      const Engine::Lock lock = engine.lock();
      if (op->op->state() == NRTSIM_COMM_RUNNING) {
        fill(error, ErrorKind::kDevice,
             internal::join(op->op->describe(), " has not ended after ", timeout_ms,
                            " ms: ", op->op->explain_wait())
                 .c_str());
        return static_cast<int>(NRTSIM_COMM_RUNNING);
      }
    }
    return op->op->state();
  });
  return refused ? NRTSIM_COMM_FAILED : state_with_error(*op->op, result, error);
}

uint64_t op_sequence(const nrtsim_comm_op_t* op) { return op->op->sequence(); }
int32_t source(const nrtsim_comm_op_t* op) { return op->op->source(); }

void free_op(nrtsim_comm_op_t* op) {
  if (!Engine::is_forked_child()) delete op;
}

void set_timeout(nrtsim_comm_t* comm, int64_t timeout_ms) {
  comm->group->set_timeout(Milliseconds(timeout_ms));
}
uint64_t sequence(const nrtsim_comm_t* comm) { return comm->group->sequence(); }

void abort_group(nrtsim_comm_t* comm, const char* reason) {
  if (!Engine::is_forked_child()) comm->group->abort(reason);
}

void close_group(nrtsim_comm_t* comm) {
  if (!Engine::is_forked_child()) comm->group->close();
}

void free_comm(nrtsim_comm_t* comm) {
  if (Engine::is_forked_child()) return;
  comm->group->orphan();
  delete comm;
}

void leave_all() { Engine::leave_if_running(); }

}  // namespace
}  // namespace neuron::nrtsim::comm

extern "C" __attribute__((visibility("default"))) const nrtsim_comm_functions_t* nrtsim_comm(void) {
  namespace comm = neuron::nrtsim::comm;
  static const nrtsim_comm_functions_t functions = {
      sizeof(nrtsim_comm_functions_t),
      comm::create,
      comm::collective,
      comm::transfer,
      comm::release,
      comm::state,
      comm::wait,
      comm::op_sequence,
      comm::source,
      comm::free_op,
      comm::set_timeout,
      comm::sequence,
      comm::abort_group,
      comm::close_group,
      comm::free_comm,
      comm::leave_all,
  };
  return &functions;
}
