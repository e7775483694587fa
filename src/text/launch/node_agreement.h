#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "mezzo/text/launch/launcher.h"

namespace mezzo::text {

/// Why a start of all ranks failed.
struct NodeFailure {
  int64_t start = 0;      ///< that failed; 0 is the first one
  int status = 1;         ///< exit status
  bool is_final = false;  ///< no further start can mend it
  std::string message;
};

/// A node's report on itself.
struct NodeReport {
  int64_t beat = 0;        ///< grows as long as the launcher lives
  int64_t ready = 0;       ///< the first start that it could take part in: its ranks of earlier ones have ended
  int64_t succeeded = -1;  ///< the last start in which all its ranks ended well
  std::optional<NodeFailure> failure;
  std::optional<int> left;  ///< the launcher's exit status: it takes part in nothing more
};

/// What node 0 has decided.
struct NodePlan {
  int64_t start = -1;          ///< the latest start; -1 before the first
  std::vector<int64_t> nodes;  ///< that take part in it, in the order of their ranks
  std::optional<NodeFailure> failure;
  bool is_over = false;  ///< no start follows; `failure` says why, unless all nodes succeeded
};

/// How node 0 decides which nodes take part in each start of the ranks. Knows no store and no clock.
class NodeAgreement {
 public:
  using Time = std::chrono::steady_clock::time_point;

  NodeAgreement(const LaunchOptions& options, Time now);

  /// The consequences of `reports`, by node. Node 0's own must be among them.
  const NodePlan& decide(const std::map<int64_t, NodeReport>& reports, Time now);
  /// Whether a node that answers still takes part.
  bool others_are_here(const std::map<int64_t, NodeReport>& reports) const;

 private:
  struct Seen {
    int64_t beat;
    Time at;
  };

  bool answers(int64_t node) const;
  std::optional<NodeFailure> find_failure(const std::map<int64_t, NodeReport>& reports) const;
  void choose_nodes(const std::map<int64_t, NodeReport>& reports);
  void end(const NodeFailure& failure);

  const LaunchOptions options_;
  const Time begin_;
  Time now_;
  std::map<int64_t, Seen> seen_;
  NodePlan plan_;
};

}  // namespace mezzo::text
