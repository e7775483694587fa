#include "mezzo/distributed/zero/zero_redundancy_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "distributed/group/collect_tensors.h"
#include "distributed/group/tensor_bucket.h"
#include "memory/device_copy.h"

namespace mezzo::distributed {
namespace {

/// What other ranks are to know of a parameter.
const at::Tensor& travelling_tensor(const NamedParameter& parameter) {
  return parameter.shadow.defined() ? parameter.shadow : parameter.tensor;
}

template <class Function>
void for_each_parameter(const std::vector<ParamGroup>& groups, const Function& function) {
  for (const ParamGroup& group : groups) {
    for (const NamedParameter& parameter : group.params) {
      function(parameter);
    }
  }
}

at::Device first_device(const std::vector<ParamGroup>& groups) {
  std::optional<at::Device> first;
  for_each_parameter(groups,
                     [&](const NamedParameter& parameter) { first = first.value_or(parameter.tensor.device()); });
  return *first;
}

/// While it lives, the parameters that other ranks update have no gradient.
class OwnGradientsAlone {
 public:
  explicit OwnGradientsAlone(const ZeroRedundancyOptimizer& optimizer) {
    for_each_parameter(optimizer.local().param_groups(), [&](const NamedParameter& parameter) {
      if (parameter.tensor.grad().defined() && !optimizer.owns(parameter.name)) {
        others_.emplace_back(parameter.tensor, std::exchange(parameter.tensor.mutable_grad(), {}));
      }
    });
  }
  ~OwnGradientsAlone() {
    for (auto& [parameter, gradient] : others_) {
      parameter.mutable_grad() = std::move(gradient);
    }
  }
  OwnGradientsAlone(const OwnGradientsAlone&) = delete;
  OwnGradientsAlone& operator=(const OwnGradientsAlone&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> others_;
};

}  // namespace

struct ZeroRedundancyOptimizer::Message {
  int owner;
  TensorBucket bucket;
};

std::map<std::string, int> partition_parameters(const std::vector<ParamGroup>& groups, int num_ranks) {
  TORCH_CHECK_VALUE(num_ranks > 0, "partition_parameters: there must be at least 1 rank, got ", num_ranks);
  std::map<std::string, int> owner;
  std::vector<int64_t> elements(static_cast<size_t>(num_ranks), 0);
  for (const ParamGroup& group : groups) {
    auto largest_first = group.params;
    std::stable_sort(largest_first.begin(), largest_first.end(),
                     [](const auto& a, const auto& b) { return a.tensor.numel() > b.tensor.numel(); });
    for (const NamedParameter& parameter : largest_first) {
      const auto rank = std::min_element(elements.begin(), elements.end());
      *rank += parameter.tensor.numel();
      owner[parameter.name] = static_cast<int>(rank - elements.begin());
    }
  }
  return owner;
}

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(ProcessGroup& group,
                                                 std::unique_ptr<Optimizer> optimizer,
                                                 ZeroRedundancyOptimizerOptions options)
    : group_(group),
      local_(std::move(optimizer)),
      options_(options),
      owner_(partition_parameters(local_->param_groups(), group.size())) {
  check_alike();
  group_.all_or_none([&] {
    check_shadows();
    TORCH_CHECK_VALUE(local_->state_dict().empty(), "ZeroRedundancyOptimizer: ", local_->name(),
                      " has state already; give it an optimizer that was not used yet");
  });
  local_->register_verdict_hook([this](const GradientVerdict& own) { return verdict_of_all(own); });
  plan_messages();
}

ZeroRedundancyOptimizer::~ZeroRedundancyOptimizer() = default;

/// Else the partitions, and so the messages, would not fit.
void ZeroRedundancyOptimizer::check_alike() const {
  std::string text = local_->name();
  int64_t elements = 0;
  for (const ParamGroup& group : local_->param_groups()) {
    text += fmt::format("\n{} {}", *group.weight_decay, group.lr_scale);
    for (const NamedParameter& parameter : group.params) {
      const at::Tensor& tensor = travelling_tensor(parameter);
      text += fmt::format("\n{} {} {}", parameter.name, static_cast<int>(tensor.scalar_type()),
                          fmt::join(tensor.sizes(), " "));
      elements += tensor.numel();
    }
  }
  group_.check_same({{"what ZeroRedundancyOptimizer is to train",
                      fmt::format("{} of {} tensors with {} elements, fingerprint {:016x}", local_->name(),
                                  owner_.size(), elements, std::hash<std::string>()(text))}});
}

/// A master that is never updated would go stale, and into checkpoints.
void ZeroRedundancyOptimizer::check_shadows() const {
  for_each_parameter(local_->param_groups(), [&](const NamedParameter& parameter) {
    TORCH_CHECK_VALUE(!parameter.shadow.defined() || owns(parameter.name), "ZeroRedundancyOptimizer: rank ",
                      group_.rank(), " has a master of ", parameter.name, ", which rank ", owner_.at(parameter.name),
                      " updates; make the masters by ShardedMasterWeights");
  });
}

/// Message by message of each rank in turn, so that all ranks send at the same time.
void ZeroRedundancyOptimizer::plan_messages() {
  std::vector<std::vector<at::Tensor>> shares(static_cast<size_t>(group_.size()));
  for_each_parameter(local_->param_groups(), [&](const NamedParameter& parameter) {
    if (parameter.tensor.numel() > 0) {
      shares[owner_.at(parameter.name)].push_back(travelling_tensor(parameter));
    }
  });
  std::vector<std::vector<TensorBucket>> buckets;
  size_t most = 0;
  for (const auto& share : shares) {
    buckets.push_back(make_buckets(share, options_.bucket_bytes()));
    most = std::max(most, buckets.back().size());
  }
  for (size_t i = 0; i < most; ++i) {
    for (int owner = 0; owner < group_.size(); ++owner) {
      if (i < buckets[owner].size()) {
        messages_.push_back({owner, buckets[owner][i]});
      }
    }
  }
}

/// Gives the new weights of this rank's share to the others, and takes theirs.
void ZeroRedundancyOptimizer::hand_out() {
  const auto found_inf = local_->found_inf();
  const bool nothing_changed = found_inf.defined() && found_inf.is_cpu() && found_inf.item<float>() != 0.0f;
  if (group_.size() == 1 || nothing_changed) {
    return;
  }
  struct InFlight {
    const Message& message;
    std::vector<at::Tensor> data;
    c10::intrusive_ptr<c10d::Work> work;
  };
  std::deque<InFlight> in_flight;
  const auto finish_first = [&] {
    auto& [message, data, work] = in_flight.front();
    work->wait();
    if (message.owner != group_.rank()) {
      message.bucket.unpack(data.front());
    }
    in_flight.pop_front();
  };
  // Enough to keep every rank sending; more would only take memory.
  const size_t most_in_flight = 2 * static_cast<size_t>(group_.size());
  group_.guard([&] {
    for (const Message& message : messages_) {
      if (in_flight.size() == most_in_flight) {
        finish_first();
      }
      const bool mine = message.owner == group_.rank();
      auto& sent = in_flight.emplace_back(
          InFlight{message, {mine ? message.bucket.packed() : message.bucket.room()}, /*work=*/{}});
      c10d::BroadcastOptions options;
      options.rootRank = message.owner;
      sent.work = group_.c10d()->broadcast(sent.data, options);
      (mine ? statistics_.bytes_sent : statistics_.bytes_received) += message.bucket.bytes();
    }
    while (!in_flight.empty()) {
      finish_first();
    }
  });
  statistics_.steps += 1;
  statistics_.messages += static_cast<int64_t>(messages_.size());
}

/// Each rank has looked at the gradients of its share alone.
GradientVerdict ZeroRedundancyOptimizer::verdict_of_all(const GradientVerdict& own) const {
  const auto device = own.norm.defined()        ? own.norm.device()
                      : own.found_inf.defined() ? own.found_inf.device()
                                                : first_device(local_->param_groups());
  const auto zero = at::zeros({}, at::TensorOptions(device).dtype(at::kDouble));
  const auto number = [&](const at::Tensor& value) {
    return value.defined() ? copy_to(value, device, at::kDouble) : zero;
  };
  const bool has_gradients = own.norm.defined();
  auto sums =
      at::stack({number(own.sum_of_squares), number(own.found_inf), has_gradients ? at::ones_like(zero) : zero});
  group_.all_reduce(sums);
  bool has_double = false;  // on whatever rank
  for_each_parameter(local_->param_groups(), [&](const NamedParameter& parameter) {
    has_double |= parameter.tensor.scalar_type() == at::kDouble;
  });
  const auto norm = sums[0].sqrt().to(has_double ? at::kDouble : at::kFloat);
  GradientVerdict all{.is_measured = own.is_measured, .norm = {}, .sum_of_squares = {}, .found_inf = {}};
  all.found_inf = sums[1].gt(0).logical_or(norm.isfinite().logical_not()).to(at::kFloat);
  // Waits for the device only where this rank had no gradient.
  if (own.is_measured && (has_gradients || sums[2].item<double>() > 0)) {
    all.norm = norm;
    all.sum_of_squares = sums[0];
  }
  return all;
}

at::Tensor ZeroRedundancyOptimizer::step(const Closure& closure) {
  at::Tensor loss;
  group_.guard([&] {
    if (closure) {
      const at::AutoGradMode enable_grad(true);
      loss = closure();
    }
    const OwnGradientsAlone own(*this);
    local_->step();
    hand_out();
  });
  return loss;
}

std::optional<at::Tensor> ZeroRedundancyOptimizer::check_gradients(const std::optional<at::Tensor>& scale) {
  std::optional<at::Tensor> found_inf;
  group_.guard([&] {
    const OwnGradientsAlone own(*this);
    found_inf = local_->check_gradients(scale);
  });
  return found_inf;
}

at::Tensor ZeroRedundancyOptimizer::step_scaled(const std::optional<at::Tensor>& grad_scale,
                                                const at::Tensor& found_inf) {
  group_.guard([&] {
    const OwnGradientsAlone own(*this);
    local_->step_scaled(grad_scale, found_inf);
    hand_out();
  });
  return {};
}

bool ZeroRedundancyOptimizer::allows_half_gradients() const {
  bool updates_half = false;
  for_each_parameter(local_->param_groups(), [&](const NamedParameter& parameter) {
    updates_half |= owns(parameter.name) && parameter.tensor.scalar_type() == at::kHalf;
  });
  return !updates_half;
}

void ZeroRedundancyOptimizer::load_state_dict(const std::map<std::string, at::Tensor>& state) {
  local_->check_state_dict(state);
  std::map<std::string, at::Tensor> own;
  for (const auto& [key, tensor] : state) {
    if (owns(key.substr(key.find('/') + 1))) {
      own[key] = tensor;
    }
  }
  local_->load_state_dict(own);
}

std::map<std::string, at::Tensor> ZeroRedundancyOptimizer::state_dict(int to) {
  return collect_tensors(group_, local_->state_dict(), to, options_.bucket_bytes());
}

std::map<std::string, at::Tensor> ZeroRedundancyOptimizer::weights(int to) {
  std::map<std::string, at::Tensor> masters, all;
  for_each_parameter(local_->param_groups(), [&](const NamedParameter& parameter) {
    all[parameter.name] = parameter.tensor.detach();
    if (parameter.shadow.defined()) {
      masters[parameter.name] = parameter.tensor.detach();
    }
  });
  auto collected = collect_tensors(group_, masters, to, options_.bucket_bytes());
  if (group_.rank() != to) {
    return {};
  }
  collected.merge(all);  // masters stay where there are some
  return collected;
}

int64_t ZeroRedundancyOptimizer::state_bytes() const {
  int64_t total = 0;
  for (const auto& [name, tensor] : local_->state_dict()) {
    total += static_cast<int64_t>(tensor.nbytes());
  }
  return total;
}

}  // namespace mezzo::distributed
