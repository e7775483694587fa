#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mezzo/text/models/model_for_task.h"

namespace mezzo::text {

struct LoraOptions {
  int64_t rank = 0;
  double alpha = 16;   ///< the factors' product is multiplied by alpha / rank
  double dropout = 0;  ///< probability, of the factors' input
  /// Linear layers within the model's layers, by name or by the end of their name from a dot on, comma-separated:
  /// "query,value". Empty: all.
  std::string target_modules = {};
};

/// Adds factors to linear layers within a model's layers, as `get_peft_model` (PEFT) does: lora_A drawn uniformly
/// from -1 / sqrt(columns) to that, lora_B zero. All other parameters of the encoder need no gradient from now on.
/// @throws c10::ValueError  for a target module that no linear layer is called; it names the layers
/// @param also  parameters of the encoder that are trained anyway, because no file had them.
/// @param release  by parameter, if it lies in a file: gives back the memory that reading it took
void add_lora(ModelForTask& model,
              const LoraOptions& options,
              uint64_t seed,
              const std::vector<std::string>& also,
              const std::map<std::string, std::function<void()>>& release);

/// Whether a parameter is a factor.
bool is_lora(std::string_view parameter);

/// All parameters but factors, with these merged into their weights, as in a model without LoRA.
std::vector<std::pair<std::string, at::Tensor>> merge_lora(const ModelForTask& model);

/// Writes adapter_config.json and adapter_model.safetensors, which PEFT loads onto the model that training began with.
/// @param trained  by parameter
/// @param base  what adapter_config.json says of that model's place.
void save_adapter(const ModelForTask& model,
                  const std::map<std::string, at::Tensor>& trained,
                  const LoraOptions& options,
                  const std::filesystem::path& base,
                  const std::filesystem::path& folder);

}  // namespace mezzo::text
