#include "text/train/training_model.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "mezzo/distributed/data_parallel/shared_memory_all_reduce.h"
#include "mezzo/optim/lamb.h"
#include "mezzo/optim/param_groups.h"
#include "mezzo/optim/sgd.h"
#include "text/models/lora.h"

namespace mezzo::text {
namespace {

/// @throws c10::ValueError  if the checkpoint's weights do not match `parameters`
void load_weights(const Checkpoint& checkpoint, std::vector<NamedParameter>& parameters) {
  at::NoGradGuard no_grad;
  const std::map<std::string, at::Tensor> saved(checkpoint.weights.begin(), checkpoint.weights.end());
  for (NamedParameter& parameter : parameters) {
    const auto weight = saved.find(parameter.name);
    TORCH_CHECK_VALUE(weight != saved.end() && weight->second.sizes() == parameter.tensor.sizes(),
                      "--resume: the checkpoint has no weight ", parameter.name, " of shape ", parameter.tensor.sizes(),
                      "; it is of another model");
    parameter.tensor.copy_(weight->second);
  }
}

/// Without weight decay for biases and norms, and by layer if the learning rate decays with depth.
std::vector<ParamGroup> make_groups(const TrainConfig& config,
                                    const std::vector<NamedParameter>& parameters,
                                    const ModelForTask& model) {
  std::vector<NamedParameter> trained;
  std::ranges::copy_if(parameters, std::back_inserter(trained),
                       [](const NamedParameter& p) { return p.tensor.requires_grad(); });
  const auto layer = [&](const NamedParameter& p) { return model.layer_of(p.name); };
  return make_param_groups(trained, {.weight_decay = config.weight_decay,
                                     .decays = usually_decays,
                                     .layer_lr_decay = config.layer_lr_decay,
                                     .layer = layer});
}

std::unique_ptr<Optimizer> make_optimizer(const TrainConfig& config, std::vector<ParamGroup> groups) {
  // Without clipping, the norm is measured for the records, and steps whose norm is not finite are skipped.
  const double max_norm = config.max_grad_norm > 0 ? config.max_grad_norm : std::numeric_limits<double>::infinity();
  const auto with = [&](auto options) { return options.lr(config.learning_rate.value()).max_grad_norm(max_norm); };
  const auto with_adam = [&](auto options) {
    options.betas({config.adam_beta1, config.adam_beta2}).eps(config.adam_epsilon.value_or(options.eps()));
    return with(options);
  };
  if (config.optimizer == "adamw") return std::make_unique<AdamW>(std::move(groups), with_adam(AdamWOptions()));
  if (config.optimizer == "adam") return std::make_unique<Adam>(std::move(groups), with_adam(AdamOptions()));
  if (config.optimizer == "sgd") return std::make_unique<SGD>(std::move(groups), with(SGDOptions()));
  return std::make_unique<LAMB>(std::move(groups), with_adam(LAMBOptions()));
}

/// How the ranks' gradients are added up. Collective.
distributed::CommHook make_comm_hook(const TrainConfig& config, distributed::ProcessGroup& group) {
  using namespace distributed;
  if (config.gradient_compression == "fp16") return sum_wrapper(fp16_compress_hook);
  if (config.gradient_compression == "bf16") return sum_wrapper(bf16_compress_hook);
  if (config.all_reduce == "auto" && group.options().device().is_cpu()) {
    if (auto shared_memory = SharedMemoryAllReduce::create(group)) {
      return shared_memory_hook(std::move(shared_memory));
    }
    if (group.rank() == 0 && group.environment().local_world_size == group.size()) {
      TORCH_WARN_ONCE(
          "the ranks are on one host but cannot share memory: it may be full, or they run in different containers. "
          "Gradients use sockets, which is slower. Pass --all-reduce backend to choose that "
          "without a warning.");
    }
  }
  return allreduce_sum_hook;
}

}  // namespace

at::Tensor deferred_table(const TrainConfig& config, const ModelForTask& model, int ranks) {
  // Other ranks' gradients are of any rows. Averages read all rows at each step.
  if (config.optimizer != "adamw" || ranks > 1 || config.master_weights || config.ema_decay > 0) return {};
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (item.key().ends_with("word_embeddings.weight") && parameter.requires_grad() && parameter.is_cpu()) {
      return parameter;
    }
  }
  return {};
}

TrainingModel::TrainingModel(const TrainConfig& config,
                             const RunSetup& setup,
                             const Ranks& ranks,
                             const Checkpoint* resumed)
    : ranks_(ranks),
      model_(setup.model),
      is_sharded_(config.zero_stage == 1 && ranks.size() > 1),
      is_adapter_(config.lora > 0),
      parameters_(named_parameters(*model_)) {
  if (is_adapter_) {  // --model has the weights that are not trained
    std::erase_if(parameters_, [](const NamedParameter& parameter) { return !parameter.tensor.requires_grad(); });
  }
  if (resumed != nullptr) {
    load_weights(*resumed, parameters_);
  }
  if (config.master_weights) {
    make_masters(config, setup.precision);
  } else if (setup.precision != Precision::kFloat32 && !is_sharded_) {
    const auto half_copies = model_->make_half_copies(autocast_dtype(setup.precision).value());
    for (NamedParameter& parameter : parameters_) {
      if (const auto half_copy = half_copies.find(parameter.name); half_copy != half_copies.end()) {
        parameter.half_copy = half_copy->second;
      }
    }
  }
  make_optimizer(config);
  if (const auto table = deferred_table(config, *model_, ranks.size()); table.defined()) {
    deferring_ = dynamic_cast<AdamW*>(whole_.get());
    deferring_->defer_rows(table);
  }
  if (whole_) whole_->place_weights();
  if (ranks.size() > 1) {
    exchange_gradients(config);
  }
  if (config.ema_decay > 0) {
    average_.emplace(parameters_, config.ema_decay);
  }
  if (resumed != nullptr) {
    load_state(*resumed);
  }
}

