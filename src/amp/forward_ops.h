#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "amp/traced_op.h"

namespace mezzo {

/// Finds the forward op, and its module, that a backward node belongs to. Both carry a number. A new node takes the
/// thread's next number, and the op that makes the node saw the same number as the next when it began. Not thread-safe.
class ForwardOps {
 public:
  struct Origin {
    std::string op;  ///< empty for a custom autograd function
    std::string module;
  };

  /// An op begins. `next` is the number that the thread gives its next node.
  /// @param may_make_node  the dispatcher saw that autograd takes part.
  void begin(uint64_t thread, uint64_t next, const TracedOp& op, bool may_make_node, const std::string& module);

  /// Of the node that `thread` numbered `number`. `node` is its name.
  Origin find(uint64_t thread, uint64_t number, const std::string& node) const;

 private:
  struct Entry {
    std::string first_module;              // of the first op to see this number
    const TracedOp* last_maker = nullptr;  // ops within ops see the same number: the last one makes the node
    std::string last_module;
  };
  std::map<std::pair<uint64_t, uint64_t>, Entry> entries_;  // by thread and number
};

}  // namespace mezzo
