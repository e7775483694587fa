#pragma once

#include "mezzo/cpp20.h"

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

/// Weights that were not copied when a folder was loaded.
struct LoadedWeights {
  std::vector<std::string> initialised;  ///< parameters that the file lacks; they were drawn
  std::vector<std::string> unused;       ///< tensors of the file that the model does not use
  /// By mapped parameter: frees the memory of its pages, which the next read fills from the file.
  std::map<std::string, std::function<void()>> release = {};
};

/// The files of a folder's weights: model.safetensors, or the files in
/// model.safetensors.index.json.
/// @throws c10::ValueError  without such files; the message names weights of other formats, and
///     their conversion
std::vector<std::filesystem::path> weight_files(const std::filesystem::path& folder);

/// Whether `folder`, with config `config`, holds a trained head for texts or tokens. It may also
/// hold only an encoder, or another head, such as a ForQuestionAnswering.
bool has_head(const ModelConfig& config, const std::filesystem::path& folder);

/// Fills `model` from the weight_files() of `folder`, written by transformers or by mezzo. Names
/// may lack the prefix of the family (`bert.`), or be the old `LayerNorm.gamma` and
/// `LayerNorm.beta`. Any floating dtype is read. A missing head or pooler, or one for another kind
/// of task, is drawn from `seed` and reported.
/// @param new_head  true: draws the head from `seed` in any case, for different labels
/// @throws c10::ValueError  naming the tensor, if one does not fit or another one is missing; the
///     model is unusable then
LoadedWeights load_pretrained(ModelForTask& model,
                              const std::filesystem::path& folder,
                              uint64_t seed,
                              bool new_head = false);

/// The name of a parameter that holds inf or NaN; empty if all are finite.
/// @param loaded  frees the pages of mapped parameters after each
std::string first_not_finite(const ModelForTask& model, const LoadedWeights& loaded = {});

/// As load_pretrained, for a model on CPU that is only run. Parameters that are float32 in the file
/// are its mapped bytes. So nothing is copied, and unused parts, such as the rows of rare words,
/// are never read.
///
/// Do not change the parameters. During the model's lifetime, replace the file only by rename, as
/// save_pretrained does, never in place.
LoadedWeights map_pretrained(ModelForTask& model,
                             const std::filesystem::path& folder,
                             uint64_t seed = 0,
                             bool new_head = false);

/// The scaled outputs, in float32.
at::Tensor rescale_outputs(const OutputScaling& scaling, const at::Tensor& outputs);

/// Changes the weight and bias of the last layer in place, so that the model's outputs are scaled.
/// @param layer  ModelForTask::output_layer()
/// @param tensors  of the model by name; tensors of other layers may be missing
/// @throws std::out_of_range  if the layer's tensors are missing
void rescale_outputs(const OutputScaling& scaling, std::string_view layer, std::map<std::string, at::Tensor> tensors);

/// The same for the model that save_pretrained() wrote into `folder`.
/// @return as save_pretrained()
std::string rescale_outputs(const OutputScaling& scaling, std::string_view layer, const std::filesystem::path& folder);

/// Writes config.json and model.safetensors (float32) into `folder`, which is created if necessary.
/// transformers' `from_pretrained` loads them. Each file is replaced atomically.
/// @param weights  every parameter of the model by name, on any device
/// @return the hash of model.safetensors, as from AtomicFile::commit
std::string save_pretrained(const ModelConfig& config,
                            const std::vector<std::pair<std::string, at::Tensor>>& weights,
                            const std::filesystem::path& folder);

}  // namespace mezzo::text
