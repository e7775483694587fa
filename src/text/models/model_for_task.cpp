#include "mezzo/text/models/model_for_task.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <cmath>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "encoder/block_ops.h"
#include "encoder/int8_weights.h"
#include "encoder/packed_weights.h"
#include "encoder/side_by_side.h"
#include "kernels/dtypes.h"
#include "memory/converted.h"
#include "text/models/modules.h"

namespace mezzo::text {

namespace {

/// Makes weights that are multiplied by the same input lie side by side.
void lay_side_by_side(const torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  const auto* const shares = dynamic_cast<const SharesInput*>(&module);
  if (shares == nullptr || encoder::side_by_side(shares->weights_of_one_input()).defined()) {
    return;
  }
  const auto weights = shares->weights_of_one_input();
  const auto parts = encoder::split_rows(at::cat(weights), static_cast<int64_t>(weights.size()));
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i].set_data(parts[i]);
  }
}

}  // namespace

void ModelForTask::to(torch::Device device, bool) {
  auto tensors = parameters();
  const auto kept = buffers();
  tensors.insert(tensors.end(), kept.begin(), kept.end());
  for (at::Tensor& tensor : tensors) {
    const auto moved = tensor.detach().to(device);
    if (device.is_privateuseone()) {  // which LibTorch takes for a tensor of another kind
      tensor.unsafeGetTensorImpl()->shallow_copy_from(moved.getIntrusivePtr());
    } else {
      tensor.set_data(moved);
    }
  }
  if (device.is_cpu()) return;
  for (const auto& module : modules()) {
    lay_side_by_side(*module);
  }
}

ModelForTask::ModelForTask(const Head& head) : head_(head) {
  TORCH_CHECK_VALUE(head.num_outputs >= 1, "make_model: a head needs at least one output, got ", head.num_outputs);
}

void ModelForTask::init_weights(uint64_t seed, const std::function<bool(const std::string& name)>& select) {
  at::NoGradGuard no_grad;
  for (auto& item : named_parameters()) {
    const std::string& name = item.key();
    if (select(name)) {
      init_parameter(name, item.value(),
                     at::detail::createCPUGenerator(XXH3_64bits_withSeed(name.data(), name.size(), seed)));
    }
  }
}

void ModelForTask::init_weights(uint64_t seed) {
  init_weights(seed, [](const std::string&) { return true; });
}

void ModelForTask::init_parameter(const std::string& name, at::Tensor& parameter, const at::Generator& generator) {
  if (name.ends_with("bias") || name.ends_with(".lora_B")) {
    parameter.zero_();
  } else if (name.ends_with(".lora_A")) {
    const double bound = 1 / std::sqrt(static_cast<double>(parameter.size(1)));
    parameter.uniform_(-bound, bound, generator);
  } else if (parameter.dim() == 1) {  // the scale of a norm
    parameter.fill_(1);
  } else {
    constexpr double kUsual = 0.02;  // what transformers takes 0 for
    const double range = config().initializer_range;
    parameter.normal_(0, range == 0 ? kUsual : range, generator);
    if (name.ends_with("word_embeddings.weight")) {
      parameter.select(0, config().pad_token_id).zero_();
    }
  }
}

std::vector<std::pair<std::string, Dense*>> ModelForTask::layers_weights() {
  std::vector<std::pair<std::string, Dense*>> layers;
  for (const auto& item : named_modules()) {
    auto* dense = item.value()->as<Dense>();
    const int64_t layer = layer_of(item.key());
    if (dense != nullptr && !dense->lora_a.defined() && layer >= 1 && layer <= config().num_hidden_layers) {
      layers.emplace_back(item.key(), dense);
    }
  }
  return layers;
}

std::map<std::string, at::Tensor> ModelForTask::make_half_copies(at::ScalarType dtype) {
  TORCH_CHECK_VALUE(is_half(dtype), "make_half_copies: dtype must be kHalf or kBFloat16, got ", dtype);
  std::map<std::string, at::Tensor> half_copies;
  if (encoder::block_ops(parameters().front().device()) == nullptr) {
    return half_copies;  // only fused blocks read them
  }
  const auto layers = layers_weights();
  std::vector<at::Tensor> weights;
  for (const auto& layer : layers) {
    weights.push_back(layer.second->weight);
  }
  const auto halves = converted(weights, dtype);
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto& [name, dense] = layers[i];
    dense->set_half_copy(halves[i]);
    half_copies[name + ".weight"] = halves[i];
  }
  return half_copies;
}

void ModelForTask::pack_weights(at::ScalarType dtype) {
  if (encoder::block_ops(parameters().front().device()) == nullptr) {
    return;  // only fused blocks read them
  }
  for (const auto& [name, dense] : layers_weights()) {
    dense->set_half_copy(encoder::packed_weight(dense->weight, dtype));
  }
}

void ModelForTask::unpack_weights() {
  for (const auto& [name, dense] : layers_weights()) dense->set_half_copy({});
}

void ModelForTask::quantize() {
  TORCH_CHECK_VALUE(encoder::has_int8_products(parameters().front().device()),
                    "int8 needs a CPU with AVX2 or AVX-512, and this device has neither");
  const auto layers = layers_weights();
  TORCH_CHECK_VALUE(!layers.empty(),
                    "the model has LoRA's factors beside its weights; merge them before it is quantized");
  for (const auto& [name, dense] : layers) {
    TORCH_CHECK_VALUE(at::isfinite(dense->weight).all().item<bool>(), "the model's ", name,
                      ".weight holds inf or NaN; its file is damaged, or its training diverged");
    dense->set_half_copy(encoder::int8_weight(dense->weight));
  }
}

std::string_view ModelForTask::name_in_encoder(std::string_view parameter) const {
  const std::string_view prefix = base_model_prefix();
  const bool is_inside =
      parameter.starts_with(prefix) && parameter.size() > prefix.size() && parameter[prefix.size()] == '.';
  return is_inside ? parameter.substr(prefix.size() + 1) : std::string_view();
}

int64_t ModelForTask::layer_of(std::string_view parameter) const {
  const auto inside = name_in_encoder(parameter);
  return inside.empty() ? config().num_hidden_layers + 1 : encoder().layer_of(inside);
}

std::string ModelForTask::part_of(std::string_view parameter) const {
  const int64_t layer = layer_of(parameter);
  if (layer >= 1 && layer <= config().num_hidden_layers) {
    return "layer " + std::to_string(layer - 1);
  }
  const auto inside = name_in_encoder(parameter);
  const auto name = inside.empty() ? parameter : inside;
  return std::string(name.substr(0, name.find('.')));
}

}  // namespace mezzo::text
