#include "mezzo/text/models/pretrained.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <system_error>

#include "mezzo/text/io/safetensors.h"
#include "text/io/read_error.h"

namespace mezzo::text {
namespace {

using Parameters = torch::OrderedDict<std::string, at::Tensor>;

/// The tensors of a folder by their names, in one file or in several.
struct StoredWeights {
  StoredWeights(const std::filesystem::path& folder, SafetensorsReader::Access access) {
    const auto paths = weight_files(folder);
    path = (paths.size() == 1 ? paths.front() : folder / kWeightsIndexFile).string();
    for (const auto& file : paths) {
      const SafetensorsReader reader(file, access);
      for (const std::string& name : reader.names()) {
        const auto [same, is_new] = files.emplace(name, std::pair(file.string(), reader));
        TORCH_CHECK_VALUE(is_new, file.string(), ": holds ", name, ", and so does ", same->second.first);
      }
    }
  }

  std::string path;                                                        // of the one file, or of the index
  std::map<std::string, std::pair<std::string, SafetensorsReader>> files;  // by tensor: the file's path and content
};

bool replace_ending(std::string& name, std::string_view old_ending, std::string_view new_ending) {
  if (!name.ends_with(old_ending)) {
    return false;
  }
  name.replace(name.size() - old_ending.size(), old_ending.size(), new_ending);
  return true;
}

/// Without the parts that wrappers of a model add to names: torch.compile, DistributedDataParallel, FSDP, activation
/// checkpointing.
std::string without_wrappers(std::string_view name) {
  constexpr std::array<std::string_view, 4> kWrappers = {"_orig_mod.", "_fsdp_wrapped_module.",
                                                         "_checkpoint_wrapped_module.", "module."};
  std::string rest;
  while (!name.empty()) {
    const size_t dot = name.find('.');
    const std::string_view word = name.substr(0, dot == name.npos ? dot : dot + 1);
    if (std::ranges::find(kWrappers, word) == kWrappers.end()) rest += word;
    name.remove_prefix(word.size());
  }
  return rest;
}

/// The parameter that a tensor of the file stands for, as `model` names it; the tensor's own
/// name if there is none.
std::string parameter_name(const ModelForTask& model, const Parameters& parameters, const std::string& stored) {
  std::string name = without_wrappers(stored);
  replace_ending(name, "LayerNorm.gamma", "LayerNorm.weight") ||
      replace_ending(name, "LayerNorm.beta", "LayerNorm.bias");
  const std::string inside = fmt::format("{}.{}", model.base_model_prefix(), name);
  return parameters.contains(name) ? name : parameters.contains(inside) ? inside : stored;
}

/// A likely reason why the file lacks a parameter.
std::string why_missing(const ModelForTask& model,
                        const std::string& parameter,
                        const std::vector<std::string>& names,
                        bool has_encoder) {
  const std::string inside(model.name_in_encoder(parameter));
  const auto is_of_peft = [](const std::string& name) {
    return name.starts_with("base_model.model.") || name.find(".lora_A.") != name.npos;
  };
  if (const auto found = std::ranges::find_if(names, is_of_peft); found != names.end()) {
    return fmt::format(
        "; it has {}, so the model is inside an adapter of PEFT. In Python, peft's merge_and_unload() and "
        "save_pretrained() make a whole model of it",
        *found);
  }
  const auto find_ending = [&](const std::string& ending) {
    return std::ranges::find_if(names, [&](const std::string& name) { return name.ends_with('.' + ending); });
  };
  if (const auto found = find_ending(parameter); found != names.end()) {
    return fmt::format(
        "; it has {}, with \"{}\" before the name. Save the inner model, or rename the tensors in Python with "
        "load_file "
        "and save_file of safetensors",
        *found, found->substr(0, found->size() - parameter.size()));
  }
  if (const auto found = find_ending(inside); !inside.empty() && found != names.end()) {
    return fmt::format(
        "; it has {}, with \"{}\" in place of \"{}.\". Correct model_type in config.json, or rename the tensors in "
        "Python with load_file and save_file of safetensors",
        *found, found->substr(0, found->size() - inside.size()), model.base_model_prefix());
  }
  return has_encoder ? ""
                     : fmt::format("; it has nothing of {}, so its weights are of another model_type than \"{}\"",
                                   model.base_model_prefix(), model.config().model_type());
}

/// Refuses a float8 tensor with a scale beside it: the weight is their product.
void check_has_no_scales(const std::vector<std::string>& names,
                         const std::string& name,
                         const at::Tensor& tensor,
                         const std::string& path) {
  if (!at::isFloat8Type(tensor.scalar_type())) return;
  const std::string module = name.substr(0, name.rfind('.') + 1);
  const auto scale = std::ranges::find_if(names, [&](const std::string& other) {
    return other.starts_with(module) && other.find("scale", module.size()) != other.npos;
  });
  TORCH_CHECK_VALUE(scale == names.end(), path, ": ", name, " is ", tensor.scalar_type(), " with a scale, ", *scale,
                    ", so it is quantized. mezzo reads only weights without scales. Use the "
                    "unquantized model");
}

/// Whether a file may lack it, as one of another task does: the head's, of which BERT's pooler is a part.
bool may_be_missing(const ModelForTask& model, std::string_view parameter) {
  const auto inside = model.name_in_encoder(parameter);
  return inside.empty() || inside.starts_with("pooler.");
}

/// Whether the file is one for another task, say for tokens in place of texts, whose head may have the names
/// of ours.
bool is_of_another_task(const ModelConfig& config, RowsPer rows) {
  const std::string_view name = config.first_architecture;
  return name.find("For") != name.npos &&
         !name.ends_with(rows == RowsPer::kText ? "ForSequenceClassification" : "ForTokenClassification");
}

bool is_of_head(const ModelConfig& config, RowsPer rows, std::string_view parameter) {
  const std::string_view head = rows == RowsPer::kToken ? "classifier" : config.head_prefix();
  return parameter.starts_with(head) && parameter.substr(head.size()).starts_with('.');
}

}  // namespace

std::vector<std::filesystem::path> weight_files(const std::filesystem::path& folder) {
  refuse_adapter(folder);
  std::error_code error;
  if (std::filesystem::exists(folder / kWeightsFile, error)) return {folder / kWeightsFile};
  std::vector<std::filesystem::path> files;
  if (std::filesystem::exists(folder / kWeightsIndexFile, error)) {
    for (const std::string& name : shards_of(folder / kWeightsIndexFile)) {
      files.push_back(folder / name);
      TORCH_CHECK_VALUE(std::filesystem::exists(files.back(), error) || error, files.back().string(),
                        ": is missing, and ", kWeightsIndexFile, " names it. Copy or download the model again");
    }
    return files;
  }
  std::set<std::string> names;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    names.insert(entry->path().filename().string());
  }
  TORCH_CHECK_VALUE(false, folder.string(), ": ", why_no_weights(names));
}

