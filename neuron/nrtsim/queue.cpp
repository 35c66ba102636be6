#include "neuron/nrtsim/queue.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "neuron/nrtsim/error.h"

namespace neuron::nrtsim::queue {
namespace {

// Queues per core and unit, as the documentation has them.
constexpr int kQueues[] = {2, 1, 3};  // TENSOR_OP, COMPUTE, COLLECTIVES
constexpr int kUnitStride = 4;
constexpr uint64_t kNumberMask = 0xFFFFFFFFFFFFull;

struct Request {
  uint64_t number;
  std::function<int()> work;
  NRT_STATUS* ret;
};

void signal_eventfd(int descriptor) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(descriptor, &one, sizeof(one));
}

class Queue {
 public:
  explicit Queue(uint64_t id) : id_(id), thread_([this] { work(); }) {}
  ~Queue() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  int schedule(std::function<int()> work, NRT_STATUS* ret, nrta_seq_t* seq) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (requests_.size() >= kDepth) {
        return fail(NRT_QUEUE_FULL, requests_.size(), " requests are waiting in the queue");
      }
      const uint64_t number = ++last_number_;
      requests_.push_back({number, std::move(work), ret});
      if (seq != nullptr) *seq = sequence(number);
    }
    wake_.notify_one();
    return NRT_SUCCESS;
  }

  /// False if the number was never given out.
  bool is_completed(uint64_t number, bool* completed) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (number == 0 || number > last_number_) return false;
    *completed = number <= completed_;
    return true;
  }
  nrta_seq_t last_completed() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return sequence(completed_);
  }
  bool notify_sequence(uint64_t number, int eventfd) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (number == 0 || number > last_number_) return false;
    if (number <= completed_) {
      signal_eventfd(eventfd);
    } else {
      waiting_.emplace_back(number, eventfd);
    }
    return true;
  }
  void notify_all(int eventfd) {
    const std::lock_guard<std::mutex> lock(mutex_);
    unit_eventfd_ = eventfd;
  }

 private:
  nrta_seq_t sequence(uint64_t number) const { return id_ << 48 | (number & kNumberMask); }

  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stopping_ || !requests_.empty(); });
      if (requests_.empty()) return;
      Request& request = requests_.front();
      lock.unlock();
      int status;
      try {
        status = request.work();
      } catch (...) {
        status = fail_with_current_exception();
      }
      if (request.ret != nullptr) *request.ret = static_cast<NRT_STATUS>(status);
      lock.lock();
      completed_ = request.number;
      requests_.pop_front();
      std::erase_if(waiting_, [&](const auto& entry) {
        if (entry.first > completed_) return false;
        signal_eventfd(entry.second);
        return true;
      });
      if (unit_eventfd_ >= 0) signal_eventfd(unit_eventfd_);
    }
  }

  const uint64_t id_;
  std::mutex mutex_;  // Guards all below.
  std::condition_variable wake_;
  std::deque<Request> requests_;  // The front one may be running.
  uint64_t last_number_ = 0;
  uint64_t completed_ = 0;
  std::vector<std::pair<uint64_t, int>> waiting_;
  int unit_eventfd_ = -1;
  bool stopping_ = false;
  std::thread thread_;
};

std::mutex g_mutex;
// Guarded by g_mutex. Never destroyed at exit: a process may end with requests in flight.
std::map<uint64_t, std::shared_ptr<Queue>>& queues() {
  static auto* map = new std::map<uint64_t, std::shared_ptr<Queue>>;
  return *map;
}

std::shared_ptr<Queue> find(uint64_t id) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  const auto found = queues().find(id);
  return found == queues().end() ? nullptr : found->second;
}

int check_unit(nrta_xu_t unit, int queue) {
  if (unit < NRTA_XU_TENSOR_OP || unit > NRTA_XU_COLLECTIVES) {
    return fail(NRT_INVALID, "execution unit ", static_cast<int>(unit), " is not 0 to 2");
  }
  if (queue < 0 || queue >= kQueues[unit]) {
    return fail(NRT_INVALID, "queue ", queue, " of execution unit ", static_cast<int>(unit),
                ", which has ", kQueues[unit]);
  }
  return NRT_SUCCESS;
}

// From 1; fits 16 bits up to 5,461 cores.
uint64_t id_of(int core, nrta_xu_t unit, int queue) {
  return 1 + (static_cast<uint64_t>(core) * 3 + unit) * kUnitStride + static_cast<uint64_t>(queue);
}

std::shared_ptr<Queue> find_or_make(int core, nrta_xu_t unit, int queue) {
  const uint64_t id = id_of(core, unit, queue);
  const std::lock_guard<std::mutex> lock(g_mutex);
  std::shared_ptr<Queue>& entry = queues()[id];
  if (entry == nullptr) entry = std::make_shared<Queue>(id);
  return entry;
}

}  // namespace

int schedule(int core, nrta_xu_t unit, int queue, std::function<int()> work, NRT_STATUS* ret,
             nrta_seq_t* seq) {
  if (const int status = check_unit(unit, queue); status != 0) return status;
  return find_or_make(core, unit, queue)->schedule(std::move(work), ret, seq);
}

int is_completed(nrta_seq_t seq, bool* completed) {
  const std::shared_ptr<Queue> queue = find(NRTA_SEQ_UNIT(seq));
  if (queue == nullptr || !queue->is_completed(NRTA_SEQ_NUMBER(seq), completed)) {
    return fail(NRT_INVALID, "unknown sequence ", seq);
  }
  return NRT_SUCCESS;
}

int last_completed(int core, nrta_xu_t unit, int queue, nrta_seq_t* seq) {
  if (const int status = check_unit(unit, queue); status != 0) return status;
  *seq = find_or_make(core, unit, queue)->last_completed();
  return NRT_SUCCESS;
}

int notify_sequence(nrta_seq_t seq, int eventfd) {
  const std::shared_ptr<Queue> queue = find(NRTA_SEQ_UNIT(seq));
  if (queue == nullptr || !queue->notify_sequence(NRTA_SEQ_NUMBER(seq), eventfd)) {
    return fail(NRT_INVALID, "unknown sequence ", seq);
  }
  return NRT_SUCCESS;
}

int notify_unit(int core, nrta_xu_t unit, int queue, int eventfd) {
  if (const int status = check_unit(unit, queue); status != 0) return status;
  find_or_make(core, unit, queue)->notify_all(eventfd);
  return NRT_SUCCESS;
}

void drain_and_stop() {
  std::map<uint64_t, std::shared_ptr<Queue>> ending;
  {
    const std::lock_guard<std::mutex> lock(g_mutex);
    ending.swap(queues());
  }
}

}  // namespace neuron::nrtsim::queue
