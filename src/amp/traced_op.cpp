#include "amp/traced_op.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <set>
#include <string_view>

namespace mezzo {
namespace {

/// Their results are whatever memory holds.
const std::set<std::string_view> kAllocations = {"aten::empty",          "aten::empty_like", "aten::empty_strided",
                                                 "aten::empty_permuted", "aten::new_empty",  "aten::new_empty_strided",
                                                 "aten::resize_",        "aten::resize_as_", "aten::empty_quantized"};

const std::set<std::string_view> kCopies = {"aten::copy_", "aten::_to_copy", "aten::clone"};

/// Change an argument without reading it, which may thus be uninitialised.
const std::set<std::string_view> kOverwrites = {
    "aten::copy_",      "aten::fill_",       "aten::zero_",   "aten::_foreach_copy_", "aten::_foreach_zero_",
    "aten::normal_",    "aten::uniform_",    "aten::random_", "aten::bernoulli_",     "aten::exponential_",
    "aten::geometric_", "aten::log_normal_", "aten::cauchy_"};

}  // namespace

const TracedOp* TracedOps::find(const at::RecordFunction& function) {
  const std::lock_guard lock(mutex_);
  const char* key = function.name();  // one string object a schema, that lives as long as the op
  if (const auto found = ops_.find(key); found != ops_.end()) {
    return found->second.get();
  }
  const auto name = function.operator_name();
  return name ? ops_.emplace(key, read(*name)).first->second.get() : nullptr;
}

std::unique_ptr<TracedOp> TracedOps::read(const c10::OperatorName& name) const {
  auto op = std::make_unique<TracedOp>();
  op->name = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
  const auto handle = c10::Dispatcher::singleton().findSchema(name);
  if (!handle) {  // torn down meanwhile
    op->is_silent = true;
    return op;
  }
  for (const auto& argument : handle->schema().arguments()) {
    const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    op->arguments.push_back({argument.name(), is_written, argument.is_out() || kOverwrites.contains(name.name)});
  }
  for (const auto& result : handle->schema().returns()) {
    op->returns_view.push_back(result.alias_info() != nullptr && !result.alias_info()->isWrite());
  }
  op->is_copy = kCopies.contains(name.name);
  // LibTorch's composite ops, and mezzo's, are made of ops that are traced themselves;
  // anybody else's may not be.
  const bool is_composite = (name.name.starts_with("aten::") || name.name.starts_with("mezzo::")) &&
                            handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  op->is_silent = is_composite || kAllocations.contains(name.name);
  op->is_ignored = std::any_of(ignored_.begin(), ignored_.end(),
                               [&](const std::string& ignored) { return ignored == name.name || ignored == op->name; });
  return op;
}

}  // namespace mezzo
