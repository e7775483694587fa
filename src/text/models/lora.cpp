#include "text/models/lora.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "mezzo/text/hub/hub.h"
#include "mezzo/text/io/atomic_file.h"
#include "mezzo/text/io/safetensors.h"
#include "text/models/modules.h"

namespace mezzo::text {
namespace {

constexpr std::string_view kFactorA = ".lora_A", kFactorB = ".lora_B";

/// The linear layers within a model's layers, by name.
std::vector<std::pair<std::string, std::shared_ptr<Dense>>> layers_of(const ModelForTask& model) {
  std::vector<std::pair<std::string, std::shared_ptr<Dense>>> found;
  for (const auto& item : model.named_modules()) {
    const auto dense = std::dynamic_pointer_cast<Dense>(item.value());
    const int64_t layer = model.layer_of(item.key());
    if (dense && layer >= 1 && layer <= model.config().num_hidden_layers) found.emplace_back(item.key(), dense);
  }
  return found;
}

/// As PEFT matches target_modules: the whole name, or the end of it from a dot on.
bool is_called(const std::string& layer, const std::string& target) {
  return layer == target || layer.ends_with("." + target);
}

/// The name of a layer's part without its place in the model: "attention.self.query".
std::string name_in_layer(const std::string& name) {
  const auto digit = std::ranges::find_if(name, [](char c) { return c >= '0' && c <= '9'; });
  return name.substr(name.find('.', digit - name.begin()) + 1);
}

/// @throws c10::ValueError  for a target that names no layer
std::vector<std::pair<std::string, std::shared_ptr<Dense>>> targets_of(const ModelForTask& model,
                                                                       const std::string& target_modules) {
  const auto layers = layers_of(model);
  if (target_modules.empty()) return layers;
  std::vector<std::string> targets;
  std::istringstream names(target_modules);
  for (std::string name; std::getline(names, name, ',');) targets.push_back(name);
  for (const std::string& target : targets) {
    if (std::ranges::any_of(layers, [&](const auto& layer) { return is_called(layer.first, target); })) continue;
    std::set<std::string> known;
    for (const auto& [name, dense] : layers) known.insert(name_in_layer(name));
    TORCH_CHECK_VALUE(false, "--lora-target-modules: the model's layers have no linear layer '", target,
                      "'. They have ", fmt::format("{}", fmt::join(known, ", ")),
                      ". The last part of a name is enough.");
  }
  std::vector<std::pair<std::string, std::shared_ptr<Dense>>> found;
  std::ranges::copy_if(layers, std::back_inserter(found), [&](const auto& layer) {
    return std::ranges::any_of(targets, [&](const std::string& target) { return is_called(layer.first, target); });
  });
  return found;
}

/// PEFT's name for the part of a model that holds a parameter and is trained as a whole: "classifier".
std::string part_to_save(const ModelForTask& model, std::string_view parameter) {
  const auto inside = model.name_in_encoder(parameter);
  const std::string_view name = inside.empty() ? parameter : inside;
  return std::string(name.substr(0, name.find('.')));
}

}  // namespace

bool is_lora(std::string_view parameter) { return parameter.ends_with(kFactorA) || parameter.ends_with(kFactorB); }

void add_lora(ModelForTask& model,
              const LoraOptions& options,
              uint64_t seed,
              const std::vector<std::string>& also,
              const std::map<std::string, std::function<void()>>& release) {
  const at::NoGradGuard no_grad;
  for (auto& item : model.named_parameters()) {
    const bool is_trained =
        model.name_in_encoder(item.key()).empty() || std::ranges::find(also, item.key()) != also.end();
    if (is_trained) {
      item.value().set_data(item.value().clone());  // in separate memory, not a file's
    }
    item.value().requires_grad_(is_trained);
  }
  uint32_t site = kLoraSites;
  for (const auto& [name, dense] : targets_of(model, options.target_modules)) {
    dense->add_lora(options.rank, options.alpha / static_cast<double>(options.rank), options.dropout, site++);
    if (const auto found = release.find(name + ".weight"); found != release.end())
      dense->release_weight = found->second;
  }
  model.init_weights(seed, is_lora);
}

std::vector<std::pair<std::string, at::Tensor>> merge_lora(const ModelForTask& model) {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> merged;
  for (const auto& [name, dense] : layers_of(model)) {
    if (dense->lora_a.defined()) merged.emplace(name + ".weight", dense->merged());
  }
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& item : model.named_parameters()) {
    const auto found = merged.find(item.key());
    if (!is_lora(item.key())) {
      tensors.emplace_back(item.key(), found == merged.end() ? item.value().detach() : found->second);
    }
  }
  return tensors;
}

void save_adapter(const ModelForTask& model,
                  const std::map<std::string, at::Tensor>& trained,
                  const LoraOptions& options,
                  const std::filesystem::path& base,
                  const std::filesystem::path& folder) {
  using Json = nlohmann::ordered_json;
  std::vector<std::string> targets;
  double dropout = 0;
  for (const auto& [name, dense] : layers_of(model)) {
    if (!dense->lora_a.defined()) continue;
    targets.push_back(name);
    dropout = dense->lora_dropout;
  }
  std::set<std::string> parts;
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [name, tensor] : trained) {
    if (!is_lora(name)) parts.insert(part_to_save(model, name));
    tensors.emplace_back(fmt::format("base_model.model.{}{}", name, is_lora(name) ? ".weight" : ""),
                         tensor.detach().to(at::kCPU, at::kFloat));
  }
  const bool is_of_words = model.head().rows == RowsPer::kToken;
  const std::string name = hub_name(base);
  const bool is_of_hub = name != base.string();
  const size_t at = name.find('@');
  const Json config = {{"peft_type", "LORA"},
                       {"task_type", is_of_words ? "TOKEN_CLS" : "SEQ_CLS"},
                       {"base_model_name_or_path", is_of_hub ? name.substr(0, at) : name},
                       {"revision", is_of_hub ? Json(name.substr(at + 1)) : Json()},
                       {"r", options.rank},
                       {"lora_alpha", options.alpha},
                       {"lora_dropout", dropout},
                       {"bias", "none"},
                       {"fan_in_fan_out", false},
                       {"inference_mode", true},
                       {"target_modules", targets},
                       {"modules_to_save", parts}};
  std::filesystem::create_directory(folder);  // and none above it: a run's own may have been taken away
  save_safetensors(folder / kAdapterWeightsFile, tensors, {{"format", "pt"}});
  write_file_atomically(folder / "adapter_config.json",
                        config.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace mezzo::text
