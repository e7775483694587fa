#include "amp/forward_ops.h"

namespace mezzo {
namespace {

constexpr size_t kMostEntries = 1 << 20;  // the oldest are dropped, so that a tracer may live for a whole run

}  // namespace

void ForwardOps::begin(
    uint64_t thread, uint64_t next, const TracedOp& op, bool may_make_node, const std::string& module) {
  const auto [entry, is_new] = entries_.try_emplace({thread, next});
  if (is_new) {
    entry->second.first_module = module;
  }
  if (may_make_node) {
    entry->second.last_maker = &op;
    entry->second.last_module = module;
  }
  if (entries_.size() > kMostEntries) {
    entries_.erase(entries_.begin());
  }
}

ForwardOps::Origin ForwardOps::find(uint64_t thread, uint64_t number, const std::string& node) const {
  const bool is_custom_function = node.find("::") != std::string::npos;  // a C++ type
  if (!is_custom_function) {
    const auto entry = entries_.find({thread, number});
    return entry == entries_.end() || entry->second.last_maker == nullptr
               ? Origin{}
               : Origin{entry->second.last_maker->name, entry->second.last_module};
  }
  // Its node is made before its forward runs: the ops in there are the
  // first to see a higher number.
  const auto inside = entries_.upper_bound({thread, number});
  return inside == entries_.end() || inside->first.first != thread ? Origin{} : Origin{"", inside->second.first_module};
}

}  // namespace mezzo