bool has_head(const ModelConfig& config, const std::filesystem::path& folder) {
  const RowsPer rows = config.problem_type == "token_classification" ? RowsPer::kToken : RowsPer::kText;
  if (is_of_another_task(config, rows)) return false;
  const StoredWeights stored(folder, SafetensorsReader::Access::kRead);
  return std::ranges::any_of(stored.files,
                             [&](const auto& item) { return is_of_head(config, rows, without_wrappers(item.first)); });
}

namespace {

/// @param take  puts a tensor of the file in a parameter's place, and says whether it is the file's memory there.
LoadedWeights load(ModelForTask& model,
                   const std::filesystem::path& folder,
                   uint64_t seed,
                   bool new_head,
                   SafetensorsReader::Access access,
                   bool (*take)(at::Tensor& parameter, const at::Tensor& tensor)) {
  const StoredWeights weights(folder, access);
  auto parameters = model.named_parameters();
  std::map<std::string, std::string> stored;  // parameter -> name in the file
  std::vector<std::string> names;
  for (const auto& item : weights.files) names.push_back(item.first);
  for (const std::string& name : names) {
    const std::string parameter = parameter_name(model, parameters, name);
    const auto [same, is_new] = stored.emplace(parameter, name);
    TORCH_CHECK_VALUE(is_new, weights.path, ": holds ", parameter, " twice, as ", name, " and as ", same->second);
  }

  const bool has_encoder = std::ranges::any_of(
      parameters, [&](const auto& item) { return stored.contains(item.key()) && !may_be_missing(model, item.key()); });

  const bool has_our_head = !new_head && !is_of_another_task(model.config(), model.head().rows);
  at::NoGradGuard no_grad;
  LoadedWeights loaded;
  for (auto& item : parameters) {
    const auto found = stored.find(item.key());
    if (found == stored.end() || (!has_our_head && is_of_head(model.config(), model.head().rows, item.key()))) {
      TORCH_CHECK_VALUE(may_be_missing(model, item.key()), weights.path, ": has no tensor ", item.key(),
                        ", which config.json requires", why_missing(model, item.key(), names, has_encoder));
      loaded.initialised.push_back(item.key());
      continue;
    }
    const auto& [path, file] = weights.files.at(found->second);
    const auto tensor = file.tensor(found->second);
    check_has_no_scales(names, found->second, tensor, path);
    TORCH_CHECK_VALUE(tensor.sizes() == item.value().sizes() && at::isFloatingType(tensor.scalar_type()), path, ": ",
                      found->second, " is ", tensor.scalar_type(), tensor.sizes(), ", the model needs Float",
                      item.value().sizes(),
                      is_of_head(model.config(), model.head().rows, item.key()) ? " (one row per label of the data)"
                                                                                : " by config.json");
    const auto release = [reader = file, name = found->second] { reader.release(name); };
    if (take(item.value(), tensor)) {
      loaded.release.emplace(item.key(), release);
    } else {
      release();
    }
    stored.erase(found);
  }
  model.init_weights(seed, [&](const std::string& name) {
    return std::find(loaded.initialised.begin(), loaded.initialised.end(), name) != loaded.initialised.end();
  });
  for (const auto& [parameter, name] : stored) {
    const bool is_old_buffer = name.ends_with("position_ids") || name.ends_with("token_type_ids");
    if (!is_old_buffer) loaded.unused.push_back(name);
  }
  return loaded;
}

}  // namespace

