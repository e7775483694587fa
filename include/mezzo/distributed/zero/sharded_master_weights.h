#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <map>
#include <string>
#include <vector>

#include "mezzo/amp/master_weights.h"

namespace mezzo::distributed {

/// MasterWeights of a model whose parameters are divided among ranks: each rank keeps the masters
/// of its share alone. The others are half in the model, too; their gradients are dropped where the
/// masters' are summed, and only a ZeroRedundancyOptimizer's broadcasts change them.
/// @code
/// const auto owner = partition_parameters(groups_of(parameters), group.size());
/// ShardedMasterWeights masters(parameters, torch::kHalf, owner, group.rank());
/// ZeroRedundancyOptimizer optimizer(group, std::make_unique<mezzo::AdamW>(groups_of(masters.masters()), options));
/// @endcode
/// Communicates nothing. Not thread-safe; syncs as MasterWeights does.
class ShardedMasterWeights {
 public:
  /// @param owner  the rank that updates a parameter, by name, of all that are trained
  ///     (`partition_parameters`). Frozen ones have a master on every rank. Of a tied
  ///     one, the first name counts.
  /// @throws c10::ValueError  as MasterWeights, and for a parameter that has no owner;
  ///   nothing has changed then.
  ShardedMasterWeights(const std::vector<NamedParameter>& model,
                       c10::ScalarType dtype,
                       const std::map<std::string, int>& owner,
                       int rank,
                       MasterWeightsOptions options = {});

  /// What to train, in the model's order: masters, whose `half_copy` is the model's parameter, norms
  /// that stay float32, and for parameters of other ranks the model's own half ones.
  const std::vector<NamedParameter>& masters() const { return masters_; }

  /// As MasterWeights; drops the gradients of parameters of other ranks.
  void accumulate_gradients();

  /// As MasterWeights. @throws c10::Error  where other ranks have masters.
  void to_float32();

  /// The float32 weights that this rank has.
  std::map<std::string, at::Tensor> state_dict() const { return own_.state_dict(); }

  /// Takes over the float32 weights of the whole model. Errors as of MasterWeights;
  /// nothing has changed then.
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
