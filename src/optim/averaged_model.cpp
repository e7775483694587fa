#include "mezzo/optim/averaged_model.h"

#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_sub.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/batchnorm.h>

#include <set>
#include <string>
#include <utility>

#include "kernels/grouped.h"

namespace mezzo {
namespace {

bool can_lerp(at::TensorList tensors) {
  return at::isFloatingType(tensors.front().scalar_type()) || at::isComplexType(tensors.front().scalar_type());
}

/// Each once: LibTorch lists a parameter that two modules share twice.
std::vector<at::Tensor> without_history(std::vector<at::Tensor> tensors) {
  std::set<const void*> seen;
  std::erase_if(tensors, [&](const at::Tensor& tensor) { return !seen.insert(tensor.unsafeGetTensorImpl()).second; });
  for (at::Tensor& tensor : tensors) {
    tensor = tensor.detach();
  }
  return tensors;
}

void check_same_shapes(const char* what, const std::vector<at::Tensor>& ours, const std::vector<at::Tensor>& theirs) {
  TORCH_CHECK_VALUE(ours.size() == theirs.size(), "AveragedModel: the model has ", theirs.size(), " ", what,
                    ", the averages have ", ours.size(), ".");
  for (size_t i = 0; i < ours.size(); ++i) {
    TORCH_CHECK_VALUE(ours[i].sizes() == theirs[i].sizes(), "AveragedModel: tensor ", i, " of the model's ", what,
                      " has shape ", theirs[i].sizes(), ", its average has ", ours[i].sizes(), ".");
  }
}

void copy_all(const std::vector<at::Tensor>& into, const std::vector<at::Tensor>& from) {
  for (size_t i = 0; i < into.size(); ++i) {
    into[i].copy_(from[i]);
  }
}

/// LibTorch would take over tensors of other shapes.
void check_archive(const torch::nn::Module& module, torch::serialize::InputArchive& archive) {
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    at::Tensor saved;
    TORCH_CHECK_VALUE(archive.try_read(parameter.key(), saved) && saved.sizes() == parameter.value().sizes(),
                      "AveragedModel: the archive to load is of another model. In ", module.name(), ", parameter ",
                      parameter.key(), " has shape ", parameter.value().sizes(), ".");
  }
  for (const auto& child : module.named_children()) {
    torch::serialize::InputArchive inner;
    if (archive.try_read(child.key(), inner)) {
      check_archive(*child.value(), inner);
    }
  }
}

template <class BatchNorm>
void collect_anew(torch::nn::Module& module, std::vector<std::function<void()>>& restore) {
  if (auto* const norm = module.as<BatchNorm>()) {
    norm->reset_running_stats();
    restore.push_back([norm, momentum = norm->options.momentum()] { norm->options.momentum(momentum); });
    norm->options.momentum(std::nullopt);
  }
}

}  // namespace

MultiAvgFn get_ema_multi_avg_fn(double decay) {
  TORCH_CHECK_VALUE(decay >= 0 && decay <= 1, "get_ema_multi_avg_fn: decay must be in [0, 1], got ", decay, ".");
  return [decay](at::TensorList averaged, at::TensorList current, int64_t) {
    if (can_lerp(averaged)) {
      at::_foreach_lerp_(averaged, current, 1 - decay);
      return;
    }
    for (size_t i = 0; i < averaged.size(); ++i) {
      averaged[i].copy_(averaged[i] * decay + current[i] * (1 - decay));
    }
  };
}

MultiAvgFn get_swa_multi_avg_fn() {
  return [](at::TensorList averaged, at::TensorList current, int64_t num_averaged) {
    const auto count = static_cast<double>(num_averaged + 1);
    if (can_lerp(averaged)) {
      at::_foreach_lerp_(averaged, current, 1 / count);
      return;
    }
    for (size_t i = 0; i < averaged.size(); ++i) {
      averaged[i].copy_(averaged[i] + (current[i] - averaged[i]) / count);
    }
  };
}

ModelAverage::ModelAverage(std::shared_ptr<torch::nn::Module> module, MultiAvgFn multi_avg_fn, bool use_buffers)
    : module_(std::move(module)), multi_avg_fn_(std::move(multi_avg_fn)), use_buffers_(use_buffers) {}

void ModelAverage::update_parameters(const torch::nn::Module& model) {
  const c10::NoGradGuard no_grad;
  auto averaged = without_history(module_->parameters()), current = without_history(model.parameters());
  auto buffers = without_history(module_->buffers()), current_buffers = without_history(model.buffers());
  check_same_shapes("parameters", averaged, current);
  check_same_shapes("buffers", buffers, current_buffers);
  if (use_buffers_) {
    averaged.insert(averaged.end(), buffers.begin(), buffers.end());
    current.insert(current.end(), current_buffers.begin(), current_buffers.end());
  }
  if (n_averaged_ == 0) {
    copy_all(averaged, current);
  } else {
    std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
    for (size_t i = 0; i < averaged.size(); ++i) {
      pairs.emplace_back(averaged[i], current[i].to(averaged[i].options()));
    }
    for (const auto& group :
         grouped(std::move(pairs), [](const auto& pair) { return device_and_dtype_of(pair.first); })) {
      std::vector<at::Tensor> ours, theirs;
      for (const auto& [average, value] : group) {
        ours.push_back(average);
        theirs.push_back(value);
      }
      multi_avg_fn_(ours, theirs, n_averaged_);
    }
  }
  if (!use_buffers_) {
    copy_all(buffers, current_buffers);
  }
  ++n_averaged_;
}

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const ModelAverage& average) {
  archive.write("n_averaged", c10::IValue(average.n_averaged_));
  torch::serialize::OutputArchive module(archive.compilation_unit());
  average.module_->save(module);
  archive.write("module", module);
  return archive;
}

torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, ModelAverage& average) {
  c10::IValue n_averaged;
  torch::serialize::InputArchive module;
  TORCH_CHECK_VALUE(
      archive.try_read("n_averaged", n_averaged) && n_averaged.isInt() && n_averaged.toInt() >= 0 &&
          archive.try_read("module", module),
      "AveragedModel: the archive to load is not of an averaged model. Pass what torch::save made of one.");
  check_archive(*average.module_, module);
  average.module_->load(module);
  average.n_averaged_ = n_averaged.toInt();
  return archive;
}

detail::BatchNormGuard::BatchNormGuard(torch::nn::Module& model) {
  const auto collect = [&](torch::nn::Module& module) {
    collect_anew<torch::nn::BatchNorm1dImpl>(module, restore_);
    collect_anew<torch::nn::BatchNorm2dImpl>(module, restore_);
    collect_anew<torch::nn::BatchNorm3dImpl>(module, restore_);
  };
  collect(model);  // which may be on the stack, where LibTorch cannot share it
  for (const auto& module : model.modules(/*include_self=*/false)) {
    collect(*module);
  }
  if (!restore_.empty()) {
    restore_.emplace_back([&model, was_training = model.is_training()] { model.train(was_training); });
    model.train();
  }
}

detail::BatchNormGuard::~BatchNormGuard() {
  for (const auto& restore : restore_) {
    restore();
  }
}

}  // namespace mezzo
