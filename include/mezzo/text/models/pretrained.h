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

/// What loading a folder's weights did beyond copying them.
struct LoadedWeights {
  std::vector<std::string> initialised;  ///< parameters the file lacks, drawn afresh
  std::vector<std::string> unused;       ///< tensors of the file that the model has no place for
  /// By parameter that is mapped: gives back the memory that reading it took; read again, it is read from the file.
  std::map<std::string, std::function<void()>> release = {};
};

/// The files of a folder's weights: model.safetensors, or those that model.safetensors.index.json names.
/// @throws c10::ValueError  if there are none; the message names the weights of other formats, and their conversion.
std::vector<std::filesystem::path> weight_files(const std::filesystem::path& folder);

/// Whether `folder`, whose config is `config`, holds a trained head for texts or for tokens, not only an encoder, or
/// one with a head for something else, as a ForQuestionAnswering has.
bool has_head(const ModelConfig& config, const std::filesystem::path& folder);

/// Fills `model` from the weight_files() of `folder`, written by transformers or by mezzo: names with
/// or without the prefix of the family (`bert.`), any floating dtype, old names `LayerNorm.gamma`
/// and `LayerNorm.beta` too. A missing head or pooler, or one for something else than the model's, is drawn from `seed`
/// and reported.
/// @param new_head  draws the head from `seed` where the file has one, too: for other labels than its own.
/// @throws c10::ValueError  naming the tensor, where one does not fit or any other is missing; the
///     model is unusable then
LoadedWeights load_pretrained(ModelForTask& model,
                              const std::filesystem::path& folder,
                              uint64_t seed,
                              bool new_head = false);

/// The name of a parameter that holds inf or NaN; empty where all are finite.
/// @param loaded  gives back what reading mapped ones took.
std::string first_not_finite(const ModelForTask& model, const LoadedWeights& loaded = {});

/// As load_pretrained, for a model on CPU that is only run: its parameters are the mapped bytes of
/// the file, where they are float32 there, so nothing is copied, and what is never used, such as
/// the rows of rare words, is never read. Do not change them; and while it lives, replace the file by
/// rename, as save_pretrained does, never in place.
LoadedWeights map_pretrained(ModelForTask& model,
                             const std::filesystem::path& folder,
                             uint64_t seed = 0,
                             bool new_head = false);

/// The scaled outputs, float32.
at::Tensor rescale_outputs(const OutputScaling& scaling, const at::Tensor& outputs);

/// Changes the weight and bias of the last layer in place, so that the model's outputs are scaled.
/// @param layer  ModelForTask::output_layer()
/// @param tensors  of the model by name; those of other layers may be missing
/// @throws std::out_of_range  if the layer's are missing
void rescale_outputs(const OutputScaling& scaling, std::string_view layer, std::map<std::string, at::Tensor> tensors);

/// Does that to the model that save_pretrained() wrote into `folder`.
/// @return as save_pretrained()
std::string rescale_outputs(const OutputScaling& scaling, std::string_view layer, const std::filesystem::path& folder);

/// Writes config.json and model.safetensors (float32) into `folder`, which is made if need be;
/// transformers' `from_pretrained` loads them. Each file is replaced atomically.
/// @param weights  every parameter of the model by name, on any device
/// @return the hash of model.safetensors, as AtomicFile::commit gives it
std::string save_pretrained(const ModelConfig& config,
                            const std::vector<std::pair<std::string, at::Tensor>>& weights,
                            const std::filesystem::path& folder);

}  // namespace mezzo::text
