#include "mezzo/text/models/pretrained.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string_view>

#include "mezzo/text/io/safetensors.h"

namespace mezzo::text {
namespace {

constexpr std::string_view kWeightsFile = "model.safetensors";

std::filesystem::path weights_path(const std::filesystem::path& folder) {
  const auto path = folder / kWeightsFile;
  if (!std::filesystem::exists(path)) {
    TORCH_CHECK_VALUE(!std::filesystem::exists(folder / "model.safetensors.index.json"), path.string(),
                      ": not found, only an index of several files; save the model in one file first");
    TORCH_CHECK_VALUE(!std::filesystem::exists(folder / "pytorch_model.bin"), path.string(),
                      ": not found, only pytorch_model.bin, a pickle that may run code; in Python, "
                      "model.save_pretrained(folder) writes safetensors");
    TORCH_CHECK_VALUE(false, path.string(), ": not found; --model takes a folder that transformers or mezzo saved");
  }
  return path;
}

bool replace_ending(std::string& name, std::string_view old_ending, std::string_view new_ending) {
  if (!name.ends_with(old_ending)) {
    return false;
  }
  name.replace(name.size() - old_ending.size(), old_ending.size(), new_ending);
  return true;
}

/// The parameter that a tensor of the file stands for, as this model names it.
std::string parameter_name(std::string name) {
  if (!name.starts_with("bert.") && !name.starts_with("classifier.") && !name.starts_with("cls.")) {
    name.insert(0, "bert.");
  }
  replace_ending(name, "LayerNorm.gamma", "LayerNorm.weight") ||
      replace_ending(name, "LayerNorm.beta", "LayerNorm.bias");
  return name;
}

}  // namespace

bool has_classifier(const std::filesystem::path& folder) {
  return SafetensorsReader(weights_path(folder)).contains("classifier.weight");
}

namespace {

/// @param take  puts a tensor of the file in a parameter's place, and may call `release` when it is done with it.
LoadedWeights load(BertForSequenceClassification& model,
                   const std::filesystem::path& folder,
                   uint64_t seed,
                   void (*take)(at::Tensor& parameter,
                                const at::Tensor& tensor,
                                const std::function<void()>& release)) {
  const auto path = weights_path(folder);
  const SafetensorsReader file(path);
  std::map<std::string, std::string> stored;  // parameter -> name in the file
  for (const std::string& name : file.names()) {
    const bool is_new = stored.emplace(parameter_name(name), name).second;
    TORCH_CHECK_VALUE(is_new, path.string(), ": holds ", parameter_name(name), " twice, as ", name, " and as ",
                      stored[parameter_name(name)]);
  }

  at::NoGradGuard no_grad;
  LoadedWeights loaded;
  for (auto& item : model.named_parameters()) {
    const auto found = stored.find(item.key());
    if (found == stored.end()) {
      TORCH_CHECK_VALUE(item.key().starts_with("bert.pooler.") || item.key().starts_with("classifier."), path.string(),
                        ": has no tensor ", item.key(), ", which config.json calls for");
      loaded.initialised.push_back(item.key());
      continue;
    }
    const auto tensor = file.tensor(found->second);
    TORCH_CHECK_VALUE(tensor.sizes() == item.value().sizes() && at::isFloatingType(tensor.scalar_type()), path.string(),
                      ": ", found->second, " is ", tensor.scalar_type(), tensor.sizes(), ", the model needs Float",
                      item.value().sizes(),
                      item.key().starts_with("classifier.") ? " (one row a label of the data)" : " by config.json");
    take(item.value(), tensor, [&] { file.release(found->second); });
    stored.erase(found);
  }
  model.init_weights(seed, [&](const std::string& name) {
    return std::find(loaded.initialised.begin(), loaded.initialised.end(), name) != loaded.initialised.end();
  });
  for (const auto& [parameter, name] : stored) {
    loaded.unused.push_back(name);
  }
  return loaded;
}

}  // namespace

LoadedWeights load_pretrained(BertForSequenceClassification& model,
                              const std::filesystem::path& folder,
                              uint64_t seed) {
  return load(model, folder, seed, [](at::Tensor& parameter, const at::Tensor& tensor, const auto& release) {
    parameter.copy_(tensor);
    release();
  });
}

LoadedWeights map_pretrained(BertForSequenceClassification& model, const std::filesystem::path& folder) {
  return load(model, folder, /*seed=*/0, [](at::Tensor& parameter, const at::Tensor& tensor, const auto& release) {
    if (tensor.scalar_type() == parameter.scalar_type() && parameter.is_cpu()) {
      parameter.set_data(tensor);
    } else {
      parameter.copy_(tensor);
      release();
    }
  });
}

std::string save_pretrained(const BertConfig& config,
                            const std::vector<std::pair<std::string, at::Tensor>>& weights,
                            const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [name, tensor] : weights) {
    tensors.emplace_back(name, tensor.detach().to(at::kCPU, at::kFloat));
  }
  config.save(folder / "config.json");
  return save_safetensors(folder / kWeightsFile, tensors, {{"format", "pt"}});
}

}  // namespace mezzo::text
