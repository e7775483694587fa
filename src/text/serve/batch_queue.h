#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "mezzo/text/data/tokenized_texts.h"

namespace mezzo::text {

/// Runs batches: a model.
class BatchRunner {
 public:
  virtual ~BatchRunner() = default;
  /// As Classifier::outputs(). Called by one thread.
  virtual at::Tensor run(const TokenizedTexts& texts) = 0;
  /// Batches with more tokens run no faster.
  virtual int64_t tokens_of_batch() const = 0;
};

/// A request was not done in time.
struct DeadlineError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Waiting requests, and the thread that runs their texts, packed into batches across requests. While a batch runs, the
/// next one is collected, so no request waits for a batch to fill. Of a request with many texts each batch takes a
/// share while others wait, so that short requests pass long ones.
///
/// All members may be called from any thread.
class BatchQueue {
 public:
  using Clock = std::chrono::steady_clock;

  /// Either `outputs`, as Classifier::outputs() gives them, or an `error`. `texts` are the request's.
  struct Result {
    at::Tensor outputs = {};
    TokenizedTexts texts = {};
    std::exception_ptr error = {};
  };
  struct Request {
    std::shared_ptr<BatchRunner> runner;
    TokenizedTexts texts;              ///< at least one
    Clock::time_point deadline;        ///< after which it is given up, between two batches
    std::function<void(Result)> done;  ///< called once, on the queue's thread; it must be quick and not throw
  };
  /// Counts since the beginning, and the texts that wait now.
  struct Counts {
    int64_t batches = 0, texts = 0, tokens = 0;
    double seconds = 0;  ///< in which batches ran
    int64_t waiting_texts = 0;
  };

  /// @param max_waiting  texts that may wait; a request that is alone may have more.
  explicit BatchQueue(int64_t max_waiting);
  /// Fails what still waits.
  ~BatchQueue();
  BatchQueue(const BatchQueue&) = delete;
  BatchQueue& operator=(const BatchQueue&) = delete;

  /// Whether this number of texts fits now.
  bool has_room(int64_t count) const;
  /// Whether the queue took it; otherwise it is dropped, and `done` not called.
  bool submit(Request request);
  Counts counts() const;

 private:
  struct Waiting {
    Request request;
    at::Tensor outputs = {};          // of those texts that are done
    int64_t begun = 0, finished = 0;  // texts
    bool was_served = false;          // by the last batch
    bool is_over = false;             // done, or failed
    std::exception_ptr error = {};
  };
  struct Part;

  void work();
  bool drop_late();
  std::vector<Part> next_batch();
  TokenizedTexts run(const std::vector<Part>& batch);
  void answer_those_over(std::unique_lock<std::mutex>& lock);

  const int64_t max_waiting_;
  mutable std::mutex mutex_;
  std::condition_variable has_work_;
  std::deque<std::shared_ptr<Waiting>> waiting_;  // guarded by mutex_, as all below
  Counts counts_;
  bool is_stopping_ = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace mezzo::text
