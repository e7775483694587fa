#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <map>
#include <string>
#include <vector>

#include "mezzo/amp/master_weights.h"

namespace mezzo::distributed {

/// MasterWeights of a model whose parameters are divided among ranks: each rank keeps only the
/// masters of its share. The other parameters are also half in the model. Their gradients are
/// dropped when the masters' gradients are summed, and only broadcasts of a ZeroRedundancyOptimizer
/// change them.
/// @code
/// const auto owner = partition_parameters(groups_of(parameters), group.size());
/// ShardedMasterWeights masters(parameters, torch::kHalf, owner, group.rank());
/// ZeroRedundancyOptimizer optimizer(group, std::make_unique<mezzo::AdamW>(groups_of(masters.masters()), options));
/// @endcode
/// Communicates nothing. Not thread-safe; syncs as MasterWeights does.
class ShardedMasterWeights {
 public:
  /// @param owner  The rank that updates a parameter, by name, for all trained parameters
  ///     (`partition_parameters`). Frozen parameters have a master on every rank. For a tied
  ///     parameter, the first name counts.
  /// @throws c10::ValueError  as MasterWeights, and for a parameter without an owner; nothing has
  ///     changed then
  ShardedMasterWeights(const std::vector<NamedParameter>& model,
                       c10::ScalarType dtype,
                       const std::map<std::string, int>& owner,
                       int rank,
                       MasterWeightsOptions options = {});

  /// The tensors to train, in the model's order. These are masters, whose `half_copy` is the
  /// model's parameter; norms that stay float32; and the model's half parameters of other ranks.
  const std::vector<NamedParameter>& masters() const { return masters_; }

  /// As MasterWeights; drops the gradients of parameters of other ranks.
  void accumulate_gradients();

  /// As MasterWeights. @throws c10::Error  if other ranks have masters
  void to_float32();

  /// The float32 weights of this rank.
  std::map<std::string, at::Tensor> state_dict() const { return own_.state_dict(); }

  /// Loads the float32 weights of the whole model. Errors as in MasterWeights; nothing has changed
  /// then.
  void load_state_dict(const std::map<std::string, at::Tensor>& state);

 private:
  struct Shares {
    std::vector<NamedParameter> own, others;
    std::map<std::string, std::string> first_name_of;  // of the other names of tied parameters of other ranks
  };
  static Shares divide(const std::vector<NamedParameter>& model,
                       const std::map<std::string, int>& owner,
                       int rank,
                       const MasterWeightsOptions& options);
  ShardedMasterWeights(const std::vector<NamedParameter>& model,
                       Shares shares,
                       c10::ScalarType dtype,
                       MasterWeightsOptions options);

  c10::ScalarType dtype_;
  MasterWeights own_;
  std::vector<NamedParameter> others_;
  std::map<std::string, std::string> first_name_of_;
  std::vector<NamedParameter> masters_;
};

}  // namespace mezzo::distributed
