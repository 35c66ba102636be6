#include "neuron/c10d/workers.h"

#include <chrono>
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
    if (is_finished_) {
      // What it holds may need the interpreter, too.
      [[maybe_unused]] const auto* const kept = new std::function<void()>(std::move(task));
      return;
    }
    tasks_.push_back(std::move(task));
    if (idle_ >= static_cast<int>(tasks_.size())) {
      ready_.notify_one();
    } else {
      std::thread([this] { run(); }).detach();
    }
  }

  void finish() {
    std::unique_lock lock(mutex_);
    done_.wait_for(lock, std::chrono::seconds(1), [this] { return tasks_.empty() && busy_ == 0; });
    is_finished_ = true;
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
      ++busy_;
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
      --busy_;
      done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable ready_, done_;
  // Guarded by mutex_:
  std::deque<std::function<void()>> tasks_;
  int idle_ = 0, busy_ = 0;
  bool is_finished_ = false;
};

Workers& workers() {
  static auto* const all = new Workers;  // Leaked: its threads may outlive main().
  return *all;
}

}  // namespace

void run_soon(std::function<void()> task) { workers().post(std::move(task)); }
void finish_tasks() { workers().finish(); }

}  // namespace neuron::distributed
