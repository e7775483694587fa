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

#include "distributed/group/backends.h"
#include "distributed/group/collect_tensors.h"
#include "distributed/group/tensor_bucket.h"
#include "graph/step_recording.h"
#include "kernels/device_scalars.h"
#include "memory/device_copy.h"

namespace mezzo::distributed {
namespace {

/// The tensors that a parameter's owner sends to the other ranks.
const at::Tensor& sent_tensor(const NamedParameter& parameter) {
  return parameter.half_copy.defined() ? parameter.half_copy : parameter.tensor;
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

/// With the names that `state_dict` has, which are given and unique.
std::vector<ParamGroup> named_groups(const mezzo::Optimizer& optimizer) {
  auto groups = optimizer.named_param_groups();
  const auto keys = optimizer.state_keys();
  auto key = keys.begin();
  for (ParamGroup& group : groups) {
    for (NamedParameter& parameter : group.params) {
      parameter.name = *key++;
    }
  }
  return groups;
}

/// While it lives, the parameters that other ranks update have no gradient.
class OwnGradientsAlone {
 public:
  OwnGradientsAlone(const ZeroRedundancyOptimizer& optimizer, const std::vector<ParamGroup>& groups) {
    for_each_parameter(groups, [&](const NamedParameter& parameter) {
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
      const bool is_new = owner.emplace(parameter.name, static_cast<int>(rank - elements.begin())).second;
      TORCH_CHECK_VALUE(is_new, "partition_parameters: two parameters are named '", parameter.name,
                        "', and ranks know them by name. Give the names of one module a prefix: parameter.name = "
                        "\"decoder.\" + parameter.name");
    }
  }
  return owner;
}

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(ProcessGroup& group,
                                                 std::unique_ptr<mezzo::Optimizer> optimizer,
                                                 ZeroRedundancyOptimizerOptions options)
    : torch::optim::Optimizer(optimizer->param_groups(), optimizer->defaults().clone()),
      group_(group),
      local_(std::move(optimizer)),
      options_(options),
      groups_(named_groups(*local_)),
      owner_(partition_parameters(groups_, group.size())) {
  check_alike();
  group_.all_or_none([&] {
    check_half_copies();
    TORCH_CHECK_VALUE(local_->state_dict().empty(), "ZeroRedundancyOptimizer: ", mezzo::detail::name_of(*local_),
                      " has state already; give it an optimizer that was not used yet");
  });
  local_->register_statistics_hook([this](const auto& own) { return statistics_of_all(own); });
  copy_options_from_local();
  plan_messages();
}

ZeroRedundancyOptimizer::~ZeroRedundancyOptimizer() = default;

/// Else the partitions, and so the messages, would not fit.
void ZeroRedundancyOptimizer::check_alike() const {
  const std::string name = mezzo::detail::name_of(*local_);
  std::string text = name;
  int64_t elements = 0;
  for (const ParamGroup& group : groups_) {
    text += fmt::format("\n{} {}", *group.weight_decay, group.lr_scale);
    for (const NamedParameter& parameter : group.params) {
      const at::Tensor& tensor = sent_tensor(parameter);
      text += fmt::format("\n{} {} {}", parameter.name, static_cast<int>(tensor.scalar_type()),
                          fmt::join(tensor.sizes(), " "));
      elements += tensor.numel();
    }
  }
  group_.check_same({{"the parameter list of ZeroRedundancyOptimizer",
                      fmt::format("{} of {} tensors with {} elements, fingerprint {:016x}", name, owner_.size(),
                                  elements, std::hash<std::string>()(text))}});
}

/// A master that is never updated would go stale, and into checkpoints.
void ZeroRedundancyOptimizer::check_half_copies() const {
  for_each_parameter(groups_, [&](const NamedParameter& parameter) {
    TORCH_CHECK_VALUE(!parameter.half_copy.defined() || owns(parameter.name), "ZeroRedundancyOptimizer: rank ",
                      group_.rank(), " has a master of ", parameter.name, ", which rank ", owner_.at(parameter.name),
                      " updates; make the masters by ShardedMasterWeights");
  });
}

/// Message by message of each rank in turn, so that all ranks send at the same time.
void ZeroRedundancyOptimizer::plan_messages() {
  std::vector<std::vector<at::Tensor>> shares(static_cast<size_t>(group_.size()));
  for_each_parameter(groups_, [&](const NamedParameter& parameter) {
    if (parameter.tensor.numel() > 0) {
      shares[owner_.at(parameter.name)].push_back(sent_tensor(parameter));
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
void ZeroRedundancyOptimizer::broadcast_parameters() {
  const auto found_inf = local_->found_inf();
  const bool nothing_changed = found_inf.defined() && found_inf.is_cpu() && found_inf.item<float>() != 0.0f;
  if (group_.size() > 1 && !nothing_changed) {
    run_collective(group_, first_device(groups_).type(), [this] { exchange_messages(); });
  }
}

void ZeroRedundancyOptimizer::exchange_messages() {
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
  }
  while (!in_flight.empty()) {
    finish_first();
  }
  do_each_time(StepRecording::current_notes(), [this] {
    for (const Message& message : messages_) {
      const bool mine = message.owner == group_.rank();
      (mine ? statistics_.bytes_sent : statistics_.bytes_received) += message.bucket.bytes();
    }
    statistics_.steps += 1;
    statistics_.messages += static_cast<int64_t>(messages_.size());
  });
}

/// Each rank has looked at the gradients of its share alone.
mezzo::detail::GradientStatistics ZeroRedundancyOptimizer::statistics_of_all(
    const mezzo::detail::GradientStatistics& own) const {
  const auto device = own.norm.defined()        ? own.norm.device()
                      : own.found_inf.defined() ? own.found_inf.device()
                                                : first_device(groups_);
  const auto dtype = accumulation_dtype(device);
  const auto zero = at::zeros({}, at::TensorOptions(device).dtype(dtype));
  const auto number = [&](const at::Tensor& value) { return value.defined() ? copy_to(value, device, dtype) : zero; };
  const bool has_gradients = own.norm.defined();
  auto sums =
      at::stack({number(own.sum_of_squares), number(own.found_inf), has_gradients ? at::ones_like(zero) : zero});
  group_.all_reduce(sums);
  bool has_double = false;  // on whatever rank
  for_each_parameter(
      groups_, [&](const NamedParameter& parameter) { has_double |= parameter.tensor.scalar_type() == at::kDouble; });
  const auto norm = sums[0].sqrt().to(has_double ? at::kDouble : at::kFloat);
  mezzo::detail::GradientStatistics all{
      .is_measured = own.is_measured, .norm = {}, .sum_of_squares = {}, .found_inf = {}};
  all.found_inf = sums[1].gt(0).logical_or(norm.isfinite().logical_not()).to(at::kFloat);
  // Waits for the device only if this rank had no gradient. A recorded step has some on another rank.
  if (own.is_measured && (has_gradients || StepRecording::current() != nullptr || sums[2].item<double>() > 0)) {
    all.norm = norm;
    all.sum_of_squares = sums[0];
  }
  return all;
}

double ZeroRedundancyOptimizer::lr() const {
  copy_options_to_local();
  return local_->lr();
}

void ZeroRedundancyOptimizer::set_lr(double lr) {
  copy_options_to_local();
  local_->set_lr(lr);
  copy_options_from_local();
}

/// A caller may have changed the options of this object's groups.
void ZeroRedundancyOptimizer::copy_options_to_local() const {
  TORCH_CHECK(mezzo::detail::num_parameters(*this) == owner_.size(),
              "ZeroRedundancyOptimizer: parameters were added or removed. Make a new one with all parameters");
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    local_->param_groups()[g].set_options(param_groups_[g].options().clone());
  }
}

void ZeroRedundancyOptimizer::copy_options_from_local() {
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    param_groups_[g].set_options(local_->param_groups()[g].options().clone());
  }
}

at::Tensor ZeroRedundancyOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  group_.guard([&] {
    if (closure) {
      const at::AutoGradMode enable_grad(true);
      loss = closure();
    }
    copy_options_to_local();
    const OwnGradientsAlone own(*this, groups_);
    local_->step();
    broadcast_parameters();
  });
  return loss;
}

std::optional<at::Tensor> ZeroRedundancyOptimizer::check_gradients(const std::optional<at::Tensor>& scale) {
  std::optional<at::Tensor> found_inf;
  group_.guard([&] {
    const OwnGradientsAlone own(*this, groups_);
    found_inf = local_->check_gradients(scale);
  });
  return found_inf;
}

at::Tensor ZeroRedundancyOptimizer::step_scaled(const std::optional<at::Tensor>& grad_scale,
                                                const at::Tensor& found_inf) {
  group_.guard([&] {
    copy_options_to_local();
    const OwnGradientsAlone own(*this, groups_);
    local_->step_scaled(grad_scale, found_inf);
    broadcast_parameters();
  });
  return {};
}

bool ZeroRedundancyOptimizer::allows_half_gradients() const {
  bool updates_half = false;
  for_each_parameter(groups_, [&](const NamedParameter& parameter) {
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

void ZeroRedundancyOptimizer::save(torch::serialize::OutputArchive& archive) const {
  copy_options_to_local();
  const auto whole = state_dict();
  if (group_.rank() == 0) {
    local_->load_state_dict(whole);
  }
  local_->save(archive);
  drop_state_of_others();
}

void ZeroRedundancyOptimizer::load(torch::serialize::InputArchive& archive) {
  local_->load(archive);
  drop_state_of_others();
  copy_options_from_local();
}

void ZeroRedundancyOptimizer::drop_state_of_others() const {
  size_t index = 0;
  for_each_parameter(groups_, [&](const NamedParameter& parameter) {
    if (!owns(parameter.name)) {
      local_->drop_state(index);
    }
    ++index;
  });
}

std::map<std::string, at::Tensor> ZeroRedundancyOptimizer::state_dict(int to) const {
  return collect_tensors(group_, local_->state_dict(), to, options_.bucket_bytes());
}

std::map<std::string, at::Tensor> ZeroRedundancyOptimizer::weights(int to) {
  std::map<std::string, at::Tensor> masters, all;
  for_each_parameter(groups_, [&](const NamedParameter& parameter) {
    all[parameter.name] = parameter.tensor.detach();
    if (parameter.half_copy.defined()) {
      masters[parameter.name] = parameter.tensor.detach();
    }
  });
  auto collected = collect_tensors(group_, masters, to, options_.bucket_bytes());
  if (group_.rank() != to) {
    return {};
  }
  collected.merge(all);  // masters stay if there are some
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