void TrainingModel::load_state(const Checkpoint& checkpoint) {
  const std::map<std::string, at::Tensor> state(checkpoint.optimizer.begin(), checkpoint.optimizer.end());
  sharded_ ? sharded_->load_state_dict(state) : whole_->load_state_dict(state);
  if (average_) {
    average_->load({checkpoint.average.begin(), checkpoint.average.end()}, checkpoint.steps_taken);
  }
  for (const auto& [name, tensor] : checkpoint.best_adapter) best_adapter_.emplace(name, tensor.clone());
}

/// Where optimizer states are sharded, masters are too.
void TrainingModel::make_masters(const TrainConfig& config, Precision precision) {
  const auto options = MasterWeightsOptions().keep_norms_fp32(config.keep_norms_fp32);
  const auto owner =
      distributed::partition_parameters(make_groups(config, parameters_, *model_), is_sharded_ ? ranks_.size() : 1);
  masters_.emplace(parameters_, autocast_dtype(precision).value(), owner, is_sharded_ ? ranks_.rank() : 0, options);
  parameters_ = masters_->masters();
}

void TrainingModel::make_optimizer(const TrainConfig& config) {
  whole_ = text::make_optimizer(config, make_groups(config, parameters_, *model_));
  if (is_sharded_) {
    sharded_.emplace(*ranks_.group(), std::move(whole_));
  }
}

/// After the masters have made the model half, so that halves are sent.
void TrainingModel::exchange_gradients(const TrainConfig& config) {
  auto& group = *ranks_.group();
  ddp_.emplace(model_, group, distributed::DistributedDataParallelOptions().gradient_as_bucket_view(true));
  ddp_->register_comm_hook(make_comm_hook(config, group));
}

at::Tensor TrainingModel::forward(const PackedBatch& batch, const DropoutSeed& random) {
  if (deferring_ != nullptr) deferring_->read_rows(batch.input_ids);
  return ddp_ ? ddp_->forward(batch, random) : model_->forward(batch, random);
}

std::unique_ptr<distributed::NoSyncGuard> TrainingModel::no_sync() {
  return ddp_ ? std::make_unique<distributed::NoSyncGuard>(*ddp_) : nullptr;
}

NamedTensors TrainingModel::kept_weights() {
  if (is_adapter_) return merge_lora(*model_);
  return complete(average_ ? average_->averages() : std::map<std::string, at::Tensor>());
}

void TrainingModel::save(Checkpoint& checkpoint) {
  const auto weights = complete(average_ ? average_->weights() : std::map<std::string, at::Tensor>());
  const auto state = sharded_ ? sharded_->state_dict() : whole_->state_dict();
  checkpoint.weights = weights_aside_.empty() ? weights : weights_aside_;
  checkpoint.optimizer.assign(state.begin(), state.end());
  if (average_) {
    const auto averages = average_->averages();
    checkpoint.average.assign(averages.begin(), averages.end());
  }
  checkpoint.best_adapter.assign(best_adapter_.begin(), best_adapter_.end());
}

void TrainingModel::set_weights_aside() {
  Checkpoint now;
  save(now);
  if (!ranks_.is_main()) return;
  for (const auto& [name, tensor] : now.weights) weights_aside_.emplace_back(name, tensor.clone());
}

/// Adds the model's weights to `by_name`, except names that it has already.
NamedTensors TrainingModel::complete(std::map<std::string, at::Tensor> by_name) {
  catch_up();
  if (sharded_) {
    by_name.merge(sharded_->weights());
  }
  for (const NamedParameter& parameter : parameters_) {
    by_name.emplace(parameter.name, parameter.tensor.detach());
  }
  if (masters_) {
    by_name.merge(masters_->state_dict());  // of frozen parameters
  }
  NamedTensors tensors;
  for (const auto& item : model_->named_parameters()) {
    if (!is_adapter_ || item.value().requires_grad()) {
      tensors.emplace_back(item.key(), by_name.at(item.key()));
    }
  }
  return tensors;
}

void TrainingModel::keep_adapter() {
  for (const NamedParameter& parameter : parameters_) {
    if (is_adapter_) best_adapter_[parameter.name] = parameter.tensor.detach().clone();
  }
}

void TrainingModel::restore_best_adapter() {
  const at::NoGradGuard no_grad;
  for (NamedParameter& parameter : parameters_) {
    parameter.tensor.copy_(best_adapter_.at(parameter.name));
  }
}

std::optional<CommunicationRecord> TrainingModel::communication() const {
  if (!ddp_) return std::nullopt;
  const auto stats = ddp_->comm_stats();
  CommunicationRecord record;
  record.ranks = ranks_.size();
  record.steps = stats.steps;
  record.gradient_bytes = stats.gradient_bytes;
  record.buckets = stats.buckets;
  record.seconds = stats.seconds;
  record.exposed_seconds = stats.exposed_seconds;
  if (sharded_) {
    record.weight_bytes = sharded_->statistics().bytes_sent + sharded_->statistics().bytes_received;
  }
  return record;
}

}  // namespace mezzo::text