LoadedWeights load_pretrained(ModelForTask& model, const std::filesystem::path& folder, uint64_t seed, bool new_head) {
  return load(model, folder, seed, new_head, SafetensorsReader::Access::kRead,
              [](at::Tensor& parameter, const at::Tensor& tensor) {
                parameter.copy_(tensor);
                return false;
              });
}

std::string first_not_finite(const ModelForTask& model, const LoadedWeights& loaded) {
  for (const auto& item : model.named_parameters()) {
    if (!at::isfinite(item.value()).all().item<bool>()) return item.key();
    if (const auto found = loaded.release.find(item.key()); found != loaded.release.end()) found->second();
  }
  return "";
}

LoadedWeights map_pretrained(ModelForTask& model, const std::filesystem::path& folder, uint64_t seed, bool new_head) {
  return load(model, folder, seed, new_head, SafetensorsReader::Access::kMapped,
              [](at::Tensor& parameter, const at::Tensor& tensor) {
                const bool fits = tensor.scalar_type() == parameter.scalar_type() && parameter.is_cpu();
                if (fits) {
                  parameter.set_data(tensor);
                } else {
                  parameter.copy_(tensor);
                }
                return fits;
              });
}

at::Tensor rescale_outputs(const OutputScaling& scaling, const at::Tensor& outputs) {
  const at::Tensor scaled = outputs.to(at::kDouble) * scaling.factor;
  return (scaling.shift.defined() ? scaled + scaling.shift.to(outputs.device()) : scaled).to(at::kFloat);
}

void rescale_outputs(const OutputScaling& scaling, std::string_view layer, std::map<std::string, at::Tensor> tensors) {
  const at::NoGradGuard no_grad;
  at::Tensor& weight = tensors.at(fmt::format("{}.weight", layer));
  at::Tensor& bias = tensors.at(fmt::format("{}.bias", layer));
  weight.copy_(weight.to(at::kDouble) * scaling.factor);
  bias.copy_(rescale_outputs(scaling, bias));
}

std::string rescale_outputs(const OutputScaling& scaling, std::string_view layer, const std::filesystem::path& folder) {
  const SafetensorsReader file(folder / kWeightsFile);
  std::map<std::string, at::Tensor> tensors;
  for (const std::string& name : file.names()) {
    const at::Tensor tensor = file.tensor(name);
    tensors.emplace(name, name.starts_with(layer) ? tensor.clone() : tensor);
  }
  rescale_outputs(scaling, layer, tensors);
  return save_safetensors(folder / kWeightsFile, {tensors.begin(), tensors.end()}, file.metadata());
}

std::string save_pretrained(const ModelConfig& config,
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
