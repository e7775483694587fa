#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

namespace mezzo {

/// Threads that wait for work. Not thread-safe.
class WorkerThreads {
 public:
  WorkerThreads();
  ~WorkerThreads();
  WorkerThreads(const WorkerThreads&) = delete;
  WorkerThreads& operator=(const WorkerThreads&) = delete;

  /// Calls `work(0)` on this thread and `work(1)` to `work(count - 1)` each on a thread of its own,
  /// always the same one for the same number. @return what each threw, if anything.
  std::vector<std::exception_ptr> run(size_t count, const std::function<void(size_t)>& work);

 private:
  class Worker;
  std::vector<std::unique_ptr<Worker>> workers_;  // the first is number 1
};

}  // namespace mezzo
