#include "neuron/c10d/workers.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "neuron/base/log.h"

namespace neuron::distributed {
namespace {

class Workers {
 public:
  void post(std::function<void()> task) {
    std::unique_lock lock(mutex_);
    tasks_.push_back(std::move(task));
    if (idle_ >= static_cast<int>(tasks_.size())) {
      ready_.notify_one();
    } else {
      std::thread([this] { run(); }).detach();
    }
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      ready_.wait(lock, [this] { return !tasks_.empty(); });
      --idle_;
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> tasks_;  // Guarded by mutex_, as the next.
  int idle_ = 0;
};

}  // namespace

void run_soon(std::function<void()> task) {
  // Leaked: its threads may outlive main().
  static auto* const workers = new Workers;
  workers->post(std::move(task));
}

}  // namespace neuron::distributed
