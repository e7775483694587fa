#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "text/serve/batch_queue.h"

namespace mezzo::text {

/// A server's counters, for Prometheus. Thread-safe.
class ServerMetrics {
 public:
  /// A request has been answered.
  /// @param path  one of few: each takes memory as long as the server runs.
  void count_request(const std::string& path, int status, double seconds);
  /// A model has labelled a request's texts.
  void count_texts(const std::string& model, int64_t texts, int64_t tokens, int64_t cut);

  /// In Prometheus' text format, version 0.0.4.
  std::string to_text(const BatchQueue::Counts& queue) const;

 private:
  /// Upper ends of the buckets of requests' seconds.
  static constexpr std::array<double, 13> kSeconds = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1,
                                                      0.2,   0.5,   1,     2,    5,    10};
  struct OfModel {
    int64_t texts = 0, tokens = 0, cut = 0;
  };

  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> requests_;  // by path and status; guarded by mutex_, as all below
  std::array<int64_t, kSeconds.size() + 1> in_bucket_ = {};  // of /predict; the last one has no end
  double seconds_ = 0;
  std::map<std::string, OfModel> models_;
  const std::chrono::system_clock::time_point begin_ = std::chrono::system_clock::now();
};

}  // namespace mezzo::text
