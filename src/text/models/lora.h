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
  double alpha = 16;  ///< what the factors' product is multiplied by, times the rank
};

/// Adds factors to all linear layers within a model's layers, as `get_peft_model` (PEFT) does: lora_A drawn uniformly
/// from -1 / sqrt(columns) to that, lora_B zero. Whatever else is in the encoder needs no gradient from now on.
/// @param also  parameters of the encoder that are trained all the same: those that no file had.
/// @param release  by parameter, where it lies in a file: gives back the memory that reading it took
void add_lora(ModelForTask& model,
              const LoraOptions& options,
              uint64_t seed,
              const std::vector<std::string>& also,
              const std::map<std::string, std::function<void()>>& release);

/// Whether a parameter is a factor.
bool is_lora(std::string_view parameter);

/// All parameters but factors, with these merged into their weights: what a model without LoRA has.
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
