#include "mezzo/distributed/zero/sharded_master_weights.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace mezzo::distributed {

ShardedMasterWeights::Shares ShardedMasterWeights::divide(const std::vector<NamedParameter>& model,
                                                          const std::map<std::string, int>& owner,
                                                          int rank,
                                                          const MasterWeightsOptions& options) {
  Shares shares;
  std::map<const void*, std::string> others;  // by tensor: the first name
  for (const NamedParameter& parameter : model) {
    const auto* const tensor = parameter.tensor.unsafeGetTensorImpl();
    if (const auto first = others.find(tensor); first != others.end()) {
      shares.first_name_of[parameter.name] = first->second;
      continue;
    }
    const bool stays = options.stays_fp32(parameter);
    const bool is_tied_to_own = std::any_of(shares.own.begin(), shares.own.end(), [&](const NamedParameter& own) {
      return own.tensor.is_same(parameter.tensor);
    });
    if (stays || is_tied_to_own || !parameter.tensor.requires_grad()) {
      shares.own.push_back(parameter);
      continue;
    }
    const auto found = owner.find(parameter.name);
    TORCH_CHECK_VALUE(found != owner.end(), "ShardedMasterWeights: parameter ", parameter.name,
                      " has no owner; pass all trained parameters to partition_parameters()");
    if (found->second == rank) {
      shares.own.push_back(parameter);
    } else {
      others.emplace(tensor, parameter.name);
      shares.others.push_back(parameter);
    }
  }
  return shares;
}

ShardedMasterWeights::ShardedMasterWeights(const std::vector<NamedParameter>& model,
                                           c10::ScalarType dtype,
                                           const std::map<std::string, int>& owner,
                                           int rank,
                                           MasterWeightsOptions options)
    : ShardedMasterWeights(model, divide(model, owner, rank, options), dtype, options) {}

ShardedMasterWeights::ShardedMasterWeights(const std::vector<NamedParameter>& model,
                                           Shares shares,
                                           c10::ScalarType dtype,
                                           MasterWeightsOptions options)
    : dtype_(dtype),
      own_(std::move(shares.own), dtype, std::move(options)),
      others_(std::move(shares.others)),
      first_name_of_(std::move(shares.first_name_of)) {
  try {
    const MasterWeights makes_them_half(others_, dtype);
  } catch (...) {
    own_.to_float32();
    throw;
  }
  std::map<std::string, NamedParameter> trained;
  for (const auto* parameters : {&own_.masters(), &std::as_const(others_)}) {
    for (const NamedParameter& parameter : *parameters) {
      trained[parameter.name] = parameter;
    }
  }
  for (const NamedParameter& parameter : model) {
    if (const auto found = trained.find(parameter.name); found != trained.end()) {
      masters_.push_back(found->second);
    }
  }
}

void ShardedMasterWeights::accumulate_gradients() {
  own_.accumulate_gradients();
  for (NamedParameter& other : others_) {
    other.tensor.mutable_grad().reset();
  }
}

void ShardedMasterWeights::to_float32() {
  TORCH_CHECK(others_.empty(), "ShardedMasterWeights: to_float32() needs all masters, but the master of ",
              others_.front().name, " is in another process. Collect the masters, and load them into a float32 model");
  own_.to_float32();
}

void ShardedMasterWeights::load_state_dict(const std::map<std::string, at::Tensor>& state) {
  const c10::NoGradGuard no_grad;
  auto of_own = state;
  std::vector<NamedParameter> rounded;
  for (const NamedParameter& other : others_) {
    const auto entry = state.find(other.name);
    TORCH_CHECK_VALUE(entry != state.end(), "ShardedMasterWeights: the state to load has no entry ", other.name);
    TORCH_CHECK_VALUE(entry->second.sizes() == other.tensor.sizes(), "ShardedMasterWeights: entry ", other.name,
                      " of the state to load has shape ", entry->second.sizes(), ", expected ", other.tensor.sizes());
    rounded.push_back({other.name, entry->second.detach().clone()});
    of_own.erase(other.name);
  }
  for (const auto& [name, first] : first_name_of_) {
    if (const auto entry = state.find(name); entry != state.end()) {
      TORCH_CHECK_VALUE(
          entry->second.scalar_type() == state.at(first).scalar_type() && entry->second.equal(state.at(first)),
          "ShardedMasterWeights: entries ", first, " and ", name,
          " of the state to load differ, but belong to one parameter of this model");
      of_own.erase(name);
    }
  }
  const MasterWeights rounds_them(rounded, dtype_);  // or refuses tensors that are not float32, or overflow
  own_.load_state_dict(of_own);
  for (size_t i = 0; i < others_.size(); ++i) {
    others_[i].tensor.copy_(rounded[i].tensor);
  }
}

}  // namespace mezzo::distributed
