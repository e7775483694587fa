#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mezzo/text/launch/launcher.h"
#include "text/launch/node_agreement.h"

namespace mezzo::text {

/// Milliseconds between two looks at what node 0 has decided.
inline constexpr int kNodesInterval = 200;

/// The meeting point of the launchers of several nodes: a c10d store, which the launcher of node 0 hosts. Each says
/// there that it lives and how its ranks fare, and reads what node 0 decides. A thread talks to the store, since a
/// network that is gone may hold it up for long.
class NodeRendezvous {
 public:
  /// @param store  node 0's own; null on other nodes, which look for it at `master_addr` and `master_port`
  /// @param launch_id  of node 0: the other nodes take it over
  NodeRendezvous(const LaunchOptions& options, c10::intrusive_ptr<c10d::Store> store, std::string launch_id);
  ~NodeRendezvous();
  NodeRendezvous(const NodeRendezvous&) = delete;
  NodeRendezvous& operator=(const NodeRendezvous&) = delete;

  /// What node 0 has decided. Over, if node 0 does not answer.
  NodePlan plan() const;
  std::string launch_id() const;
  /// The nodes that have not come yet, as far as this one knows, such as "1, 3".
  std::string missing() const;

  /// The ranks of this node have ended, and may start again as start number `start`.
  void be_ready(int64_t start);
  /// The first start that this node can take part in.
  int64_t first_start() const;
  /// All ranks of this node ended well in that start.
  void succeed(int64_t start);
  void fail(const NodeFailure& failure);
  /// This node takes part in nothing more. Waits until node 0 can know it.
  void leave(int status);
  /// Node 0: whether other nodes take part still.
  bool others_are_here() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace mezzo::text
