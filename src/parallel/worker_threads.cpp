#include "parallel/worker_threads.h"

#include <condition_variable>
#include <mutex>
#include <thread>

namespace mezzo {
namespace {

std::exception_ptr caught(const std::function<void(size_t)>& work, size_t index) {
  try {
    work(index);
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace

class WorkerThreads::Worker {
 public:
  explicit Worker(size_t index) : thread_([this, index] { loop(index); }) {}

  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void start(const std::function<void(size_t)>& work) {
    {
      const std::lock_guard lock(mutex_);
      work_ = &work;
    }
    changed_.notify_all();
  }

  std::exception_ptr wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return work_ == nullptr; });
    return std::exchange(error_, nullptr);
  }

 private:
  void loop(size_t index) {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return ends_ || work_ != nullptr; });
      if (ends_) {
        return;
      }
      const auto* work = work_;
      lock.unlock();
      auto error = caught(*work, index);
      lock.lock();
      error_ = std::move(error);
      work_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(size_t)>* work_ = nullptr;  // under way
  std::exception_ptr error_;
  bool ends_ = false;
  std::thread thread_;  // last: it uses the rest
};

WorkerThreads::WorkerThreads() = default;
WorkerThreads::~WorkerThreads() = default;

std::vector<std::exception_ptr> WorkerThreads::run(size_t count, const std::function<void(size_t)>& work) {
  while (workers_.size() + 1 < count) {
    workers_.push_back(std::make_unique<Worker>(workers_.size() + 1));
  }
  for (size_t i = 1; i < count; ++i) {
    workers_[i - 1]->start(work);
  }
  std::vector<std::exception_ptr> errors{caught(work, 0)};
  for (size_t i = 1; i < count; ++i) {
    errors.push_back(workers_[i - 1]->wait());
  }
  return errors;
}

}  // namespace mezzo
